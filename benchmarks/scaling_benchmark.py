"""What planning costs, by the number of instructions: order, limit, placement.

Steps that grow by their depth (`benchmarks.deep_steps`) are compiled for the
CPU up to their schedule. That is planned at each effort, once without a limit
and once with one (`--parts`), and the buffers of the planned order are placed
in one arena, all in CPU seconds of this process. What XLA itself takes to
compile a step is measured where that is bearable. Prints a JSON row per step
and size, and in the end a step's exponent: 1 means that the time is in
proportion to the size.

    python -m benchmarks.scaling_benchmark --output=rows.jsonl
    python -m benchmarks.scaling_benchmark --parts=limit,placement \
      --output=rows.jsonl
"""

import time
from typing import Any, cast

import jax
import numpy as np
from absl import app, flags
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import schedule
from jaxmem_hlo.module import Module

import jaxmem
from benchmarks import deep_steps
from benchmarks.row_output import emit_row, versions
from jaxmem.compiler import handling
from jaxmem.graph import from_hlo, live_ranges
from jaxmem.placement import Buffer, Problem, place
from jaxmem.planning import DecidedModules, ModulePlan, Request

_STEPS = flags.DEFINE_list("steps", list(deep_steps.STEPS), "Which steps.")
_SIZES = flags.DEFINE_list(
  "sizes",
  ["300", "1000", "3000", "10000", "30000", "100000"],
  "About how many instructions.",
)
_COMPILED = flags.DEFINE_integer(
  "compiled_size", 3500, "The largest size that XLA compiles to the end."
)
_PARTS = flags.DEFINE_list(
  "parts", ["order"], "What is planned: order, limit, placement."
)
_ROOM = flags.DEFINE_float(
  "room", 0.75, "The limit's temporaries, as a part of the planned order's."
)
_EFFORTS = flags.DEFINE_list("efforts", ["fast", "normal"], "Efforts.")
_ROUNDS = flags.DEFINE_integer(
  "rounds", 3, "Measurements below 20,000 instructions; the median counts."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


def _schedule(lowered: jax.stages.Lowered) -> tuple[bytes, float]:
  """Returns the scheduled module, and XLA's seconds until it was there."""
  shown: list[tuple[bytes, float]] = []

  def refuse(data: bytes, platform: str) -> bytes | None:
    del platform
    shown.append((data, time.process_time()))
    raise compiler_hook.CompileRefusedError("Only the schedule was wanted.")

  start = time.process_time()
  with handling(refuse) as options:
    try:
      lowered.compile(dict(options))
    except jax.errors.JaxRuntimeError:
      if not shown:
        raise
  data, end = shown[0]
  return data, end - start


def _plan(data: bytes, effort: str) -> tuple[ModulePlan, float]:
  """Returns the decision about a module, and the seconds that it took."""
  request = Request(options=jaxmem.Options(effort=cast(Any, effort)))
  start = time.process_time()
  planned, _ = request.answer(data, "cpu", DecidedModules())
  seconds = time.process_time() - start
  assert isinstance(planned.decision, ModulePlan)
  return planned.decision, seconds


def _compile_s(lowered: jax.stages.Lowered) -> float:
  start = time.process_time()
  lowered.compile()
  return time.process_time() - start


def _limit(data: bytes, effort: str) -> dict[str, Any]:
  """Returns what it takes to fit a limit, order and reading included."""
  request = Request(options=jaxmem.Options(effort=cast(Any, effort)))
  start = time.process_time()
  module, _ = request.read(data, "cpu")
  planner = request.planner(module, "cpu")
  fixed_bytes = planner.fixed_bytes
  room = int(_ROOM.value * (planner.total_bytes - fixed_bytes))
  found: dict[str, Any] = {"room_bytes": room}
  try:
    decision = planner.fit(fixed_bytes + room).decision
    found |= {
      "temp_bytes": decision.planned_bytes,
      "num_recomputed": len(decision.edits.recomputes),
      "extra": round(decision.extra_s / decision.step_s, 5),
    }
  except jaxmem.InfeasibleError as error:
    found |= {"smallest_bytes": error.smallest_bytes}
  seconds = time.process_time() - start
  return found | _cost(seconds, _num_instructions(data))


def _placement(data: bytes) -> dict[str, Any]:
  """Returns what it takes to place the buffers of the entry's planned order."""
  request = Request(options=jaxmem.Options())
  planned, _ = request.answer(data, "cpu", DecidedModules())
  module = planned.module
  graph = from_hlo(AssignmentModel(module, "cpu"), module.entry).graph
  ranges = live_ranges(graph, range(graph.num_nodes))
  problem = Problem(
    tuple(
      Buffer(name=str(n), size_bytes=b.size_bytes, lower=lower, upper=upper)
      for n, (b, (lower, upper)) in enumerate(
        zip(graph.buffers, ranges, strict=True)
      )
      if b.size_bytes
    )
  )
  start = time.process_time()
  solution = place(problem)
  return {
    "status": solution.status,
    "height_bytes": solution.height_bytes,
    "lower_bound_bytes": solution.lower_bound_bytes,
    "num_buffers": len(problem.buffers),
    **_cost(time.process_time() - start, len(problem.buffers)),
  }


def _cost(seconds: float, number: int) -> dict[str, float]:
  return {
    "seconds": round(seconds, 4),
    "us_each": round(1e6 * seconds / number, 1),
  }


def measure(name: str, size: int) -> list[dict[str, Any]]:
  """Compiles and plans one step of about `size` instructions.

  Returns:
    A row for each part that is asked for.
  """
  growing = deep_steps.STEPS[name]
  depth = max(1, round(size / growing.instructions_per_layer))
  step = growing.build(depth)
  args = jax.eval_shape(step.make_args)
  lowered = jax.jit(step.function, **step.jit_kwargs).lower(*args)
  data, schedule_s = _schedule(lowered)
  compile_s = _compile_s(lowered) if size <= _COMPILED.value else None
  known = {
    "step": name,
    "depth": depth,
    "module_bytes": len(data),
    "schedule_s": round(schedule_s, 3),
    "compile_s": compile_s and round(compile_s, 3),
    "versions": versions("jax", "jaxlib", "jaxmem", "python"),
  }
  rows = []
  if "order" in _PARTS.value:
    rows.append(known | _orders(data, size))
  if "limit" in _PARTS.value or "placement" in _PARTS.value:
    row = known | {"part": "edits", "num_instructions": _num_instructions(data)}
    if "limit" in _PARTS.value:
      row["limit"] = {e: _limit(data, e) for e in _EFFORTS.value}
    if "placement" in _PARTS.value:
      row["placement"] = _placement(data)
    rows.append(row)
  return rows


def _num_instructions(data: bytes) -> int:
  return schedule.Timeline(Module.from_bytes(data)).length


def _orders(data: bytes, size: int) -> dict[str, Any]:
  """Returns what planning the order takes at each effort."""
  rounds = _ROUNDS.value if size < 20_000 else 1
  efforts: dict[str, Any] = {}
  num_instructions = baseline_bytes = 0
  for effort in _EFFORTS.value:
    plans = [_plan(data, effort) for _ in range(rounds)]
    decision = plans[0][0]
    seconds = float(np.median([s for _, s in plans]))
    num_instructions = decision.num_instructions
    baseline_bytes = decision.baseline_bytes
    efforts[effort] = {
      "planning_s": round(seconds, 4),
      "us_per_instruction": round(1e6 * seconds / num_instructions, 1),
      "temp_bytes": decision.planned_bytes,
      "lower_bound_bytes": decision.lower_bound_bytes,
      "status": decision.status,
    }
  return {
    "num_instructions": num_instructions,
    "xla_temp_bytes": baseline_bytes,
    "efforts": efforts,
  }


def main(argv: list[str]) -> None:
  """Measures all steps at all sizes."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  measure(deep_steps.SMALLEST, 100)  # Imports and caches are not planning.
  for name in _STEPS.value:
    rows = []
    for size in map(int, _SIZES.value):
      if size <= deep_steps.STEPS[name].max_size:
        made = measure(name, size)
        rows += [row for row in made if "efforts" in row]
        for row in made:
          emit_row(row, _OUTPUT.value)
    for effort in _EFFORTS.value if len(rows) > 1 else ():
      sizes = np.log([row["num_instructions"] for row in rows])
      taken = [row["efforts"][effort]["planning_s"] for row in rows]
      exponent = np.polyfit(sizes, np.log(taken), 1)[0]
      print(f"{name}, {effort}: exponent {exponent:.2f}", flush=True)


if __name__ == "__main__":
  app.run(main)
