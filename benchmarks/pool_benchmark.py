"""What stays outside of a fast pool: greedy against CP-SAT.

The buffers of train steps in the order that is planned for them, and random
ones, with a pool that holds a part of the bytes live at once; what is left out
costs its bytes. Prints a JSON row for each; nothing is run.

    python -m benchmarks.pool_benchmark --output=benchmarks/results/pools.jsonl
"""

import random
import time
from typing import Any

from absl import app, flags

from benchmarks import exact_models
from benchmarks.row_output import emit_row, versions
from jaxmem import order
from jaxmem.experimental import olla
from jaxmem.placement import (
  Buffer,
  Problem,
  Table,
  fill_pools,
  validate_pools,
)

_MODELS = flags.DEFINE_list(
  "models", ["mlp", "wired", "attention", "convolutions", "random"], "Kinds."
)
_DEPTHS = flags.DEFINE_list("depths", ["1", "2", "3"], "Layers.")
_PARTS = flags.DEFINE_list(
  "parts", ["0.3", "0.6", "0.9"], "Capacity, as a part of the bytes live."
)
_LIMIT = flags.DEFINE_float("limit", 0.1, "Deterministic time of a program.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


def build_problem(model: str, depth: int) -> Problem:
  """Returns the buffers of a train step, or 40 random ones for each layer."""
  if model != "random":
    step = exact_models.build(model, depth)
    graph = exact_models.build_graph(step, "eager")
    return olla.address_problem(graph, order.plan_order(graph).order)
  generator = random.Random(depth)
  buffers = []
  for i in range(40 * depth):
    lower = generator.randrange(40)
    buffers.append(
      Buffer(
        name=str(i),
        size_bytes=generator.randint(1, 1000),
        lower=lower,
        upper=lower + generator.randint(1, 12),
      )
    )
  return Problem(tuple(buffers))


def measure(problem: Problem, part: float) -> dict[str, Any]:
  """Returns the row of one capacity."""
  live_bytes = Table(problem).max_live_bytes
  capacities = [int(part * live_bytes)]
  start_s = time.process_time()
  greedy = fill_pools(problem, capacities, max_deterministic_time=0)
  greedy_s = time.process_time() - start_s
  start_s = time.process_time()
  found = fill_pools(problem, capacities, max_deterministic_time=_LIMIT.value)
  seconds = time.process_time() - start_s
  validate_pools(problem, capacities, found)
  return {
    "num_buffers": len(problem.buffers),
    "live_bytes": live_bytes,
    "part": part,
    "total_bytes": sum(b.size_bytes for b in problem.buffers),
    "greedy_bytes": greedy.cost,
    "greedy_s": round(greedy_s, 3),
    "outside_bytes": found.cost,
    "bound_bytes": found.lower_bound,
    "status": found.status,
    "method": found.method,
    "cpu_s": round(seconds, 2),
  }


def main(argv: list[str]) -> None:
  """Measures all problems."""
  del argv
  measured_with = versions("jax", "jaxmem", "python")
  for model in _MODELS.value:
    for depth in map(int, _DEPTHS.value):
      problem = build_problem(model, depth)
      for part in map(float, _PARTS.value):
        row = {"model": model, "depth": depth, **measure(problem, part)}
        row |= {"limit": _LIMIT.value, "versions": measured_with}
        emit_row(row, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
