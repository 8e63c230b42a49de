"""Seconds that jaxmem estimates for single kernels against measured ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmem
from benchmarks.gpu import rates
from benchmarks.gpu.case import Context, Part, Row, cases
from benchmarks.gpu.device_time import kernels_of

# Under a limit that everything meets, a plan says what it takes the step for.
_NO_LIMIT_BYTES = 1 << 50
# Calls that the card's own clock measures.
_NUM_CALLS = 20
# Where a CPU stands in for a card, calls are queued for about so long.
_REHEARSED_QUEUE_S = 0.01
_MIN_RANKED = 3
_CLASSES = ("dot", "convolution", "elementwise", "reduction", "copy")
_TITLES = (
  "class",
  "kernel",
  "measured µs",
  "estimated µs",
  "measured / estimated",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
  """A program of one kernel, or of as few as XLA makes of it.

  Attributes:
    group: One of `_CLASSES`.
    name: What it is.
    function: The program.
    shapes: Of its arguments.
    dtype: Of its arguments.
  """

  group: str
  name: str
  function: Callable[..., Any]
  shapes: tuple[tuple[int, ...], ...]
  dtype: Any = jnp.float32


def _run(context: Context) -> None:
  """Writes a row for each kernel, then the correlations."""
  rows = []
  for kernel in _tiny() if context.is_rehearsal else _kernels():
    args = [
      jax.random.normal(jax.random.key(i), shape, kernel.dtype)
      for i, shape in enumerate(kernel.shapes)
    ]
    row: Row = {
      "class": kernel.group,
      "kernel": kernel.name,
      "shapes": kernel.shapes,
      "dtype": jnp.dtype(kernel.dtype).name,
      "measured_s": _measured_seconds(kernel.function, args),
      "estimated_s": estimated_seconds(kernel.function, args),
    }
    rows.append(row)
    context.emit(row)
  for group in ("all", *_CLASSES):
    context.emit({"class": group, "kernel": None, **summary(rows, group)})


def _measured_seconds(
  function: Callable[..., Any], args: Sequence[Any]
) -> float:
  """Returns the seconds of one call of a program: on a card, of its kernels."""
  compiled = jax.jit(function).lower(*args).compile()

  def run() -> None:
    for _ in range(_NUM_CALLS):
      result = compiled(*args)
    jax.block_until_ready(result)

  run()
  ran = kernels_of(run)
  if not ran:
    return rates.seconds_per_call(function, args, _REHEARSED_QUEUE_S)
  return sum(kernel.seconds for kernel in ran) / _NUM_CALLS


def estimated_seconds(
  function: Callable[..., Any], args: Sequence[Any]
) -> float:
  """Returns what jaxmem estimates a program to take on this device."""

  def program(*args: Any) -> Any:
    return function(*args)

  plan = jaxmem.plan(program, *args, memory_limit=_NO_LIMIT_BYTES)
  assert plan.budget is not None
  return plan.budget.written_s


def summary(rows: Sequence[Row], group: str) -> Row:
  """Returns how the estimates of a class fare; "all" takes all classes."""
  chosen = [row for row in rows if group in ("all", row["class"])]
  measured, estimated = (
    np.array([row[name] for row in chosen])
    for name in ("measured_s", "estimated_s")
  )
  is_ranked = len(chosen) >= _MIN_RANKED
  return {
    "num_kernels": len(chosen),
    "rank_correlation": rank_correlation(measured, estimated)
    if is_ranked
    else None,
    "median_ratio": float(np.median(measured / estimated)) if chosen else None,
  } | ({} if is_ranked else {"why_null": f"fewer than {_MIN_RANKED} kernels"})


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float | None:
  """Returns Spearman's correlation; None if all of either are equal."""
  ranks = [_ranks(one), _ranks(other)]
  if any(np.ptp(r) == 0 for r in ranks):
    return None
  return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
  """Returns ranks from 1; equal values share the mean of theirs."""
  below = (values[:, None] > values).sum(1)
  equal = (values[:, None] == values).sum(1)
  return below + (equal + 1) / 2


def _convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return jax.lax.conv_general_dilated(
    x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )


def _convolution_gradients(
  x: jax.Array, kernel: jax.Array, gradient: jax.Array
) -> Any:
  return jax.vjp(_convolve, x, kernel)[1](gradient)


def _softmax_gradient(x: jax.Array, gradient: jax.Array) -> Any:
  return jax.vjp(jax.nn.softmax, x)[1](gradient)


def _norm_gradients(x: jax.Array, scale: jax.Array, gradient: jax.Array) -> Any:
  def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return scale * jax.nn.standardize(x)

  return jax.vjp(norm, x, scale)[1](gradient)


def _update(p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array) -> Any:
  """Adam's update of one parameter: four arrays in, three out."""
  m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
  return p - 3e-4 * m / (jnp.sqrt(jnp.abs(v)) + 1e-8), m, v


