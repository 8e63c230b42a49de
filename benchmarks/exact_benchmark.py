"""Where CP-SAT proves an order optimal, and where only it does.

Plans train steps of growing depth, as graphs of jaxprs ("jaxpr", with XLA's
in-place operations, and "eager", without) and of modules compiled for the CPU
("hlo"), and random graphs, contracted: by the search with its minimum cuts
alone, by destructive probing, and by three programs of CP-SAT, all from the
search's order and bound. Prints a JSON row per graph; nothing is run.

    python -m benchmarks.exact_benchmark --output=benchmarks/results/exact.jsonl
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
from absl import app, flags

from benchmarks import exact_models
from benchmarks.row_output import emit_row, versions
from benchmarks.synthetic import random_graph
from jaxmem.experimental import olla
from jaxmem.order import (
  CpSatOrderer,
  MinCutSearch,
  ProbingProver,
  contract,
  unchanged,
)
from jaxmem.solver import cpsat

_SOURCES = flags.DEFINE_list(
  "sources", ["eager", "jaxpr", "hlo", "random"], "Kinds of graphs."
)
_DEPTHS = flags.DEFINE_list(
  "depths", ["1", "2", "3", "4", "6", "8", "12"], "Layers."
)
_LIMIT = flags.DEFINE_float("limit", 0.5, "Deterministic time of a program.")
_MAX_NODES = flags.DEFINE_integer("max_nodes", 200, "Contracted, for CP-SAT.")
_MAX_FLOWS = flags.DEFINE_integer("max_flows", 5000, "Of the probing.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


# Of the random graphs, in place of models.
_SEEDS = ("0", "1", "2")


def measure(model: str, depth: int, source: str) -> dict[str, Any]:
  """Returns the row of one graph; random ones have 10 nodes for each layer."""
  if source == "random":
    whole = random_graph(10 * depth, seed=int(model))
  else:
    whole = exact_models.build_graph(exact_models.build(model, depth), source)
  contraction = contract(whole)
  graph = contraction.graph
  start_s = time.process_time()
  given = contraction.shrink(tuple(range(whole.num_nodes)))
  found = MinCutSearch().improve(graph, unchanged(graph, given, 0))
  seconds = time.process_time() - start_s
  order, bound = found.order, found.lower_bound_bytes
  row: dict[str, Any] = {
    "source": source,
    "model": model,
    "depth": depth,
    "num_nodes": whole.num_nodes,
    "num_contracted": graph.num_nodes,
    "num_shares": len(graph.arrays.shares),
    "search": _answer(found.peak_bytes, bound, seconds),
  }
  if bound == found.peak_bytes:
    return row
  start_s = time.process_time()
  probed = ProbingProver(max_flows=_MAX_FLOWS.value).improve(graph, found)
  row["probing"] = _answer(
    found.peak_bytes,
    probed.lower_bound_bytes,
    time.process_time() - start_s,
  )
  if graph.num_nodes > _MAX_NODES.value:
    return row
  row["done"] = _solve(
    lambda: _bytes(
      CpSatOrderer(
        max_nodes=_MAX_NODES.value, max_deterministic_time=_LIMIT.value
      ).improve(graph, found)
    )
  )
  # OLLA's edges cannot share: its programs are about the graph without, whose
  # optimum may be higher.
  if not row["num_shares"]:
    for formulation in ("boolean", "interval"):
      options = olla.ProgramOptions(
        formulation=formulation, max_deterministic_time=_LIMIT.value
      )
      row[formulation] = _solve(
        lambda options=options: _values(olla.solve_order(graph, order, options))
      )
  return row


def _bytes(result: Any) -> tuple[int, int]:
  return result.peak_bytes, result.lower_bound_bytes


def _values(solution: Any) -> tuple[int, int]:
  return solution.value_bytes, solution.lower_bound_bytes


def _solve(run: Callable[[], tuple[int, int]]) -> dict[str, Any]:
  start_s = time.process_time()
  with _count_work() as work:
    peak_bytes, bound_bytes = run()
  answer = _answer(peak_bytes, bound_bytes, time.process_time() - start_s)
  return answer | {"deterministic": round(sum(work), 3)}


def _answer(peak_bytes: int, bound: int, seconds: float) -> dict[str, Any]:
  return {
    "peak_bytes": peak_bytes,
    "lower_bound_bytes": bound,
    "is_proven": peak_bytes == bound,
    "cpu_s": round(seconds, 2),
  }


@contextlib.contextmanager
def _count_work() -> Iterator[list[float]]:
  """Collects the deterministic time of every call of CP-SAT."""
  work: list[float] = []
  solve = cpsat.solve

  def counted(solver, model):
    status = solve(solver, model)
    work.append(solver.response_proto.deterministic_time)
    return status

  with mock.patch.object(cpsat, "solve", counted):
    yield work


def main(argv: list[str]) -> None:
  """Measures all graphs."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  measured_with = versions("jax", "jaxmem", "python")
  for source in _SOURCES.value:
    for model in _SEEDS if source == "random" else exact_models.MODELS:
      for depth in map(int, _DEPTHS.value):
        row = measure(model, depth, source) | {"limit": _LIMIT.value}
        emit_row(row | {"versions": measured_with}, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
