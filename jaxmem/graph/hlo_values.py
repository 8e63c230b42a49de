"""The values of a computation whose memory an order can make free."""

from __future__ import annotations

import itertools

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import UnsupportedModuleError, Value
from jaxmem_hlo.module import Computation

from jaxmem.graph.graph import Buffer
from jaxmem.graph.hlo_nodes import HloNodes


class HloValues:
  """The tracked values of a computation, and who touches them.

  Attributes:
    values: The values, in the order of the instructions that hold them.
    definers: Value -> the node that makes it; None for what is there before.
    touchers: Value -> the nodes that make or read it, ascending.
    followers: Pairs of a value and the next one in the same buffer.

  Args:
    model: The assignment model of the module.
    computation: One of its computations.
    nodes: The nodes of the computation.
  """

  def __init__(
    self, model: AssignmentModel, computation: Computation, nodes: HloNodes
  ):
    self._analysis = model.analysis
    self._computation = computation
    self._nodes = nodes
    trees = model.analysis.dataflow.trees
    self._results = set(trees[computation.root.id].values())
    self.values = self._tracked_values()
    self.definers = {v: self._definer_of(v) for v in self.values}
    self.touchers = {v: self._touchers_of(v) for v in self.values}
    self.followers = self._find_followers(model)

  def add_anti_dependencies(self) -> None:
    """Has whoever reads a buffer run before its next value is written.

    Raises:
      UnsupportedModuleError: If nothing writes a value that follows another.
    """
    for old, new in self.followers:
      writer = self.definers[new]
      if writer is None:
        raise UnsupportedModuleError(
          f"{self._computation.name}: {new!r} has no writer but follows"
          f" {old!r} in one buffer."
        )
      self.touchers[old] = tuple(
        n
        for n in self.touchers[old]
        if not self._nodes.is_completed_by(writer, n)
      )
      readers = {*self.touchers[old]} - {writer}
      self._nodes.predecessors[writer] |= readers

  def renumber(self, numbers: dict[int, int]) -> None:
    """Follows the nodes to new numbers, given as old -> new."""
    for value, definer in self.definers.items():
      if definer is not None:
        self.definers[value] = numbers[definer]
    for value, touchers in self.touchers.items():
      self.touchers[value] = tuple(sorted(numbers[t] for t in touchers))

  def buffers(self) -> tuple[Buffer, ...]:
    """Returns the buffers of a graph, one for each value."""
    source = self._analysis.module.source
    return tuple(
      Buffer(
        name=value.name,
        size_bytes=value.size_bytes,
        touchers=self.touchers[value],
        definer=self.definers[value],
        live_at_start=self.definers[value] is None,
        live_at_end=value in self._results,
        source=source(value.instruction),
      )
      for value in self.values
    )

  def slots(self) -> list[int]:
    """Bytes of donated parameters and of outputs with their own memory."""
    donated = self._analysis.donated
    buffers = {b.id: b for b in map(self._analysis.buffer_of, self.values)}
    return [
      b.size_bytes
      for b in buffers.values()
      if b.is_live_out or not donated.isdisjoint(b.values)
    ]

  def owned_bytes(self) -> int:
    """Bytes of the buffers that hold a parameter or the result here."""
    owned = [
      self._analysis.buffer_of(v)
      for v in self.values
      if self.definers[v] is None or v in self._results
    ]
    return sum({b.id: b.size_bytes for b in owned}.values())

  def _tracked_values(self) -> list[Value]:
    trees = self._analysis.dataflow.trees
    found: dict[Value, None] = {}
    for instruction in self._computation.instructions:
      found |= dict.fromkeys(trees[instruction.id].values())
    return [
      v
      for v in found
      if v.size_bytes and not v.memory_space and not self._is_constant(v)
    ]

  def _is_constant(self, value: Value) -> bool:
    entry = self._analysis.module.entry
    return any(
      v.instruction.opcode == "constant"
      or (
        v.instruction.opcode == "parameter"
        and v.instruction.computation is entry
        and v not in self._analysis.donated
      )
      for v in self._analysis.buffer_of(value).values
    )

  def _definer_of(self, value: Value) -> int | None:
    index = self._nodes.index
    nodes = []
    for position in value.positions:
      instruction = position.instruction
      if instruction.computation is self._computation:
        if instruction.opcode == "parameter":
          return None
        if instruction.id in index:
          nodes.append(index[instruction.id])
    if not nodes:
      # A tuple is no node: its table is there when its last operand is.
      behind = [index[o] for o in value.instruction.operands if o in index]
      return max(behind, default=None)
    return min(nodes)

  def _touchers_of(self, value: Value) -> tuple[int, ...]:
    index = self._nodes.index
    nodes = {
      index[place.instruction.id]
      for place in (*value.positions, *value.uses)
      if place.instruction.id in index
    }
    definer = self.definers[value]
    if definer is not None:
      nodes.add(definer)
    return tuple(sorted(nodes))

  def _find_followers(
    self, model: AssignmentModel
  ) -> list[tuple[Value, Value]]:
    ranges = model.own_ranges
    chains: dict[int, list[Value]] = {}
    for value in self.values:
      buffer = self._analysis.buffer_of(value)
      if len(buffer.values) > 1:
        chains.setdefault(buffer.id, []).append(value)
    for chain in chains.values():
      chain.sort(key=lambda v: (ranges[v].start, ranges[v].end, v.id))
    return [pair for c in chains.values() for pair in itertools.pairwise(c)]
