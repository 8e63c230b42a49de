"""What compiling takes under `jaxmem.enable`, against jax.jit's.

    JAXMEM_CACHE_DIR="" python -m benchmarks.compile_cost_benchmark \\
      --output=benchmarks/results/compile_cost.jsonl

Each step of the zoo, in a process of its own, is traced, lowered and compiled
by turns: as it is, and with every compile planned, without a limit. A row has
wall and CPU seconds of both, pair by pair; beside them the planner's own, as
the records of `jaxmem.enable` tell. Nothing is executed.
"""

import concurrent.futures
import contextlib
import datetime
import multiprocessing
import os
import time
from typing import Any

import jax
from absl import app, flags
from jaxmem_hlo.buffers import schedule

import jaxmem
from benchmarks import compiled_programs, zoo
from benchmarks.row_output import emit_row, versions
from jaxmem import targets

_MODELS = flags.DEFINE_list("models", [], "Models of the zoo; all if empty.")
_TARGETS = flags.DEFINE_list("targets", ["cpu"], "Devices to compile for.")
_SIZE = flags.DEFINE_enum("size", "small", zoo.SIZES, "Size of the models.")
_BATCH = flags.DEFINE_integer("batch", 4, "Examples of a step.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Pairs of compiles of each step.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_WAYS = ("jit", "enabled")


class _Compiles:
  """Compiles of a step, by turns as it is and planned.

  Attributes:
    wall_s: Seconds of each compile, by way.
    cpu_s: CPU seconds, those of processes that the compiler starts included.
    planning_s: Wall seconds that planning took, of each planned compile.
    why_not: Why XLA's own plan would run; empty where a plan does.
    num_instructions: Length of the planned program's timeline.
  """

  def __init__(self, step: zoo.Step, target: str):
    self._step, self._target = step, target
    self.wall_s: dict[str, list[float]] = {way: [] for way in _WAYS}
    self.cpu_s: dict[str, list[float]] = {way: [] for way in _WAYS}
    self.planning_s: list[float] = []
    self.why_not = ""
    self.num_instructions = 0

  def run(self, way: str) -> None:
    """Traces, lowers and compiles the step once."""
    # So that both trace, in each round.
    jax.clear_caches()
    jitted = jax.jit(self._step.function, **self._step.jit_kwargs)
    options = dict(targets.compile_options(self._target))
    with contextlib.ExitStack() as stack:
      start = time.perf_counter(), _cpu_s()
      enabled = None
      if way == "enabled":
        enabled = stack.enter_context(jaxmem.enable(min_bytes=0))
      lowered = targets.lower(jitted, self._step.args, target=self._target)
      compiled = lowered.compile(options)
      self.wall_s[way].append(time.perf_counter() - start[0])
      self.cpu_s[way].append(_cpu_s() - start[1])
    if enabled is not None:
      (record,) = enabled.records
      self.planning_s.append(record.planning_s)
      self.why_not = record.why_not
      module = compiled_programs.final_module(compiled)
      self.num_instructions = schedule.Timeline(module).length


def _cpu_s() -> float:
  """Returns CPU seconds so far of this process and of those that it ended."""
  used = os.times()
  return used.user + used.system + used.children_user + used.children_system


def measure(
  model: str, target: str, size: str, batch: int, rounds: int
) -> dict[str, Any]:
  """Returns the row of a step; in a process that has compiled nothing yet."""
  jax.config.update("jax_enable_compilation_cache", False)
  # Something small in each way, so that the compiler and planner are loaded.
  small = _Compiles(zoo.build("alexnet", 1, size="tiny"), target)
  for way in _WAYS:
    small.run(way)
  found = _Compiles(zoo.build(model, batch, size=size), target)
  for i in range(rounds):
    for way in _WAYS if i % 2 else reversed(_WAYS):
      found.run(way)
  return {
    "model": model,
    "batch": batch,
    "size": size,
    "target": target,
    "num_instructions": found.num_instructions,
    "jit_wall_s": _rounded(found.wall_s["jit"]),
    "wall_s": _rounded(found.wall_s["enabled"]),
    "jit_cpu_s": _rounded(found.cpu_s["jit"]),
    "cpu_s": _rounded(found.cpu_s["enabled"]),
    "planning_s": _rounded(found.planning_s),
    "why_not": found.why_not,
    "date": datetime.date.today().isoformat(),
    "versions": versions("jax", "jaxlib", "jaxmem", "python"),
  }


def _rounded(seconds: list[float]) -> list[float]:
  return [round(each, 3) for each in seconds]


def main(argv: list[str]) -> None:
  """Measures all steps, each in a process of its own."""
  del argv
  settings = (_SIZE.value, _BATCH.value, _ROUNDS.value)
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(
    max_workers=1, mp_context=context, max_tasks_per_child=1
  ) as pool:
    for target in _TARGETS.value:
      for model in _MODELS.value or zoo.MODELS:
        row = pool.submit(measure, model, target, *settings).result()
        emit_row(row, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
