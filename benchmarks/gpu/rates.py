"""What the card reaches: its memory, its link to the host, its products."""

from __future__ import annotations

import pathlib
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import description, ways
from benchmarks.gpu.case import Context, Part, Row, cases

_DUMP = "dump"
_NUM_REPEATS = 7
# Calls are queued for about so long, so that starting them hides.
_QUEUE_S, _REHEARSED_QUEUE_S = 0.2, 0.02
_PRECISIONS = {
  "fp32": (jnp.float32, jax.lax.Precision.HIGHEST),
  "tf32": (jnp.float32, jax.lax.DotAlgorithmPreset.TF32_TF32_F32),
  "bf16": (jnp.bfloat16, jax.lax.Precision.DEFAULT),
}
_NO_LINK = "a CPU has one memory and no link"
_NO_UNITS = "a CPU has no such matrix units"
_TITLES = ("rate", "measured", "described by XLA", "of it")


def _run(context: Context) -> None:
  """Measures all rates, then writes them down as a target."""
  is_rehearsal = context.is_rehearsal
  queue_s = _REHEARSED_QUEUE_S if is_rehearsal else _QUEUE_S
  measured: dict[str, float | None] = {
    "memory_bytes_per_s": _memory_rate(
      1 << (22 if is_rehearsal else 28), queue_s
    ),
    **_link_rates(1 << (20 if is_rehearsal else 28)),
    **{
      f"{name}_flops_per_s": _product_rate(name, is_rehearsal, queue_s)
      for name in _PRECISIONS
    },
    "call_s": seconds_per_call(
      jax.jit(lambda x: x + 1), (jnp.zeros(()),), queue_s
    ),
  }
  source, text = _described(context.folder)
  described = description.rates(text)
  for name, value in measured.items():
    row: Row = {"rate": name, "value": value, "described": described.get(name)}
    why = _NO_UNITS if "flops" in name else _NO_LINK
    context.emit(row | ways.reasons(value is None, why))
  written = description.with_rates(text, measured)
  path = context.folder / "measured.txtpb"
  path.write_text(written, encoding="utf-8")
  context.emit(
    {"rate": "target", "value": None, "file": path.name, "from": source}
    | {"read_back": description.rates(written)}
  )


def seconds_per_call(
  function: Callable[..., Any], args: Sequence[Any], queue_s: float
) -> float:
  """Returns the seconds of one call of many that wait in a queue.

  The median over some repeats. What the host does for a call goes on while the
  device works, unless it takes longer than that.
  """
  function = jax.jit(function)
  jax.block_until_ready(function(*args))
  start_s = time.perf_counter()
  jax.block_until_ready(function(*args))
  once_s = time.perf_counter() - start_s
  num_calls = int(np.clip(queue_s / once_s, 1, 1000))
  taken = []
  for _ in range(_NUM_REPEATS):
    start_s = time.perf_counter()
    result = None
    for _ in range(num_calls):
      result = function(*args)
    jax.block_until_ready(result)
    taken.append((time.perf_counter() - start_s) / num_calls)
  return float(np.median(taken))


def _memory_rate(num_numbers: int, queue_s: float) -> float:
  """Returns bytes per second read and written by an elementwise pass."""
  x = jnp.ones(num_numbers, jnp.float32)
  taken_s = seconds_per_call(lambda x: x * 1.5 + 1.0, (x,), queue_s)
  return 2 * x.nbytes / taken_s


def _link_rates(num_numbers: int) -> dict[str, float | None]:
  """Returns bytes per second to and from pinned memory of the host."""
  names = ("to_host_bytes_per_s", "from_host_bytes_per_s")
  device = jax.devices()[0]
  if device.platform == "cpu":
    return dict.fromkeys(names)
  here, there = (
    jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
    for kind in ("device", "pinned_host")
  )
  x = jax.device_put(jnp.ones(num_numbers, jnp.float32), here)
  taken: list[list[float]] = [[], []]
  for _ in range(_NUM_REPEATS):
    for which, place in enumerate((there, here)):
      start_s = time.perf_counter()
      x = jax.block_until_ready(jax.device_put(x, place))
      taken[which].append(time.perf_counter() - start_s)
  rates = [x.nbytes / float(np.median(seconds)) for seconds in taken]
  return dict(zip(names, rates, strict=True))


def _product_rate(
  name: str, is_rehearsal: bool, queue_s: float
) -> float | None:
  """Returns flops per second of a large square product of random numbers."""
  if jax.default_backend() == "cpu" and name != "fp32":
    return None
  dtype, precision = _PRECISIONS[name]
  side = 256 if is_rehearsal else 8192
  a, b = (
    jax.random.normal(jax.random.key(i), (side, side), dtype) for i in (0, 1)
  )

  def product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=precision)

  return 2 * side**3 / seconds_per_call(product, (a, b), queue_s)


def _described(folder: pathlib.Path) -> tuple[str, str]:
  """Returns where a description of the device is from, and its text.

  What XLA dumped while this process compiled; without that, the packaged one
  that is most alike.
  """
  dump = folder / _DUMP
  found = sorted(dump.glob("*.gpu_target_config.pbtxt"))
  text = found[0].read_text(encoding="utf-8") if found else None
  shutil.rmtree(dump, ignore_errors=True)
  if text is None:
    name = description.packaged_name(jax.devices()[0].device_kind)
    return f"packaged {name}", description.packaged(name)
  kept = folder / "xla.gpu_target_config.pbtxt"
  kept.write_text(text, encoding="utf-8")
  return kept.name, text


def _cells(row: Row) -> Sequence[object]:
  value, described = row["value"], row.get("described")
  name = row["rate"]
  if name == "target":
    return ["target description", f"`{row['file']}`", f"`{row['from']}`", ""]
  if name == "call_s":
    return ["a queued call of almost nothing", f"{1e6 * value:.1f} µs", "", ""]
  unit, scale = ("Tflop/s", 1e12) if "flops" in name else ("GB/s", 1e9)
  return [
    name.partition("_per_s")[0].replace("_", " "),
    f"{value / scale:.1f} {unit}" if value else "",
    f"{described / scale:.1f} {unit}" if described else "",
    f"{100 * value / described:.0f} %" if value and described else "",
  ]


PART = Part(
  name="rates",
  question=(
    "What do memory, the link to the host and matrix products in fp32, tf32 and"
    " bf16 reach? Written as a target, `measured.txtpb`."
  ),
  cases=cases(
    ["all"],
    30,
    rehearsed=["all"],
    rehearsed_s=10,
    # With it XLA describes the card in a file of the folder.
    environment={"XLA_FLAGS": "--xla_dump_to={out}/" + _DUMP},
  ),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