def _kernels() -> Iterator[Kernel]:
  """Yields kernels as they occur in the campaign's models."""
  yield from _products()
  yield from _convolutions()
  for mebi in (4, 16, 64):
    yield from _passes(mebi)


def _products() -> Iterator[Kernel]:
  """Yields products, forward and as the gradients of their factors."""
  for m, k, n in (
    (4096, 768, 3072),
    (4096, 768, 50_257),
    (4096, 768, 50_304),
    (4096,) * 3,
  ):
    for dtype in (jnp.float32, jnp.bfloat16):
      for name, function, shapes in (
        ("", jnp.matmul, ((m, k), (k, n))),
        (", gradient of x", lambda g, w: g @ w.T, ((m, n), (k, n))),
        (", gradient of w", lambda x, g: x.T @ g, ((m, k), (m, n))),
      ):
        yield Kernel(
          group="dot",
          name=f"{m} x {k} x {n}, {jnp.dtype(dtype).name}{name}",
          function=function,
          shapes=shapes,
          dtype=dtype,
        )
  yield Kernel(
    group="dot",
    name="attention scores, 96 of 512 x 64 x 512",
    function=lambda q, k: q @ k.mT,
    shapes=((96, 512, 64), (96, 512, 64)),
  )


def _convolutions() -> Iterator[Kernel]:
  for batch, side, width, size in (
    (64, 56, 64, 1),
    (64, 56, 64, 3),
    (64, 14, 256, 3),
    (8, 256, 64, 3),
  ):
    images = (batch, side, side, width)
    kernel = (size, size, width, width)
    for name, function, shapes in (
      ("", _convolve, (images, kernel)),
      (", gradients", _convolution_gradients, (images, kernel, images)),
    ):
      yield Kernel(
        group="convolution",
        name=f"{batch} of {side} x {side} x {width}, {size} x {size}{name}",
        function=function,
        shapes=shapes,
      )


def _passes(mebi: int) -> Iterator[Kernel]:
  """Yields kernels that the memory's rate decides.

  Args:
    mebi: Numbers of an argument, in units of 2^20.
  """
  count = mebi << 20
  vector, matrix = (count,), (count // 2048, 2048)
  wide = ((count // 768, 768), (768,), (count // 768, 768))
  for group, name, function, shapes in (
    ("elementwise", "gelu", jax.nn.gelu, (vector,)),
    ("elementwise", "Adam", _update, (vector,) * 4),
    ("reduction", "of rows", lambda x: x.sum(1), (matrix,)),
    ("reduction", "of columns", lambda x: x.sum(0), (matrix,)),
    ("reduction", "softmax of rows", jax.nn.softmax, (matrix,)),
    ("reduction", "softmax's gradient", _softmax_gradient, (matrix,) * 2),
    ("reduction", "layer norm's gradients", _norm_gradients, wide),
    ("copy", "transposed", lambda x: x.T.copy(), (matrix,)),
    (
      "copy",
      "joined",
      lambda x, y: jnp.concatenate([x, y], 1),
      (matrix,) * 2,
    ),
  ):
    yield Kernel(
      group=group,
      name=f"{name}, {mebi} Mi numbers",
      function=function,
      shapes=shapes,
    )


def _tiny() -> Iterator[Kernel]:
  """Yields one kernel of each class, and a second product."""
  for side in (128, 256):
    yield Kernel(
      group="dot",
      name=f"{side}",
      function=jnp.matmul,
      shapes=((side, side),) * 2,
    )
  yield Kernel(
    group="convolution",
    name="tiny",
    function=_convolve,
    shapes=((2, 16, 16, 8), (3, 3, 8, 8)),
  )
  row = (256, 256)
  yield Kernel(
    group="elementwise", name="gelu", function=jax.nn.gelu, shapes=(row,)
  )
  yield Kernel(
    group="reduction", name="rows", function=lambda x: x.sum(1), shapes=(row,)
  )
  yield Kernel(
    group="copy",
    name="transposed",
    function=lambda x: x.T.copy(),
    shapes=(row,),
  )


def _cells(row: Row) -> Sequence[object]:
  if row["kernel"] is None:
    rank, ratio = row["rank_correlation"], row["median_ratio"]
    return [
      f"**{row['class']}**",
      f"{row['num_kernels']} kernels",
      "",
      "" if rank is None else f"rank correlation {rank:.3f}",
      "" if ratio is None else f"median {ratio:.2f}",
    ]
  measured_s, estimated_s = row["measured_s"], row["estimated_s"]
  return [
    row["class"],
    row["kernel"],
    f"{1e6 * measured_s:.1f}",
    f"{1e6 * estimated_s:.1f}",
    f"{measured_s / estimated_s:.2f}",
  ]


PART = Part(
  name="kernels",
  question=(
    "How far are estimated seconds from measured ones, for single products,"
    " convolutions, elementwise passes, reductions and copies, and do they rank"
    " kernels alike?"
  ),
  cases=cases(["all"], 50, rehearsed=["all"], rehearsed_s=10),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
