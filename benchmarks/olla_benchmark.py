"""OLLA's experiments: order, addresses, both, against a caching allocator.

Eleven models at batch 1 and 32. The baseline is the program's own order with
reference counting, under PyTorch's caching allocator (simulated). Prints a JSON
row per case and, last, what is said of all of them; nothing is compiled or run.
Figures refer to Steiner et al., 2022; docs/olla.md shows the rows.

    python -m benchmarks.olla_benchmark --output=benchmarks/results/olla.jsonl
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from absl import app, flags

from benchmarks import olla_models
from benchmarks.row_output import emit_row, versions
from jaxmem import order, placement
from jaxmem.experimental import allocators, olla
from jaxmem.experimental.allocators import Caching, CachingHeap, Device
from jaxmem.graph import Graph, peak_bytes

_MODELS = flags.DEFINE_list("models", [], "Of the eleven; all if empty.")
_BATCHES = flags.DEFINE_list("batches", ["1", "32"], "Examples per step.")
_SETS = flags.DEFINE_list("sets", [*olla_models.SETS], "Which variants.")
_EFFORT = flags.DEFINE_enum(
  "effort", "normal", ["fast", "normal", "prove"], "Effort of the order search."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

# The paper's claims are for graphs of about so many nodes.
_MANY_NODES = 1500
# After how many steps the caching allocator is looked at again.
_NUM_STEPS = 4


def measure(model: str, batch: int, variant: str) -> dict[str, Any]:
  """Returns the row of one model."""
  step = olla_models.build(model, batch, variant)
  graph = olla_models.build_graph(step)
  program_order = tuple(range(graph.num_nodes))
  row = {
    "set": variant,
    "model": model,
    "batch": batch,
    "num_params": step.num_params,
    "num_nodes": graph.num_nodes,
    "num_buffers": graph.num_buffers,
    "weight_bytes": olla_models.weight_bytes(graph.buffers),
    "program_peak_bytes": peak_bytes(graph, program_order),
  }
  planned, order_row = _plan_order(graph)
  return (
    row
    | order_row
    | _plan_addresses(graph, planned)
    | _allocate(graph, program_order, "program")
    | _allocate(graph, planned, "planned")
  )


def _plan_order(graph: Graph) -> tuple[tuple[int, ...], dict[str, Any]]:
  """Figures 7, 9 and 10."""
  start_s = time.process_time()
  # Close to the program, a profile is flat, and a flat one packs badly.
  effort = cast(Any, _EFFORT.value)
  found = order.plan_order(graph, effort=effort, near_initial=False)
  return found.order, {
    "effort": _EFFORT.value,
    "order_s": round(time.process_time() - start_s, 3),
    "peak_bytes": found.peak_bytes,
    "lower_bound_bytes": found.lower_bound_bytes,
    "status": found.status,
    "method": found.method,
  }


def _plan_addresses(graph: Graph, planned: Sequence[int]) -> dict[str, Any]:
  """Figures 11 and 12."""
  start_s = time.process_time()
  problem = olla.address_problem(graph, planned)
  solution = placement.place(problem)
  seconds = time.process_time() - start_s
  placement.validate(problem, solution)
  return {
    "address_s": round(seconds, 3),
    "height_bytes": solution.height_bytes,
    "address_method": solution.method,
    "address_bound_bytes": solution.lower_bound_bytes,
  }


def _allocate(graph: Graph, run: Sequence[int], key: str) -> dict[str, Any]:
  """Figures 8 and 14: PyTorch's allocator under an order."""
  trace = allocators.from_graph(graph, run, inputs="allocator")
  result = Caching().run(trace)
  allocators.check_result(trace, result)
  reserved = result.reserved_bytes
  return {
    f"{key}_reserved_bytes": reserved,
    f"{key}_fragmentation": round(1 - trace.live_peak_bytes / reserved, 4),
    f"{key}_repeated_reserved_bytes": _reserved_bytes(trace, _NUM_STEPS),
    f"{key}_num_calls": len(trace.events),
    f"{key}_caching_s": _seconds(lambda: _replay_caching(trace)),
    f"{key}_arena_s": _seconds(lambda: _replay_arena(trace)),
  }


def _reserved_bytes(trace: allocators.Trace, num_steps: int) -> int:
  """Returns what is reserved after some steps; the state stays in place."""
  device = Device("", len(trace.events), None)
  heap = CachingHeap(device)
  blocks = {}
  for _ in range(num_steps):
    for kind, buffer, size_bytes, _ in trace.events:
      if kind == "free":
        heap.free(*blocks.pop(buffer))
      elif buffer not in blocks:
        blocks[buffer] = heap.allocate("", size_bytes)
    for buffer in [*blocks]:
      if not trace.buffers[buffer].live_at_start:
        heap.free(*blocks.pop(buffer))
  return device.reserved_bytes


def _replay_caching(trace: allocators.Trace) -> None:
  heap = CachingHeap(Device("", len(trace.events), None))
  blocks = {}
  for kind, buffer, size_bytes, _ in trace.events:
    if kind == "alloc":
      blocks[buffer] = heap.allocate("", size_bytes)
    else:
      heap.free(*blocks.pop(buffer))


def _replay_arena(trace: allocators.Trace) -> None:
  """The same calls with planned addresses: a sum, and nothing to free."""
  base, offsets = 1 << 40, [0] * len(trace.buffers)
  for kind, buffer, _, _ in trace.events:
    if kind == "alloc":
      _ = base + offsets[buffer]


def _seconds(function: Callable[[], None]) -> float:
  start_s = time.process_time()
  function()
  return round(time.process_time() - start_s, 6)


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """Returns what the paper says of all models, and what must hold of ours."""
  large = [r for r in rows if r["num_nodes"] >= _MANY_NODES] or rows
  gaps = [r["peak_bytes"] / r["lower_bound_bytes"] - 1 for r in rows]
  lost = [1 - r["peak_bytes"] / r["height_bytes"] for r in rows]
  return {
    "set": rows[0]["set"],
    "batch": rows[0]["batch"],
    "summary": len(rows),
    "order_saving": _mean(rows, "peak_bytes", "program_peak_bytes"),
    "caching_fragmentation": round(
      statistics.mean(r["program_fragmentation"] for r in rows), 4
    ),
    "both_saving": _mean(rows, "height_bytes", "program_reserved_bytes"),
    "largest_order_gap": round(max(gaps), 5),
    "largest_fragmentation": round(max(lost), 5),
    "num_without_fragmentation": sum(x == 0 for x in lost),
    "median_order_s": statistics.median(r["order_s"] for r in rows),
    "median_address_s": statistics.median(r["address_s"] for r in rows),
    "max_order_s": max(r["order_s"] for r in rows),
    "max_address_s": max(r["address_s"] for r in rows),
    "num_large": len(large),
    "large_median_order_s": statistics.median(r["order_s"] for r in large),
    "large_median_address_s": statistics.median(r["address_s"] for r in large),
  }


def _mean(rows: Sequence[dict[str, Any]], part: str, whole: str) -> float:
  return round(statistics.mean(1 - r[part] / r[whole] for r in rows), 4)


def main(argv: list[str]) -> None:
  """Measures all cases."""
  del argv
  measured_with = versions("jax", "jaxmem", "python")
  for variant in _SETS.value:
    for batch in map(int, _BATCHES.value):
      rows = []
      for model in _MODELS.value or olla_models.PUBLISHED:
        rows.append(measure(model, batch, variant))
        emit_row(rows[-1] | {"versions": measured_with}, _OUTPUT.value)
      emit_row(summarize(rows) | {"versions": measured_with}, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
