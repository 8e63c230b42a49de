"""XLA's buffer assignment, predicted from a module and an order.

The prediction follows XLA's own steps: live ranges on the flattened timeline;
buffers by decreasing size into the allocations of donated parameters and
outputs where their live ranges allow it; everything else onto one heap per
memory space, sharing the place of an operand that dies where the output is
defined.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from jaxmem_hlo.assignment import packing
from jaxmem_hlo.assignment.allocation import Allocation, Assignment
from jaxmem_hlo.assignment.heap import HeapTrace
from jaxmem_hlo.assignment.slots import Slots
from jaxmem_hlo.buffers import (
  BufferAnalysis,
  LiveRange,
  LogicalBuffer,
  Value,
  aliasing,
  schedule,
)
from jaxmem_hlo.module import Instruction, Module, ShapeIndex

# Whether an output may take the place of an operand, by the ids of the operand
# and of its user, each with an index.
_Shares = dict[tuple[int, ShapeIndex, int, ShapeIndex], bool]

_ALIGNMENT_BYTES = {"cpu": 64, "cuda": 256}


class AssignmentModel:
  """Predicts buffer assignments of one module.

  Args:
    module: A scheduled module.
    platform: "cpu" or "cuda".
    like: A model of a module that this one was made from. What is known of
      instructions that are the same in both is known to both.
  """

  def __init__(
    self,
    module: Module,
    platform: str,
    like: AssignmentModel | None = None,
  ):
    self.module = module
    self.platform = platform
    self.analysis = BufferAnalysis(module)
    self._like = like
    self._is_alike: dict[int, bool] = {}
    self._shares: _Shares = {}
    self._post_order = _post_order(self.analysis)
    self._by_size = sorted(self.analysis.buffers, key=self._assignment_order)
    self._num_thread_local = _num_thread_local(self.analysis)

  def assign(
    self, orders: Mapping[int, Sequence[int]] | None = None
  ) -> Assignment:
    """Predicts the assignment.

    Args:
      orders: Computation id -> instruction ids in execution order, where they
        differ from the module's schedule.
    """
    return self._assign(orders, None)

  def temp_bytes(
    self,
    orders: Mapping[int, Sequence[int]] | None = None,
    limit_bytes: int | None = None,
  ) -> int:
    """Predicts the bytes of temporaries alone.

    Args:
      orders: As in `assign`.
      limit_bytes: Where more are needed, any number above the limit will do:
        the prediction ends as soon as that is known.
    """
    if not orders:
      return self._own_temp_bytes
    return self._assign(orders, limit_bytes).temp_bytes

  @functools.cached_property
  def _own_temp_bytes(self) -> int:
    return self.assign().temp_bytes

  def _assign(
    self,
    orders: Mapping[int, Sequence[int]] | None,
    limit_bytes: int | None,
  ) -> Assignment:
    ranges, length = (
      self._live_ranges(schedule.Timeline(self.module, orders))
      if orders
      else self._own_ranges
    )
    allocations, heap = self._assign_fixed(ranges)
    spaces: dict[int, list[LogicalBuffer]] = {}
    for buffer in heap:
      spaces.setdefault(buffer.memory_space, []).append(buffer)
    for space in sorted(spaces):
      allocations.append(
        self._assign_heap(space, spaces[space], ranges, length, limit_bytes)
      )
    return Assignment(tuple(self._combine_temps(allocations)), ranges)

  @property
  def own_ranges(self) -> dict[Value, LiveRange]:
    """Live range of every value in the module's own order; to be read only."""
    return self._own_ranges[0]

  @functools.cached_property
  def _own_ranges(self) -> tuple[dict[Value, LiveRange], int]:
    return self._live_ranges(schedule.Timeline(self.module))

  def _live_ranges(
    self, timeline: schedule.Timeline
  ) -> tuple[dict[Value, LiveRange], int]:
    """Returns live ranges and the length of the timeline."""
    return schedule.live_ranges(self.analysis, timeline), timeline.length

  # The next methods place buffers that have an allocation of their own, or fit
  # into one.

  def _assign_fixed(
    self, ranges: dict[Value, LiveRange]
  ) -> tuple[list[Allocation], list[LogicalBuffer]]:
    allocations: list[Allocation] = []
    slots = Slots(ranges, self._shares_at_end)
    home: dict[Value, Allocation] = {}
    heap: list[LogicalBuffer] = []
    for buffer in self._by_size:
      own = self._own_allocation(buffer)
      if own is None:
        own = self._reuse(buffer, slots, home)
      else:
        allocations.append(own)
        if own.is_donated:
          slots.add(own)
      if own is None and buffer.values[0].is_tuple_table:
        kind = "output" if buffer.is_live_out else "temp"
        own = Allocation(kind, buffer.size_bytes, buffer.memory_space)
        allocations.append(own)
      if own is None and buffer.is_live_out:
        own = Allocation("output", buffer.size_bytes, buffer.memory_space)
        allocations.append(own)
        slots.add(own)
      if own is None:
        heap.append(buffer)
        continue
      own.move_in(buffer, ranges)
      slots.move_in(buffer, own)
      home.update(dict.fromkeys(buffer.values, own))
    return allocations, heap

  def _assignment_order(self, buffer: LogicalBuffer) -> tuple[int, bool, int]:
    first = min(self._post_order[v.instruction.id] for v in buffer.values)
    return (-buffer.size_bytes, not buffer.is_live_out, first)

  def _own_allocation(self, buffer: LogicalBuffer) -> Allocation | None:
    for value in buffer.values:
      instruction = value.instruction
      if instruction.opcode == "constant":
        return Allocation("constant", buffer.size_bytes, buffer.memory_space)
      if (
        instruction.opcode == "parameter"
        and instruction.computation is self.module.entry
      ):
        return Allocation(
          "parameter",
          buffer.size_bytes,
          buffer.memory_space,
          parameter_number=instruction.proto.parameter_number,
          parameter_index=value.position.index,
          is_donated=value in self.analysis.donated,
        )
    return None

  def _reuse(
    self, buffer: LogicalBuffer, slots: Slots, home: dict[Value, Allocation]
  ) -> Allocation | None:
    if buffer.values[0].is_tuple_table:
      return None
    preferred: list[Allocation] = []
    for value in buffer.values:
      if value.position.index:
        continue
      for operand in value.instruction.operands:
        operand_value = self.analysis.dataflow.trees[operand].get(())
        if operand_value in home:
          preferred.append(home[operand_value])
    return slots.find(buffer, preferred)

  def _shares_at_end(self, user: Value, operand: Value) -> bool:
    return any(
      p.instruction.id in user.instruction.operands
      and self._share(p.instruction, p.index, *user.position)
      for p in operand.positions
    )

  def _share(
    self,
    operand: Instruction,
    operand_index: ShapeIndex,
    user: Instruction,
    user_index: ShapeIndex,
  ) -> bool:
    known = self._known_of(user)
    key = (operand.id, operand_index, user.id, user_index)
    if key not in known:
      known[key] = aliasing.can_share(
        self.module, self.platform, operand, operand_index, user, user_index
      )
    return known[key]

  def _known_of(self, user: Instruction) -> _Shares:
    """Where to remember what an instruction may share with its operands.

    Modules that were made from one module give the same ids to what is new in
    each of them.
    """
    if self._like is None:
      return self._shares
    if user.id not in self._is_alike:
      self._is_alike[user.id] = _is_alike(user, self._like.module)
    return (
      self._like._known_of(user) if self._is_alike[user.id] else self._shares
    )

  # The next methods place the heap of temporaries.

  def _assign_heap(
    self,
    memory_space: int,
    buffers: list[LogicalBuffer],
    ranges: dict[Value, LiveRange],
    length: int,
    limit_bytes: int | None,
  ) -> Allocation:
    heap = HeapTrace(self.analysis, self._shares_place, buffers, ranges, length)
    blocks = heap.blocks()
    alignment_bytes = _ALIGNMENT_BYTES[self.platform]
    # Temporaries elsewhere do not count, so no limit holds for them.
    limit_bytes = None if memory_space else limit_bytes
    height, offsets = packing.pack(blocks, alignment_bytes, limit_bytes)
    allocation = Allocation("temp", height, memory_space)
    by_key = {b.key: o for b, o in zip(blocks, offsets, strict=True)}
    for value, leader in heap.leader.items():
      allocation.offsets[value] = (by_key.get(leader.id, 0), heap.size[leader])
    return allocation

  def _combine_temps(self, allocations: list[Allocation]) -> list[Allocation]:
    """Lays all temporaries of a memory space end to end in one allocation."""
    length = len(allocations)
    is_temp = [a.kind == "temp" for a in allocations]
    is_temp += [False] * self._num_thread_local
    indices = _unstable_partition(is_temp)
    combined: dict[int, Allocation] = {}
    for index in indices:
      part = allocations[index]
      whole = combined.setdefault(part.memory_space, part)
      if whole is part:
        continue
      base = packing.round_up(whole.size_bytes, _ALIGNMENT_BYTES[self.platform])
      whole.size_bytes = base + part.size_bytes
      for value, (offset, size) in part.offsets.items():
        whole.offsets[value] = (base + offset, size)
    fixed = [allocations[i] for i in range(length) if not is_temp[i]]
    return [*fixed, *combined.values()]

  def may_share(
    self, operand: Instruction, index: ShapeIndex, written: Value
  ) -> bool:
    """Whether a value may take the place of one that it is made from.

    Args:
      operand: An operand of the instruction that defines `written`.
      index: Where in the operand the value lies that dies.
      written: The instruction's output.
    """
    return self._share(operand, index, *written.position)

  def _shares_place(self, operand: Value, user: Value) -> bool:
    """Whether the heap may place `user` on top of a dying `operand`."""
    return operand.instruction.id in user.instruction.operands and self._share(
      operand.instruction,
      operand.position.index,
      user.instruction,
      user.position.index,
    )


