"""Traces written as a few numbers, and results read the same way."""

import random_graphs

from jaxmem.experimental import allocators
from jaxmem.graph import Buffer


def make_trace(*values):
  """Buffers (bytes, first step, last step); a node for each step."""
  num_steps = 1 + max(last for _, _, last in values)
  buffers = [
    Buffer(
      name=f"b{index}",
      size_bytes=size,
      touchers=tuple(sorted({first, last})),
      definer=first,
    )
    for index, (size, first, last) in enumerate(values)
  ]
  before = [(step - 1,) if step else () for step in range(num_steps)]
  return allocators.from_graph(random_graphs.build(before, buffers))


def places_of(result):
  """Returns (segment, offset) of each buffer."""
  return [tuple(place) for place in result.placements]
