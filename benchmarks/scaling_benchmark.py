"""How the planner's time grows with the number of nodes.

A synthetic train step, forward with saved activations, backward, all updates
last, is planned at growing sizes. Prints one JSON row per size, and a last one
with the slope of seconds over nodes in log-log: 1 means linear.

  python -m benchmarks.scaling_benchmark --sizes=1000,10000,100000
"""

import json
import platform
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import app, flags

from jaxmem.graph import Buffer, Graph, Node, liveness
from jaxmem.order import plan_order

_SIZES = flags.DEFINE_list(
  "sizes", ["1000", "3000", "10000", "30000", "100000"], "Numbers of nodes."
)
_PROVE = flags.DEFINE_bool("prove", False, "Whether to spend more on proofs.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the buffer sizes.")

_NODES_PER_LAYER = 8


def train_step(num_nodes: int, seed: int) -> Graph:
  """Builds a step of about `num_nodes` nodes, in a framework's order."""
  rng = random.Random(seed)
  num_layers = max(1, num_nodes // _NODES_PER_LAYER)
  values = [*_values(num_layers, rng)]
  touchers: list[list[int]] = [[index] for index in range(len(values))]
  for index, (_, _, reads) in enumerate(values):
    for read in reads:
      touchers[read].append(index)
  nodes = [Node(name=name, predecessors=reads) for name, _, reads in values]
  buffers = [
    Buffer(
      name=name,
      size_bytes=size_bytes,
      touchers=tuple(touchers[index]),
      definer=index,
      live_at_end=name.startswith("update"),
    )
    for index, (name, size_bytes, _) in enumerate(values)
  ]
  return Graph(nodes=tuple(nodes), buffers=tuple(buffers))


def _values(
  num_layers: int, rng: random.Random
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
  """Yields each node's name, output bytes and what it reads."""
  sizes = [rng.randint(4, 40) << 10 for _ in range(num_layers)]
  weights = [rng.randint(2, 120) << 10 for _ in range(num_layers)]
  yield "input", 8 << 10, ()
  value = 0
  for layer, size_bytes in enumerate(sizes):
    first = 1 + 3 * layer
    yield f"linear{layer}", size_bytes, (value,)
    yield f"mask{layer}", size_bytes // 4, (first,)
    yield f"activation{layer}", size_bytes, (first, first + 1)
    value = first + 2
  gradient = 1 + 3 * num_layers
  yield "loss", 4, (value,)
  scaled = []
  for layer in reversed(range(num_layers)):
    first, saved = 1 + 3 * layer, 3 * layer
    masked = gradient + 1
    yield f"masked{layer}", sizes[layer], (first + 1, gradient)
    yield f"weight{layer}", weights[layer], (saved, masked)
    yield f"scaled{layer}", weights[layer], (masked + 1,)
    yield f"gradient{layer}", sizes[layer], (first, masked)
    scaled.append(masked + 2)
    gradient = masked + 3
  for layer, index in enumerate(scaled):
    yield f"update{layer}", 4, (index,)


def _measure(num_nodes: int) -> dict[str, Any]:
  effort = "prove" if _PROVE.value else "normal"
  graph = train_step(num_nodes, _SEED.value)
  start = time.perf_counter()
  result = plan_order(graph, effort=effort)
  seconds = time.perf_counter() - start
  baseline = liveness.peak_bytes(graph, range(graph.num_nodes))
  return {
    "benchmark": "scaling",
    "num_nodes": graph.num_nodes,
    "effort": effort,
    "planner_s": round(seconds, 4),
    "baseline_bytes": baseline,
    "peak_bytes": result.peak_bytes,
    "lower_bound_bytes": result.lower_bound_bytes,
    "status": result.status,
    "num_passes": result.num_passes,
    "python": platform.python_version(),
    "machine": platform.machine(),
  }


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Expected no arguments, got {argv[1:]}.")
  _measure(200)  # Warm-up.
  rows = []
  for size in _SIZES.value:
    rows.append(_measure(int(size)))
    print(json.dumps(rows[-1]), flush=True)
  if len(rows) > 1:
    sizes = np.log([row["num_nodes"] for row in rows])
    seconds = np.log([row["planner_s"] for row in rows])
    slope = float(np.polyfit(sizes, seconds, 1)[0])
    print(json.dumps({"benchmark": "scaling", "slope": round(slope, 3)}))


if __name__ == "__main__":
  app.run(main)