def _is_alike(user: Instruction, module: Module) -> bool:
  """Whether another module's instruction of that id shares as this one does."""
  computation = module.by_id.get(user.computation.id)
  other = computation and computation.by_id.get(user.id)
  if other is None or other is user:
    return other is user
  # Whether a sort shares depends on who else reads its operands.
  return user.opcode != "sort" and user.is_alike(other)


def _post_order(analysis: BufferAnalysis) -> dict[int, int]:
  """Positions with callers before callees, operands before users."""
  positions: dict[int, int] = {}
  sequential = set(analysis.dataflow.computations)
  for computation in reversed(analysis.module.computations):
    if computation in sequential:
      for instruction in computation.instructions:
        positions[instruction.id] = len(positions)
  return positions


def _num_thread_local(analysis: BufferAnalysis) -> int:
  """Allocations of the computations that run once per element."""
  sequential = {c.id for c in analysis.dataflow.computations}
  return sum(
    len(computation.instructions)
    for computation in analysis.module.computations
    if computation.id not in sequential and not computation.is_fusion
  )


def _unstable_partition(marks: list[bool]) -> list[int]:
  """Returns where marked items end up when they are moved to the back.

  XLA moves temporaries behind all other allocations with std::partition,
  which swaps from both ends; the order they are left in decides how their
  alignment gaps add up.

  Args:
    marks: Which items are to be moved.

  Returns:
    Indices of the marked items in their order after the move.
  """
  items = list(range(len(marks)))
  first, last = 0, len(items)
  while True:
    while first != last and not marks[items[first]]:
      first += 1
    if first == last:
      break
    last -= 1
    while first != last and marks[items[last]]:
      last -= 1
    if first == last:
      break
    items[first], items[last] = items[last], items[first]
    first += 1
  return items[first:]
