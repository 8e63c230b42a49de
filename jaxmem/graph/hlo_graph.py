"""From a computation of a scheduled HLO module to a Graph, and back.

Nodes are the instructions that do something; hlo_schedule.py says where the
others go. Edges are data and control dependencies, and the anti-dependencies
that XLA leaves implicit: whoever reads a buffer runs before the instruction
that writes the buffer's next value in place.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import Value
from jaxmem_hlo.module import Computation, Instruction, shapes

from jaxmem.graph.graph import Graph, Node
from jaxmem.graph.heap_sharing import may_share_on_heap
from jaxmem.graph.hlo_nodes import CALLERS, HloNodes
from jaxmem.graph.hlo_schedule import full_schedule
from jaxmem.graph.hlo_values import HloValues

Sharing = Literal["heap", "any"]


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
    nodes = map(self.instructions.__getitem__, order)
    return full_schedule(self.computation, nodes)


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
  """Collects nodes and values, then lets values share."""

  def __init__(
    self,
    model: AssignmentModel,
    computation: Computation,
    callees: Mapping[int, CalleePeak],
    sharing: Sharing,
  ):
    self._looks_into_tuples = sharing == "any"
    self._model = model
    self._analysis = model.analysis
    self._computation = computation
    self._callees = callees
    self._nodes = HloNodes(model.module, computation)
    self._values = HloValues(model, computation, self._nodes)

  def build(self) -> ComputationGraph:
    self._values.add_anti_dependencies()
    renumbered = self._nodes.repair_order()
    if renumbered:
      self._values.renumber(renumbered)
    is_entry = self._computation is self._model.module.entry
    predecessors = tuple(tuple(sorted(p)) for p in self._nodes.predecessors)
    return ComputationGraph(
      computation=self._computation,
      instructions=tuple(self._nodes.instructions),
      predecessors=predecessors,
      values=tuple(self._values.values),
      owned_bytes=0 if is_entry else self._values.owned_bytes(),
      num_pinned=self._nodes.num_pinned,
      is_repaired=bool(renumbered),
      make_graph=lambda: self._graph(predecessors, is_entry),
    )

  def _graph(
    self, predecessors: Sequence[tuple[int, ...]], is_entry: bool
  ) -> Graph:
    slots = self._values.slots()
    shares = self._shares(max(slots.values(), default=0))
    nodes = tuple(
      Node(
        name=instruction.name,
        predecessors=predecessors[n],
        extra_bytes=self._extra_bytes(instruction),
        shares=tuple(shares[n]),
        source=self._model.module.source(instruction),
      )
      for n, instruction in enumerate(self._nodes.instructions)
    )
    return Graph(
      nodes=nodes,
      buffers=self._values.buffers(),
      base_bytes=sum(slots.values()) if is_entry else 0,
    )

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

  def _shares(self, largest_slot_bytes: int) -> list[list[tuple[int, int]]]:
    """Returns for each node what it may place on operands that die there.

    Args:
      largest_slot_bytes: What is no larger may lie in a slot, where sharing has
        wider rules than on the heap.
    """
    number = {v: b for b, v in enumerate(self._values.values)}
    shares: list[dict[tuple[int, int], None]] = [
      {} for _ in self._nodes.instructions
    ]
    for old, new in self._values.followers():
      writer = self._values.definers[new]
      if writer is not None and writer in self._values.touchers[old]:
        shares[writer][number[old], number[new]] = None
    for value in self._values.values:
      writer = self._values.definers[value]
      if writer is None or not self._is_made_by(value, writer):
        continue
      for operand, index, read in self._reads(value.instruction):
        is_direct = self._looks_into_tuples or read.instruction is operand
        if (
          read.size_bytes == value.size_bytes
          and read in number
          and (
            value.size_bytes <= largest_slot_bytes
            or may_share_on_heap(self._analysis, read, value, is_direct)
          )
          and self._model.may_share(operand, index, value)
        ):
          shares[writer][number[read], number[value]] = None
    return [list(pairs) for pairs in shares]

  def _is_made_by(self, value: Value, writer: int) -> bool:
    """Whether a node itself makes a value, and not what it calls.

    What a loop carries shares by its chain, and the results of calls never do.
    """
    return (
      self._nodes.instructions[writer] is value.instruction
      and value.instruction.opcode not in CALLERS
    )

  def _reads(
    self, instruction: Instruction
  ) -> Iterator[tuple[Instruction, shapes.ShapeIndex, Value]]:
    """Yields the values of an instruction's operands, and where they are."""
    trees = self._analysis.dataflow.trees
    for operand in map(
      self._computation.by_id.__getitem__, instruction.operands
    ):
      for index, read in trees[operand.id].items():
        yield operand, index, read
