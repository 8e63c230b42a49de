"""From a computation of a scheduled HLO module to a Graph, and back.

Nodes are the instructions that do something; the others follow from them. Edges
are data and control dependencies, and the anti-dependencies that XLA leaves
implicit: whoever reads a buffer runs before the instruction that writes the
buffer's next value in place.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import BufferAnalysis, Value
from jaxmem_hlo.module import RENAMES, Computation, Instruction

from jaxmem.graph import liveness
from jaxmem.graph.graph import Graph, Node
from jaxmem.graph.hlo_parts import CALLERS, FIRST_OPCODES, HloParts

Sharing = Literal["heap", "any"]


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
    # How many operands each renaming instruction waits for, and who waits.
    waiting: dict[int, int] = {}
    dependents: dict[int, list[Instruction]] = {}
    for instruction in self.computation.instructions:
      if instruction.opcode in RENAMES:
        needed = {*instruction.operands, *instruction.control_predecessors}
        waiting[instruction.id] = len(needed)
        for operand in needed:
          dependents.setdefault(operand, []).append(instruction)
    first = [
      i
      for i in self.computation.instructions
      if i.opcode in FIRST_OPCODES or waiting.get(i.id) == 0
    ]
    ids: list[int] = []
    for instruction in itertools.chain(first, nodes):
      stack = [instruction]
      while stack:
        done = stack.pop()
        ids.append(done.id)
        for dependent in reversed(dependents.get(done.id, ())):
          waiting[dependent.id] -= 1
          if waiting[dependent.id] == 0:
            stack.append(dependent)
    # The root comes last where nothing needs it.
    root = self.computation.root.id
    if ids[-1] != root and root in waiting:
      ids.remove(root)
      ids.append(root)
    return ids


def callee_peaks(
  model: AssignmentModel,
  peak_of: Callable[[ComputationGraph], int] | None = None,
) -> dict[int, int]:
  """Returns what each called computation needs besides what its caller sees.

  Args:
    model: The assignment model of the module.
    peak_of: Returns the peak of the order that a computation is to have; if
      None, it has its own.

  Returns:
    Computation id -> bytes beyond the caller's live operands and outputs.
  """
  peaks: dict[int, int] = {}
  sequential = {c.id for c in model.analysis.dataflow.computations}
  for computation in model.module.computations:
    if computation.id in sequential and computation is not model.module.entry:
      inner = from_hlo(model, computation, lambda: peaks)
      nodes = range(len(inner.instructions))
      peak_bytes = (
        peak_of(inner) if peak_of else liveness.peak_bytes(inner.graph, nodes)
      )
      peaks[computation.id] = max(0, peak_bytes - inner.owned_bytes)
  return peaks


def from_hlo(
  model: AssignmentModel,
  computation: Computation,
  callees: Callable[[], Mapping[int, int]] | None = None,
  sharing: Sharing = "heap",
) -> ComputationGraph:
  """Builds the graph of one scheduled computation.

  Args:
    model: The assignment model of the module.
    computation: The entry, or a computation that the schedule runs.
    callees: Returns what `callee_peaks` says of the computations that this one
      calls; is asked once the graph itself is.
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
  parts = HloParts(model, computation)
  is_entry = computation is model.module.entry
  return ComputationGraph(
    computation=computation,
    instructions=tuple(parts.instructions),
    predecessors=tuple(tuple(sorted(p)) for p in parts.predecessors),
    values=tuple(parts.values),
    owned_bytes=0 if is_entry else parts.owned_bytes(),
    num_pinned=parts.num_pinned,
    is_repaired=parts.is_repaired,
    make_graph=functools.partial(
      _graph, model, parts, callees or dict, sharing, is_entry
    ),
  )


def may_share_on_heap(
  analysis: BufferAnalysis, read: Value, written: Value, is_direct: bool
) -> bool:
  """Whether the heap may even consider to put a value on top of another.

  It does not for buffers of several values, and it looks only at operands that
  make the value themselves, not at those that pick it out of a tuple. Sizes and
  users are the assignment's to judge (`AssignmentModel.may_share`), and values
  that follow each other in one buffer share it in any case.

  Args:
    analysis: The module's buffers.
    read: The value that an instruction reads, and that dies there.
    written: The value that the instruction makes.
    is_direct: Whether the operand makes `read` itself. Callers who look for all
      that XLA could share, or whose edits take the tuple away, say so of any.
  """
  return (
    is_direct
    and len(analysis.buffer_of(read).values) == 1
    and len(analysis.buffer_of(written).values) == 1
  )


def _graph(
  model: AssignmentModel,
  parts: HloParts,
  callees: Callable[[], Mapping[int, int]],
  sharing: Sharing,
  is_entry: bool,
) -> Graph:
  peaks = callees()
  slots = parts.slots()
  # What a called computation needs may lie in a slot, too, although neither its
  # parameters nor its results need be those of the program.
  largest_slot_bytes = model.analysis.largest_slot_bytes
  shares = _shares(model, parts, sharing, largest_slot_bytes)
  return Graph(
    nodes=tuple(
      Node(
        name=instruction.name,
        predecessors=tuple(sorted(predecessors)),
        extra_bytes=max(
          (peaks.get(c, 0) for c in instruction.callees), default=0
        ),
        shares=tuple(pairs),
        source=model.module.source(instruction),
      )
      for instruction, predecessors, pairs in zip(
        parts.instructions, parts.predecessors, shares, strict=True
      )
    ),
    buffers=parts.buffers(),
    base_bytes=sum(slots) if is_entry else 0,
  )


def _shares(
  model: AssignmentModel,
  parts: HloParts,
  sharing: Sharing,
  largest_slot_bytes: int,
) -> list[dict[tuple[int, int], None]]:
  """Returns for each node what it may place on operands that die there.

  What is no larger than the largest slot may lie in one, where sharing has
  wider rules than on the heap.
  """
  number = {v: b for b, v in enumerate(parts.values)}
  shares: list[dict[tuple[int, int], None]] = [{} for _ in parts.instructions]
  for old, new in parts.followers:
    writer = parts.definers[new]
    if writer is not None and writer in parts.touchers[old]:
      shares[writer][number[old], number[new]] = None
  trees = model.analysis.dataflow.trees
  for value in parts.values:
    writer, instruction = parts.definers[value], value.instruction
    # Only what a node itself makes, and not what it calls: what a loop carries
    # shares by its chain, and the results of calls never do.
    if (
      writer is None
      or parts.instructions[writer] is not instruction
      or instruction.opcode in CALLERS
    ):
      continue
    for operand_id in instruction.operands:
      operand = instruction.computation.by_id[operand_id]
      for index, read in trees[operand.id].items():
        is_direct = sharing == "any" or read.instruction is operand
        if (
          read.size_bytes == value.size_bytes
          and read in number
          and (
            value.size_bytes <= largest_slot_bytes
            or may_share_on_heap(model.analysis, read, value, is_direct)
          )
          and model.may_share(operand, index, value)
        ):
          shares[writer][number[read], number[value]] = None
  return shares
