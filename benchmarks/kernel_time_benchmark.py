"""What kernels take on a CPU, against what the cost model expects.

    python -m benchmarks.kernel_time_benchmark \\
      --output=benchmarks/results/kernel_time.jsonl

Train steps of the zoo, or with --held_out those of `benchmarks.held_out`, run
under jax.profiler with their arena kept, so that no kernel waits until pages
are mapped. A row for each says what its kernels took by kind, beside their
estimates; and how much longer the step takes if its arena is mapped anew, by
turns. `CPU` in jaxmem/cost/rates.py was fitted to the zoo's rows.

Kinds: products; small ones, whose factors and results take longer to arrange
than to multiply; convolutions in plain loops; kernels that read across the
order in which an array lies; those of transcendental functions; all others.
"""

import collections
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jaxmem_hlo.module import Instruction, Module

from benchmarks import held_out, zoo
from benchmarks.compiled_programs import final_module
from benchmarks.row_output import emit_row, versions
from jaxmem import cost
from jaxmem.runtime import kept_arena

_MODELS = flags.DEFINE_list("models", [], "Which steps; all if empty.")
_HELD_OUT = flags.DEFINE_bool(
  "held_out", False, "Steps of benchmarks.held_out."
)
_SIZE = flags.DEFINE_enum(
  "size", "small", zoo.SIZES, "Size of the zoo's models."
)
_BATCH = flags.DEFINE_integer("batch", 8, "Examples of a step of the zoo.")
_RUNS = flags.DEFINE_integer("runs", 6, "Runs of each that are timed.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_NUM_WARM_UP = 2
# While a CPU arranges a byte of a factor, it could multiply so much.
_FLOPS_PER_PACKED_BYTE = cost.CPU.fp32_flops_per_s / cost.CPU.packed_bytes_per_s
# They run their computations; the kernels in these are counted.
_CALLERS = frozenset({"call", "conditional", "while"})


@dataclasses.dataclass
class _Kind:
  """All kernels of one kind, in one run.

  Attributes:
    kernels: How many run.
    measured_s: What they take.
    estimated_s: What they should take.
    traffic_bytes: What they read and write.
    flops: Of products and convolutions in loops.
    transcendental: Evaluations of transcendental functions.
  """

  kernels: float = 0.0
  measured_s: float = 0.0
  estimated_s: float = 0.0
  traffic_bytes: float = 0.0
  flops: float = 0.0
  transcendental: float = 0.0


def _steps() -> Iterator[tuple[str, Any, Callable[[], tuple[Any, ...]]]]:
  """Yields names, jitted steps, and what makes arguments of a run."""
  if _HELD_OUT.value:
    for name in _MODELS.value or sorted(held_out.STEPS):
      step = held_out.STEPS[name]()
      jitted = jax.jit(step.function, **step.jit_kwargs)
      # Keras gives its own variables, which would be donated once and for all.
      yield name, jitted, lambda s=step: jax.tree.map(jnp.array, s.make_args())
    return
  for name in _MODELS.value or sorted(zoo.MODELS):
    built = zoo.build(name, batch=_BATCH.value, size=_SIZE.value)
    jitted = jax.jit(built.function, **built.jit_kwargs)
    yield name, jitted, lambda built=built: zoo.concrete(built)


def _run(compiled: Callable[..., Any], args: tuple[Any, ...]) -> float:
  """Returns the wall seconds of one run; arguments may be donated."""
  jax.block_until_ready(args)
  start = time.perf_counter()
  jax.block_until_ready(compiled(*args))
  return time.perf_counter() - start


def _trace(
  compiled: Callable[..., Any], make_args: Callable[[], tuple[Any, ...]]
) -> dict[str, list[float]]:
  """Returns the seconds of all events of traced runs, by name."""
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0
  runs = [make_args() for _ in range(_RUNS.value)]
  with tempfile.TemporaryDirectory() as folder:
    jax.profiler.start_trace(folder, profiler_options=options)
    try:
      for args in runs:
        _run(compiled, args)
    finally:
      jax.profiler.stop_trace()
    (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(path))
    events = collections.defaultdict(list)
    for plane in data.planes:
      for line in plane.lines:
        for event in line.events:
          events[event.name].append(event.duration_ns / 1e9)
  return events


def _kind(flops: cost.Flops, strided_bytes: float) -> str:
  if flops.looped:
    return "looped"
  multiplied = sum(flops.products.values())
  if multiplied:
    is_small = multiplied < _FLOPS_PER_PACKED_BYTE * flops.packed_bytes
    return "small products" if is_small else "products"
  if strided_bytes:
    return "strided"
  return "transcendental" if flops.transcendental else "other"


def _scheduled(module: Module) -> Iterator[Instruction]:
  for computation_id in module.scheduled_ids:
    for instruction in module.by_id[computation_id].instructions:
      if instruction.opcode not in _CALLERS:
        yield instruction


def _kinds(module: Module, events: dict[str, list[float]]) -> dict[str, _Kind]:
  """Returns what ran, by kind."""
  seconds = cost.instruction_seconds(module, cost.CPU)
  flop_counter = cost.FlopCounter(module)
  traffic = cost.TrafficCounter(module)
  kinds = collections.defaultdict(_Kind)
  for instruction in _scheduled(module):
    taken = events.get(instruction.name)
    if not taken or not seconds[instruction.id]:
      continue
    flops = flop_counter.count(instruction)
    times = len(taken) / _RUNS.value
    kind = kinds[_kind(flops, traffic.strided(instruction).num_bytes)]
    kind.kernels += times
    kind.measured_s += times * statistics.median(taken)
    kind.estimated_s += times * seconds[instruction.id]
    kind.traffic_bytes += times * traffic.count(instruction)
    kind.flops += times * (flops.looped + sum(flops.products.values()))
    kind.transcendental += times * flops.transcendental
  return kinds


def main(_: list[str]) -> None:
  for name, jitted, make_args in _steps():
    compiled = jitted.lower(*make_args()).compile()
    memory: Any = compiled.memory_analysis()
    kept = kept_arena.keep(compiled, strict=True)
    rounds = [
      (_run(compiled, make_args()), _run(kept, make_args()))
      for _ in range(_NUM_WARM_UP + _RUNS.value)
    ][_NUM_WARM_UP:]
    kinds = _kinds(final_module(compiled), _trace(kept, make_args))
    row = {
      "step": name,
      "held_out": _HELD_OUT.value,
      "temp_bytes": memory.temp_size_in_bytes,
      "wall_s": statistics.median(mapped for mapped, _ in rounds),
      "kept_s": statistics.median(kept for _, kept in rounds),
      "mapping_s": statistics.median(m - k for m, k in rounds),
      "measured_s": sum(k.measured_s for k in kinds.values()),
      "estimated_s": sum(k.estimated_s for k in kinds.values()),
      "kinds": {key: dataclasses.asdict(k) for key, k in kinds.items()},
      "versions": versions("jax", "jaxlib", "jaxmem"),
    }
    emit_row(row, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
