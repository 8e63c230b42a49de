"""The nodes of a computation, and the values whose memory an order can free.

Parameters and constants come first in every order, and instructions that only
rename values (bitcast, tuple, get-tuple-element) follow at once when their
operands are there; none of these costs memory, so none of them is a node.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import LogicalBuffer, UnsupportedModuleError, Value
from jaxmem_hlo.module import (
  RENAMES,
  STATEFUL_PREFIXES,
  Computation,
  Instruction,
  collective_start,
)

from jaxmem.graph.graph import Buffer
from jaxmem.graph.topological import topological_order

# Instructions that run the schedule of another computation.
CALLERS = frozenset({"async-start", "call", "conditional", "while"})
FIRST_OPCODES = frozenset({"parameter", "constant"})
_NO_NODES = FIRST_OPCODES | RENAMES
# Stateful by their prefix, but only who reads their results can tell when these
# run.
_FREE_TO_MOVE = frozenset({"copy-done", "copy-start", "rng-bit-generator"})


class HloParts:
  """What an order of a computation is about: its nodes and tracked values.

  Attributes:
    instructions: That of each node, in the order of the module's schedule.
    index: Instruction id -> number of the node.
    predecessors: For each node, the nodes that must run before it: data and
      control dependencies, the order of side effects, and whoever reads a
      buffer before its next value is written.
    num_pinned: Nodes with side effects; they keep their mutual order.
    values: The values, in the order of the instructions that hold them.
    definers: Value -> the node that makes it; None for what is there before.
    touchers: Value -> the nodes that make or read it, ascending.
    followers: Pairs of a value and the next one in the same buffer.
    is_repaired: Whether a predecessor came after its node, so that nodes were
      renumbered.

  Args:
    model: The assignment model of the module.
    computation: One that its schedule runs.

  Raises:
    UnsupportedModuleError: If the predecessors form a cycle, or nothing writes
      a value that follows another.
  """

  def __init__(self, model: AssignmentModel, computation: Computation):
    self._analysis = model.analysis
    self._computation = computation
    schedule = model.module.schedule(computation.id)
    self.instructions = [i for i in schedule if i.opcode not in _NO_NODES]
    self.index = {i.id: n for n, i in enumerate(self.instructions)}
    self.predecessors = self._dependencies(schedule)
    self.num_pinned = self._pin_ordered()
    trees = model.analysis.dataflow.trees
    self._results = set(trees[computation.root.id].values())
    self.values = self._tracked_values()
    self.definers = {v: self._definer_of(v) for v in self.values}
    self.touchers = {v: self._touchers_of(v) for v in self.values}
    self.followers = self._find_followers(model)
    self._add_anti_dependencies()
    self._order_before_calls()
    self.is_repaired = any(
      max(p, default=-1) >= n for n, p in enumerate(self.predecessors)
    )
    if self.is_repaired:
      self._repair_order()

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
    buffers = {b.id: b for b in map(self._analysis.buffer_of, self.values)}
    is_slot = self._analysis.is_slot
    return [b.size_bytes for b in buffers.values() if is_slot(b)]

  def owned_bytes(self) -> int:
    """Bytes of the buffers that hold a parameter or the result here."""
    owned = [
      self._analysis.buffer_of(v)
      for v in self.values
      if self.definers[v] is None or v in self._results
    ]
    return sum({b.id: b.size_bytes for b in owned}.values())

  def _dependencies(self, schedule: list[Instruction]) -> list[set[int]]:
    behind: dict[int, set[int]] = {}
    predecessors: list[set[int]] = [set() for _ in self.instructions]
    for instruction in schedule:
      found: set[int] = set()
      for needed in (*instruction.operands, *instruction.control_predecessors):
        found |= behind[needed]
      if instruction.id in self.index:
        node = self.index[instruction.id]
        predecessors[node] = found
        found = {node}
      behind[instruction.id] = found
    return predecessors

  def _pin_ordered(self) -> int:
    pinned = [
      n
      for n, i in enumerate(self.instructions)
      if self._is_ordered(i) and not self._is_asynchronous_collective(i)
    ]
    for before, after in itertools.pairwise(pinned):
      self.predecessors[after].add(before)
    return len(pinned)

  def _is_ordered(self, instruction: Instruction) -> bool:
    if instruction.proto.custom_call_has_side_effect:
      return True
    if instruction.opcode in _FREE_TO_MOVE:
      return False
    if instruction.opcode.startswith(STATEFUL_PREFIXES):
      return True
    if instruction.opcode in CALLERS:
      return any(
        self._is_ordered(inner)
        for callee in instruction.callees
        for inner in self._analysis.module.by_id[callee].instructions
      )
    return False

  def _is_asynchronous_collective(self, instruction: Instruction) -> bool:
    """Whether an instruction starts or ends a collective beside kernels.

    All devices run the same schedule, so in any order they start the same ones
    one after the other; XLA's own scheduler moves them likewise.
    """
    if instruction.opcode.endswith("-done"):
      instruction = self._computation.by_id[instruction.operands[0]]
    return collective_start(self._analysis.module, instruction) is not None

  def _add_anti_dependencies(self) -> None:
    """Has whoever reads a buffer run before its next value is written."""
    for old, new in self.followers:
      writer = self.definers[new]
      if writer is None:
        raise UnsupportedModuleError(
          f"{self._computation.name}: {new!r} has no writer but follows"
          f" {old!r} in one buffer."
        )
      self.touchers[old] = tuple(
        n for n in self.touchers[old] if not self._is_completed_by(writer, n)
      )
      readers = {*self.touchers[old]} - {writer}
      self.predecessors[writer] |= readers

  def _order_before_calls(self) -> None:
    """Has whoever reads what a call writes over run before the call."""
    writers: dict[int, set[int]] = {}
    for value, touchers in self.touchers.items():
      buffer = self._analysis.buffer_of(value)
      if buffer.id not in writers:
        writers[buffer.id] = self._unseen_writers(buffer)
      definer = self.definers[value]
      for node in writers[buffer.id]:
        if definer is None or definer < node:
          self.predecessors[node] |= {n for n in touchers if n < node}

  def _unseen_writers(self, buffer: LogicalBuffer) -> set[int]:
    """Returns calls that write into a buffer what never shows outside."""
    call_in = self._analysis.dataflow.call_in
    calls = (
      call_in(self._computation, value.instruction)
      for value in buffer.values
      if value not in self.definers
    )
    return {self.index[c.id] for c in calls if c is not None}

  def _is_completed_by(self, writer: int, node: int) -> bool:
    """Whether a node is the second half of an asynchronous writer."""
    return (
      self.instructions[node].opcode.endswith("-done")
      and self.instructions[writer].id in self.instructions[node].operands
    )

  def _repair_order(self) -> None:
    """Renumbers the nodes so that predecessors come first."""
    numbers = range(len(self.instructions))
    order = topological_order(self.predecessors, numbers)
    if len(order) < len(numbers):
      raise UnsupportedModuleError(
        f"{self._computation.name}: its in-place writes and their readers form"
        " a cycle."
      )
    renumbered = {old: new for new, old in enumerate(order)}
    self.instructions = [self.instructions[n] for n in order]
    self.index = {i.id: n for n, i in enumerate(self.instructions)}
    self.predecessors = [
      {renumbered[p] for p in self.predecessors[n]} for n in order
    ]
    for value, definer in self.definers.items():
      if definer is not None:
        self.definers[value] = renumbered[definer]
      touchers = (renumbered[t] for t in self.touchers[value])
      self.touchers[value] = tuple(sorted(touchers))

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
    index, made_by = self.index, value.instruction
    if made_by.computation is self._computation and made_by.opcode in RENAMES:
      # A tuple is no node: its table is there when its last operand is, whoever
      # hands it on later.
      return max(self._nodes_behind(made_by), default=None)
    nodes = []
    for position in value.positions:
      instruction = position.instruction
      if instruction.computation is self._computation:
        if instruction.opcode == "parameter":
          return None
        if instruction.id in index:
          nodes.append(index[instruction.id])
    return min(nodes, default=None)

  def _nodes_behind(self, instruction: Instruction) -> Iterator[int]:
    """Yields the nodes whose results an instruction only names anew."""
    for operand in instruction.operands:
      if operand in self.index:
        yield self.index[operand]
        continue
      named = self._computation.by_id.get(operand)
      if named is not None and named.opcode in RENAMES:
        yield from self._nodes_behind(named)

  def _touchers_of(self, value: Value) -> tuple[int, ...]:
    index = self.index
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
