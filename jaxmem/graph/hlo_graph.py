"""From a computation of a scheduled HLO module to a Graph, and back.

Nodes are the instructions that do something. Parameters and constants come
first in every order, and instructions that only rename values (bitcast, tuple,
get-tuple-element) follow at once when their operands are there; none of these
costs memory, so none of them is a node. Edges are data and control
dependencies, and the anti-dependencies that XLA leaves implicit: whoever reads
a buffer runs before the instruction that writes the buffer's next value in
place.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import UnsupportedModuleError, Value
from jaxmem_hlo.module import (
  RENAMES,
  STATEFUL_PREFIXES,
  Computation,
  Instruction,
)

from jaxmem.graph.graph import Buffer, Graph, Node
from jaxmem.graph.heap_sharing import may_share_on_heap

Sharing = Literal["heap", "any"]

_FIRST = frozenset({"parameter", "constant"})
_CALLERS = frozenset({"async-start", "call", "conditional", "while"})
# Only who reads their results can tell when these run.
_FREE_TO_MOVE = frozenset({"copy-done", "copy-start", "rng-bit-generator"})


@dataclasses.dataclass(frozen=True, slots=True)
class CalleePeak:
  """What a called computation needs besides what its caller sees.

  Attributes:
    extra_bytes: Bytes beyond the caller's live operands and outputs, in the
      order chosen for the callee.
    bound_bytes: A lower bound of the same over all orders of the callee.
  """

  extra_bytes: int
  bound_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputationGraph:
  """A computation as a Graph, and the way back to a schedule.

  Attributes:
    computation: The computation.
    instructions: The instruction of each node, in the order of the module's
      schedule.
    predecessors: The nodes that must run before each node.
    values: The value in each buffer.
    owned_bytes: Bytes that the caller counts as its own operands and outputs
      while the computation runs.
    num_pinned: Nodes that keep their order among themselves.
    is_repaired: Whether the module's schedule breaks an anti-dependency, so
      that the nodes are listed in another order.
    make_graph: Builds the graph.
  """

  computation: Computation
  instructions: tuple[Instruction, ...]
  predecessors: tuple[tuple[int, ...], ...]
  values: tuple[Value, ...]
  owned_bytes: int
  num_pinned: int
  is_repaired: bool
  make_graph: Callable[[], Graph] = dataclasses.field(repr=False, compare=False)

  @functools.cached_property
  def graph(self) -> Graph:
    """The nodes and the memory they touch; built when first asked for."""
    return self.make_graph()

  def schedule(self, order: Sequence[int]) -> list[int]:
    """Returns all instruction ids of the computation in execution order.

    Args:
      order: Node indices in execution order.
    """
    scheduler = _Scheduler(self.computation)
    for node in order:
      scheduler.emit(self.instructions[node])
    return scheduler.finish()


class _Scheduler:
  """Puts renaming instructions behind their operands."""

  def __init__(self, computation: Computation):
    self._computation = computation
    self._waiting: dict[int, int] = {}
    self._dependents: dict[int, list[Instruction]] = {}
    self._order: list[int] = []
    for instruction in computation.instructions:
      if instruction.opcode in RENAMES:
        needed = {*instruction.operands, *instruction.control_predecessors}
        self._waiting[instruction.id] = len(needed)
        for operand in needed:
          self._dependents.setdefault(operand, []).append(instruction)
    ready = [
      i
      for i in computation.instructions
      if i.opcode in _FIRST or self._waiting.get(i.id) == 0
    ]
    for instruction in ready:
      self.emit(instruction)

  def emit(self, instruction: Instruction) -> None:
    """Appends an instruction and every renaming that it completes."""
    stack = [instruction]
    while stack:
      done = stack.pop()
      self._order.append(done.id)
      for dependent in reversed(self._dependents.get(done.id, ())):
        self._waiting[dependent.id] -= 1
        if self._waiting[dependent.id] == 0:
          stack.append(dependent)

  def finish(self) -> list[int]:
    """Returns the order, the root at its end where nothing needs it."""
    root = self._computation.root.id
    if self._order[-1] != root and root in self._waiting:
      self._order.remove(root)
      self._order.append(root)
    return self._order


def from_hlo(
  model: AssignmentModel,
  computation: Computation,
  callees: Mapping[int, CalleePeak] | None = None,
  sharing: Sharing = "heap",
) -> ComputationGraph:
  """Builds the graph of one scheduled computation.

  Args:
    model: The assignment model of the module.
    computation: The entry, or a computation that the schedule runs.
    callees: Computation id -> what it needs, for the computations that this
      one calls.
    sharing: Which values too large for any slot may be placed on operands that
      die: those that XLA places so on its heap, or "any" that it could, if it
      did not mind whether the operand is picked out of a tuple.

  Returns:
    The graph. Where the module's schedule breaks an anti-dependency, its nodes
    are listed in the closest order that does not.

  Raises:
    UnsupportedModuleError: If the anti-dependencies form a cycle with the
      others, which means that something was not understood.
  """
  return _Builder(model, computation, callees or {}, sharing).build()


class _Builder:
  def __init__(
    self,
    model: AssignmentModel,
    computation: Computation,
    callees: Mapping[int, CalleePeak],
    sharing: Sharing,
  ):
    self._looks_into_tuples = sharing == "any"
    self._model = model
    self._module = model.module
    self._analysis = model.analysis
    self._dataflow = model.analysis.dataflow
    self._computation = computation
    self._is_entry = computation is model.module.entry
    self._callees = callees
    self._nodes = [
      i
      for i in self._module.schedule(computation.id)
      if i.opcode not in _FIRST and i.opcode not in RENAMES
    ]
    self._index = {i.id: n for n, i in enumerate(self._nodes)}
    self._results = set(self._dataflow.trees[computation.root.id].values())
    self._predecessors = self._dependencies()
    self._pinned = self._pin_ordered()
    self._values = self._tracked_values()
    self._definer = {v: self._definer_of(v) for v in self._values}
    self._touchers = {v: self._touchers_of(v) for v in self._values}

  def build(self) -> ComputationGraph:
    chains = self._chains()
    self._add_anti_dependencies(chains)
    is_repaired = self._repair_order()
    predecessors = tuple(tuple(sorted(p)) for p in self._predecessors)
    return ComputationGraph(
      computation=self._computation,
      instructions=tuple(self._nodes),
      predecessors=predecessors,
      values=tuple(self._values),
      owned_bytes=0 if self._is_entry else self._owned_bytes(),
      num_pinned=self._pinned,
      is_repaired=is_repaired,
      make_graph=lambda: self._graph(chains, predecessors),
    )

  def _graph(
    self,
    chains: Sequence[Sequence[Value]],
    predecessors: Sequence[tuple[int, ...]],
  ) -> Graph:
    shares = self._shares(chains)
    nodes = tuple(
      Node(
        name=instruction.name,
        predecessors=predecessors[n],
        extra_bytes=self._extra_bytes(instruction),
        shares=tuple(shares[n]),
        source=self._module.source(instruction),
      )
      for n, instruction in enumerate(self._nodes)
    )
    return Graph(
      nodes=nodes,
      buffers=tuple(self._buffer(v) for v in self._values),
      base_bytes=sum(self._slots().values()) if self._is_entry else 0,
    )

  # Edges.

  def _dependencies(self) -> list[set[int]]:
    behind: dict[int, set[int]] = {}
    predecessors: list[set[int]] = [set() for _ in self._nodes]
    for instruction in self._module.schedule(self._computation.id):
      found: set[int] = set()
      for needed in (*instruction.operands, *instruction.control_predecessors):
        found |= behind[needed]
      if instruction.id in self._index:
        node = self._index[instruction.id]
        predecessors[node] = found
        found = {node}
      behind[instruction.id] = found
    return predecessors

  def _pin_ordered(self) -> int:
    pinned = [n for n, i in enumerate(self._nodes) if self._is_ordered(i)]
    for before, after in itertools.pairwise(pinned):
      self._predecessors[after].add(before)
    return len(pinned)

  def _is_ordered(self, instruction: Instruction) -> bool:
    if instruction.proto.custom_call_has_side_effect:
      return True
    if instruction.opcode in _FREE_TO_MOVE:
      return False
    if instruction.opcode.startswith(STATEFUL_PREFIXES):
      return True
    if instruction.opcode in _CALLERS:
      return any(
        self._is_ordered(inner)
        for callee in instruction.callees
        for inner in self._module.by_id[callee].instructions
      )
    return False

  def _add_anti_dependencies(self, chains: Sequence[Sequence[Value]]) -> None:
    for chain in chains:
      for old, new in itertools.pairwise(chain):
        writer = self._definer[new]
        if writer is None:
          raise UnsupportedModuleError(
            f"{self._computation.name}: {new!r} has no writer but follows"
            f" {old!r} in one buffer."
          )
        self._touchers[old] = tuple(
          n for n in self._touchers[old] if not self._completes(n, writer)
        )
        readers = {*self._touchers[old]} - {writer}
        self._predecessors[writer] |= readers

  def _repair_order(self) -> bool:
    """Renumbers the nodes where an anti-dependency goes against the order."""
    if all(max(p, default=-1) < n for n, p in enumerate(self._predecessors)):
      return False
    order = _stable_topological(self._predecessors)
    if len(order) < len(self._nodes):
      raise UnsupportedModuleError(
        f"{self._computation.name}: its in-place writes and their readers form"
        " a cycle."
      )
    number = {old: new for new, old in enumerate(order)}
    self._nodes = [self._nodes[n] for n in order]
    self._index = {i.id: n for n, i in enumerate(self._nodes)}
    self._predecessors = [
      {number[p] for p in self._predecessors[n]} for n in order
    ]
    for value, definer in self._definer.items():
      if definer is not None:
        self._definer[value] = number[definer]
    for value, touchers in self._touchers.items():
      self._touchers[value] = tuple(sorted(number[t] for t in touchers))
    return True

  def _completes(self, node: int, writer: int) -> bool:
    """Whether a node is the second half of an asynchronous writer."""
    return (
      self._nodes[node].opcode.endswith("-done")
      and self._nodes[writer].id in self._nodes[node].operands
    )

  # Values.

  def _tracked_values(self) -> list[Value]:
    """Values seen here that occupy memory an order can make free."""
    here = self._computation
    found: dict[Value, None] = {}
    for instruction in here.instructions:
      for value in self._dataflow.trees[instruction.id].values():
        found[value] = None
    return [
      v
      for v in found
      if v.size_bytes and not v.memory_space and not self._is_constant(v)
    ]

  def _is_constant(self, value: Value) -> bool:
    entry = self._module.entry
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
    nodes = []
    for position in value.positions:
      instruction = position.instruction
      if instruction.computation is self._computation:
        if instruction.opcode == "parameter":
          return None
        if instruction.id in self._index:
          nodes.append(self._index[instruction.id])
    # A tuple is no node: its table is there when its last operand is.
    return min(nodes) if nodes else self._after_operands(value.instruction)

  def _after_operands(self, instruction: Instruction) -> int | None:
    behind = [self._index[o] for o in instruction.operands if o in self._index]
    return max(behind, default=None)

  def _touchers_of(self, value: Value) -> tuple[int, ...]:
    nodes = {
      self._index[place.instruction.id]
      for place in (*value.positions, *value.uses)
      if place.instruction.id in self._index
    }
    definer = self._definer[value]
    if definer is not None:
      nodes.add(definer)
    return tuple(sorted(nodes))

  def _is_live_at_end(self, value: Value) -> bool:
    return value in self._results

  def _buffer(self, value: Value) -> Buffer:
    definer = self._definer[value]
    return Buffer(
      name=value.name,
      size_bytes=value.size_bytes,
      touchers=self._touchers[value],
      definer=definer,
      live_at_start=definer is None,
      live_at_end=self._is_live_at_end(value),
      source=self._module.source(value.instruction),
    )

  def _chains(self) -> list[list[Value]]:
    """Values of one buffer that follow each other here, in order."""
    ranges = self._model.own_ranges
    chains: dict[int, list[Value]] = {}
    for value in self._values:
      buffer = self._analysis.buffer_of(value)
      if len(buffer.values) > 1:
        chains.setdefault(buffer.id, []).append(value)
    for chain in chains.values():
      chain.sort(key=lambda v: (ranges[v].start, ranges[v].end, v.id))
    return [c for c in chains.values() if len(c) > 1]

  def _shares(
    self, chains: Sequence[Sequence[Value]]
  ) -> list[list[tuple[int, int]]]:
    number = {v: b for b, v in enumerate(self._values)}
    shares: list[dict[tuple[int, int], None]] = [{} for _ in self._nodes]
    for chain in chains:
      for old, new in itertools.pairwise(chain):
        writer = self._definer[new]
        if writer is not None and writer in self._touchers[old]:
          shares[writer][number[old], number[new]] = None
    # What is no larger may lie in a slot, where sharing has wider rules.
    largest_slot = max(self._slots().values(), default=0)
    by_id = self._computation.by_id
    for value in self._values:
      definer = self._definer[value]
      if definer is None or self._nodes[definer] is not value.instruction:
        continue
      if value.instruction.opcode in _CALLERS:
        continue  # Carries share by their chains, and results never do.
      for operand in map(by_id.__getitem__, value.instruction.operands):
        for index, read in self._dataflow.trees[operand.id].items():
          if (
            read.size_bytes == value.size_bytes
            and read in number
            and (
              value.size_bytes <= largest_slot
              or may_share_on_heap(
                self._analysis,
                read,
                value,
                self._looks_into_tuples or read.instruction is operand,
              )
            )
            and self._model.may_share(operand, index, value)
          ):
            shares[definer][number[read], number[value]] = None
    return [list(pairs) for pairs in shares]

  # Bytes.

  def _extra_bytes(self, instruction: Instruction) -> int:
    if not self._callees:
      return 0
    return max(
      (
        self._callees[callee].extra_bytes
        for callee in instruction.callees
        if callee in self._callees
      ),
      default=0,
    )

  def _slots(self) -> dict[int, int]:
    """Donated parameters and outputs with their own memory: id -> bytes."""
    buffers = {self._analysis.buffer_of(v).id: v for v in self._values}
    slots = {}
    for number, value in buffers.items():
      buffer = self._analysis.buffer_of(value)
      if buffer.is_live_out or self._is_donated(value):
        slots[number] = buffer.size_bytes
    return slots

  def _is_donated(self, value: Value) -> bool:
    return not self._analysis.donated.isdisjoint(
      self._analysis.buffer_of(value).values
    )

  def _owned_bytes(self) -> int:
    """Bytes of the buffers that hold a parameter or the result here."""
    owned = {
      self._analysis.buffer_of(v).id: self._analysis.buffer_of(v).size_bytes
      for v in self._values
      if self._definer[v] is None or self._is_live_at_end(v)
    }
    return sum(owned.values())


def _stable_topological(predecessors: Sequence[set[int]]) -> list[int]:
  """Returns an order of all nodes that can be reached, lowest number first."""
  waiting = [len(p) for p in predecessors]
  successors: list[list[int]] = [[] for _ in predecessors]
  for node, before in enumerate(predecessors):
    for other in before:
      successors[other].append(node)
  ready = [n for n, count in enumerate(waiting) if count == 0]
  order = []
  while ready:
    node = heapq.heappop(ready)
    order.append(node)
    for after in successors[node]:
      waiting[after] -= 1
      if waiting[after] == 0:
        heapq.heappush(ready, after)
  return order
