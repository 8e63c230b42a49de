"""Synthetic graphs and placement problems, for benchmarks and tests."""

import random

from jaxmem import graph
from jaxmem.placement import Buffer, Problem


def train_step(num_buffers: int, seed: int) -> Problem:
  """Draws a forward and a backward pass of about so many buffers.

  Per layer: an activation that is kept, scratch, a gradient that the layer
  before takes over, and an update that lives on.
  """
  generator = random.Random(seed)
  num_layers = num_buffers // 4
  last = 6 * num_layers + 3
  buffers = []
  for layer in range(num_layers):
    forward, backward = 3 * layer, 3 * (2 * num_layers - layer)
    activation = 4096 * generator.randint(1, 16)
    rows = {
      "activation": (activation, forward, backward + 2),
      "scratch": (512 * generator.randint(1, 64), forward, forward + 2),
      "gradient": (activation, backward - 2, backward + 2),
      "update": (1024 * generator.randint(1, 16), backward, last),
    }
    buffers += [
      Buffer(name=f"{k} {layer}", size_bytes=s, lower=lower, upper=upper)
      for k, (s, lower, upper) in rows.items()
    ]
  return Problem(tuple(buffers))


def random_graph(num_nodes: int, seed: int) -> graph.Graph:
  """Draws a graph without any structure: each node reads up to three others."""
  generator = random.Random(seed)
  reads = [
    sorted({generator.randrange(max(v - 12, 0), v) for _ in range(3)})
    if v
    else []
    for v in range(num_nodes)
  ]
  touchers: list[list[int]] = [[v] for v in range(num_nodes)]
  for v, sources in enumerate(reads):
    for source in sources:
      touchers[source].append(v)
  return graph.Graph(
    nodes=tuple(
      graph.Node(name=f"n{v}", predecessors=tuple(r))
      for v, r in enumerate(reads)
    ),
    buffers=tuple(
      graph.Buffer(
        name=f"b{v}",
        size_bytes=64 * generator.randint(1, 64),
        touchers=tuple(t),
        definer=v,
      )
      for v, t in enumerate(touchers)
    ),
  )
