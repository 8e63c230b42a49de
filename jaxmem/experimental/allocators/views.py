"""Parts of a value that need no memory of their own.

An extension in NNC's document: a tensor may stand for a sub-range of another
one's memory. It is a change of the graph, so that every allocator can use it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jax.extend import core

from jaxmem.experimental.jaxpr_order import JaxprGraph
from jaxmem.graph import Graph
from jaxmem.jaxpr import memory


class View(NamedTuple):
  """A buffer that is a part of another one.

  Attributes:
    base: Which buffer of the graph it is a part of.
    offset_bytes: Where in it.
  """

  base: int
  offset_bytes: int


def slice_views(program: JaxprGraph) -> dict[int, View]:
  """Returns the slices of a program that are contiguous in what they slice.

  Slices of an argument count, slices that are outputs do not.

  Returns:
    Buffer of the graph -> what it is a part of, never a view itself.
  """
  buffers = program.graph.buffers
  defined: dict[int, list[int]] = {}
  for index, buffer in enumerate(buffers):
    if buffer.definer is not None:
      defined.setdefault(buffer.definer, []).append(index)
  views: dict[int, View] = {}
  for node, eqn in enumerate(program.closed_jaxpr.eqns):
    results = defined.get(node, [])
    if len(results) != len(eqn.outvars) or not results:
      continue
    operand = _operand(program, node, eqn)
    for result, offset_bytes in zip(results, _offsets(eqn), strict=False):
      if operand is not None and not buffers[result].live_at_end:
        base = views.get(operand, View(operand, 0))
        start = base.offset_bytes + offset_bytes
        views[result] = View(base.base, start)
  return views


def _operand(program: JaxprGraph, node: int, eqn: core.JaxprEqn) -> int | None:
  """Returns the buffer of the size of the operand, if there is just one."""
  size_bytes = memory.size_bytes(eqn.invars[0].aval) if eqn.invars else 0
  found = [
    b
    for b in program.graph.buffers_of_node[node]
    if program.graph.buffers[b].definer != node
    and program.graph.buffers[b].size_bytes == size_bytes
  ]
  return found[0] if len(found) == 1 else None


def _offsets(eqn: core.JaxprEqn) -> Iterator[int]:
  """Yields where the results of a slice or a split begin, in bytes."""
  if eqn.primitive.name == "slice":
    shape: Any = getattr(eqn.invars[0].aval, "shape", ())
    starts = eqn.params["start_indices"]
    sizes = getattr(eqn.outvars[0].aval, "shape", ())
    if set(eqn.params["strides"] or (1,)) != {1}:
      return
    # Once a dimension is cut to more than one, those after it must be whole.
    is_cut = False
    for size, whole in zip(sizes, shape, strict=True):
      if is_cut and size != whole:
        return
      is_cut |= size > 1
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    start = sum(s * step for s, step in zip(starts, steps, strict=True))
    yield start * _item_bytes(eqn)
  elif eqn.primitive.name == "split":
    shape = getattr(eqn.invars[0].aval, "shape", ())
    axis = eqn.params["axis"]
    if math.prod(shape[:axis]) != 1:
      return
    start = 0
    for var in eqn.outvars:
      yield start
      start += memory.size_bytes(var.aval)


def _item_bytes(eqn: core.JaxprEqn) -> int:
  aval = eqn.outvars[0].aval
  shape: Any = getattr(aval, "shape", ())
  return memory.size_bytes(aval) // max(math.prod(shape), 1)


def with_views(graph: Graph, views: Mapping[int, View]) -> Graph:
  """Returns a graph in which views take no memory.

  What they are a part of is live as long as they are. The numbers of buffers
  stay.

  Args:
    graph: The program.
    views: See `slice_views`; none of a view.

  Raises:
    ValueError: If a view is larger than its base, is a part of a view, or is
      not made from its base.
  """
  touchers = [set(buffer.touchers) for buffer in graph.buffers]
  for index, view in views.items():
    _check(graph, views, index, view)
    touchers[view.base] |= touchers[index]
  read = {
    (toucher, view.base)
    for index, view in views.items()
    for toucher in graph.buffers[index].touchers
  }
  nodes = [
    dataclasses.replace(
      node,
      # Where a part is read too, nothing may be written over the whole.
      shares=tuple(pair for pair in node.shares if (n, pair[0]) not in read),
    )
    for n, node in enumerate(graph.nodes)
  ]
  buffers = [
    dataclasses.replace(
      buffer,
      size_bytes=0 if index in views else buffer.size_bytes,
      touchers=tuple(sorted(touchers[index])),
    )
    for index, buffer in enumerate(graph.buffers)
  ]
  return dataclasses.replace(graph, nodes=tuple(nodes), buffers=tuple(buffers))


def _check(
  graph: Graph, views: Mapping[int, View], index: int, view: View
) -> None:
  buffer, base = graph.buffers[index], graph.buffers[view.base]
  end = view.offset_bytes + buffer.size_bytes
  is_made_from_it = buffer.definer in base.touchers
  if (
    view.base in views
    or buffer.live_at_end
    or not is_made_from_it
    or not 0 <= view.offset_bytes <= end <= base.size_bytes
  ):
    raise ValueError(
      f"{buffer.name!r} must be made from and lie within {base.name!r}, no view"
      f" itself, and be no output; got bytes {view.offset_bytes} to {end} of"
      f" {base.size_bytes}."
    )
