"""The programs: each small, and written for this project after a report."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import jaxmem
from benchmarks.sharded import residual_mlp

_Shape = jax.ShapeDtypeStruct
_Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class KnownStep:
  """A program for a report.

  Attributes:
    reports: The threads, such as "xla#35719".
    what: What was complained of, in a few words.
    make: Returns the function, and the shapes of its arguments.
    targets: What it is planned for: "cpu", or a described device.
    donates: Whether the first argument is donated.
    xla_options: Another way to compile it that the report compares with.
  """

  reports: tuple[str, ...]
  what: str
  make: Callable[[], _Made]
  targets: tuple[str, ...] = ("cpu", "h200")
  donates: bool = True
  xla_options: dict[str, Any] | None = None


def _floats(*shape: int) -> Any:
  return _Shape(shape, jnp.float32)


def _donated_and_read_by_a_loop() -> _Made:
  size = 2**22

  def step(x: Any) -> Any:
    changed = jnp.exp(x)
    total = jax.lax.fori_loop(
      0, 8, lambda i, s: s + changed[i * (size // 8)], jnp.float32(0)
    )
    return 2 * changed + total

  return step, (_floats(size),)


def _carry_written_and_read() -> _Made:
  size = 2**20

  def step(x: Any) -> Any:
    def body(i: Any, x: Any) -> Any:
      other = jax.random.randint(jax.random.key(i), (), 0, size)
      return x.at[i].set(x[other])

    return jax.lax.fori_loop(0, 100, body, x)

  return step, (_floats(size),)


def _carry_through_a_condition() -> _Made:
  def step(params: Any, x: Any) -> Any:
    def body(params: Any, x: Any) -> Any:
      def change(params: Any) -> Any:
        return jax.tree.map(lambda a: 0.9 * a + x, params)

      params = jax.lax.cond(x > 0, change, lambda params: params, params)
      return params, params["w"][0, 0]

    return jax.lax.scan(body, params, x)

  return step, ({"w": _floats(1024, 1024), "b": _floats(1024)}, _floats(100))


def _unrolled_counts() -> _Made:
  num_kinds = 30

  def step(columns: Any) -> Any:
    counts = []
    for a in columns:
      for b in columns:
        pair = a.astype(jnp.int32) * num_kinds + b
        counts.append(jnp.bincount(pair, length=num_kinds**2))
    return counts

  return step, ([_Shape((1_000_000,), jnp.uint8)] * 10,)


def _layers(*, is_scanned: bool, is_checkpointed: bool) -> _Made:
  num_layers, width, batch = 8, 512, 1024

  def layer(x: Any, weights: Any) -> Any:
    x = x + jnp.tanh(x @ weights["up"]) @ weights["down"]
    return x / (1e-6 + jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True)))

  block = jax.checkpoint(layer) if is_checkpointed else layer

  def loss(params: Any, x: Any) -> Any:
    if is_scanned:
      x, _ = jax.lax.scan(lambda x, w: (block(x, w), None), x, params)
    else:
      for i in range(num_layers):
        x = block(x, jax.tree.map(lambda w, i=i: w[i], params))
    return jnp.mean(x**2)

  params = {
    "up": _floats(num_layers, width, 4 * width),
    "down": _floats(num_layers, 4 * width, width),
  }
  return _descending(loss), (params, _floats(batch, width))


def _policy_that_saves_everything() -> _Made:
  width, batch, num_layers = 256, 2048, 8
  # The name below is another: nothing is excepted.
  policy = jax.checkpoint_policies.save_anything_except_these_names("hiden")

  @functools.partial(jax.checkpoint, policy=policy)
  def layer(x: Any, weights: Any) -> Any:
    hidden = checkpoint_name(x @ weights["up"], "hidden")
    return x + jax.nn.gelu(hidden) @ weights["down"]

  def loss(params: Any, x: Any) -> Any:
    for weights in params:
      x = layer(x, weights)
    return jnp.mean(x**2)

  weights = {"up": _floats(width, 4 * width), "down": _floats(4 * width, width)}
  return _descending(loss), ([weights] * num_layers, _floats(batch, width))


def _donation_of_another_type() -> _Made:
  def step(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
      return jnp.mean(jnp.tanh(x @ params.astype(jnp.float32)) ** 2)

    # The sum is float32, the donated argument is not.
    return params - jax.grad(loss)(params).astype(jnp.float32)

  return step, (_Shape((2048, 2048), jnp.bfloat16), _floats(64, 2048))


def _sharded_layers() -> _Made:
  devices = jaxmem.devices("h200", 8)
  step = residual_mlp(devices, num_layers=8, examples=32, fsdp=True)
  return step.fun, step.args


def _descending(loss: Callable[..., Any]) -> Callable[..., Any]:
  def step(params: Any, x: Any) -> Any:
    grads = jax.grad(loss)(params, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

  return step


KNOWN_STEPS: dict[str, KnownStep] = {
  "donated": KnownStep(
    ("xla#45912",),
    "a donated array that a loop reads takes twice its size",
    _donated_and_read_by_a_loop,
  ),
  "carry": KnownStep(
    ("jax#25399", "xla#5335"),
    "a loop copies what it carries, writes and reads elsewhere",
    _carry_written_and_read,
  ),
  "condition": KnownStep(
    ("jax#38145",),
    "a loop copies what it carries through a branch",
    _carry_through_a_condition,
  ),
  "hiding": KnownStep(
    ("jax#20763", "xla#45753"),
    "the latency-hiding scheduler takes several times the memory",
    _sharded_layers,
    targets=("8 x h200",),
    xla_options={"xla_gpu_enable_latency_hiding_scheduler": False},
  ),
  "unrolled": KnownStep(
    ("xla#35719",),
    "an unrolled loop allocates all of its temporaries at once",
    _unrolled_counts,
    donates=False,
  ),
  "layers": KnownStep(
    ("jax#14056",),
    "checkpointed layers take more memory unrolled than scanned",
    functools.partial(_layers, is_scanned=False, is_checkpointed=True),
  ),
  "residuals": KnownStep(
    ("jax#2139",),
    "a scan stacks what its backward pass reads",
    functools.partial(_layers, is_scanned=True, is_checkpointed=False),
  ),
  "policy": KnownStep(
    ("maxtext#3924",),
    "a checkpoint policy saves everything",
    _policy_that_saves_everything,
  ),
  "donation": KnownStep(
    ("jax#9675",),
    "a donation that cannot be used is easily overlooked",
    _donation_of_another_type,
  ),
}
