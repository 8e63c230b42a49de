"""Coarse operators: the equations of a layer as one node.

Frameworks of the documents' time run convolutions, normalizations and
activations as one operator each, forward and backward. The name scopes of a
jaxpr, which flax and `jax.named_scope` set, tell which equations these are.
"""

from __future__ import annotations

from jaxmem.experimental.jaxpr_order import JaxprGraph
from jaxmem.graph import Buffer, Graph, Node, topological_order
from jaxmem.jaxpr import internals


def by_scope(program: JaxprGraph) -> Graph:
  """Returns the graph of a program with one node for each name scope.

  The scopes include the transforms, so that forward and backward are apart. An
  equation begins another node where joining its scope's would make a cycle.

  Args:
    program: The program, in finer nodes.

  Returns:
    Its nodes are in the order of their first equations, as far as precedences
    allow. Values that one node alone touches are left out, as what is within an
    operator; of its equations' extra bytes the largest remain. A pair that may
    share does so where one equation alone reads the operand.
  """
  groups = _groups(program)
  group_of = {node: g for g, nodes in enumerate(groups) for node in nodes}
  before = _predecessors(program.graph, groups, group_of)
  order = topological_order([sorted(b) for b in before])
  rank = {group: index for index, group in enumerate(order)}
  buffers, kept = [], {}
  for index, buffer in enumerate(program.graph.buffers):
    coarse = _coarse_buffer(buffer, group_of, rank)
    if coarse is not None:
      kept[index] = len(buffers)
      buffers.append(coarse)
  shares = _shares(program.graph, groups, kept)
  nodes = [
    Node(
      name=program.graph.nodes[groups[group][0]].name,
      predecessors=tuple(sorted(rank[p] for p in before[group])),
      extra_bytes=max(
        program.graph.nodes[n].extra_bytes for n in groups[group]
      ),
      shares=tuple(shares[group]),
      source=program.graph.nodes[groups[group][0]].source,
    )
    for group in order
  ]
  return Graph(nodes=tuple(nodes), buffers=tuple(buffers))


def _groups(program: JaxprGraph) -> list[list[int]]:
  groups: list[list[int]] = []
  group_of: dict[int, int] = {}
  newest: dict[str, int] = {}
  successors: list[set[int]] = []
  for index, eqn in enumerate(program.closed_jaxpr.eqns):
    scope = str(internals.name_stack(eqn))
    group = newest.get(scope)
    before = {group_of[p] for p in program.graph.nodes[index].predecessors}
    if group is None or _leads_to(group, before - {group}, successors):
      group = newest[scope] = len(groups)
      groups.append([])
      successors.append(set())
    groups[group].append(index)
    group_of[index] = group
    for other in before - {group}:
      successors[other].add(group)
  return groups


def _leads_to(start: int, ends: set[int], successors: list[set[int]]) -> bool:
  """Whether there is a path to any of the ends."""
  seen, stack = {start}, [start]
  while stack:
    for group in successors[stack.pop()] - seen:
      if group in ends:
        return True
      seen.add(group)
      stack.append(group)
  return False


def _predecessors(
  graph: Graph, groups: list[list[int]], group_of: dict[int, int]
) -> list[set[int]]:
  return [
    {group_of[p] for n in nodes for p in graph.nodes[n].predecessors} - {group}
    for group, nodes in enumerate(groups)
  ]


def _coarse_buffer(
  buffer: Buffer, group_of: dict[int, int], rank: dict[int, int]
) -> Buffer | None:
  touchers = {rank[group_of[t]] for t in buffer.touchers}
  is_outside = buffer.live_at_start or buffer.live_at_end
  if len(touchers) < 2 and not is_outside:
    return None
  definer = buffer.definer
  return Buffer(
    name=buffer.name,
    size_bytes=buffer.size_bytes,
    touchers=tuple(sorted(touchers)),
    definer=None if definer is None else rank[group_of[definer]],
    live_at_start=buffer.live_at_start,
    live_at_end=buffer.live_at_end,
    source=buffer.source,
  )


def _shares(
  graph: Graph, groups: list[list[int]], kept: dict[int, int]
) -> list[list[tuple[int, int]]]:
  found: list[list[tuple[int, int]]] = []
  for nodes in groups:
    members = set(nodes)
    found.append(
      [
        (kept[operand], kept[output])
        for node in nodes
        for operand, output in graph.nodes[node].shares
        if operand in kept
        and output in kept
        and members.intersection(graph.buffers[operand].touchers) == {node}
      ]
    )
  return found
