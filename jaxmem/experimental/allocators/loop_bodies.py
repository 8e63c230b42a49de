"""Loops as sub-graphs, of which the memory is planned like the rest.

An extension in NNC's document: the body of a loop is a graph planned by itself,
of which the memory is one more tensor of the graph around it. It is a change of
the graph, so that every allocator can use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxmem.experimental.allocators.trace import Allocator, from_graph
from jaxmem.experimental.jaxpr_order import JaxprGraph
from jaxmem.graph import Graph, peak_bytes


def with_planned_loops(program: JaxprGraph, allocator: Allocator) -> Graph:
  """Returns a program in which loops take what an allocator gives their bodies.

  Innermost first, each body is planned as a graph of its own. What that takes
  beyond the body's live bytes is added to the extra bytes of the loop.

  Args:
    program: The program.
    allocator: What plans the bodies.

  Raises:
    OutOfMemoryError: See `Allocator`.
  """
  nodes = [
    dataclasses.replace(
      node, extra_bytes=node.extra_bytes + _excess_bytes(callees, allocator)
    )
    for node, callees in zip(program.graph.nodes, program.callees, strict=True)
  ]
  return dataclasses.replace(program.graph, nodes=tuple(nodes))


def _excess_bytes(callees: Sequence[JaxprGraph], allocator: Allocator) -> int:
  excess = 0
  for callee in callees:
    graph = with_planned_loops(callee, allocator)
    trace = from_graph(graph, inputs="allocator")
    reserved_bytes = allocator.run(trace).reserved_bytes
    live_bytes = peak_bytes(callee.graph, callee.program_order)
    excess = max(excess, reserved_bytes - live_bytes)
  return excess
