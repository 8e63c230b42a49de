"""Allocations of donated parameters and outputs, and what may move in.

Such an allocation exists anyway, so XLA puts temporaries into it while it is
not busy: buffers whose live ranges do not meet those of its inhabitants, or
meet them only where one value ends in place of the other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxmem_hlo.assignment.allocation import Allocation, busy_times
from jaxmem_hlo.buffers import LiveRange, LogicalBuffer, Value


class Slots:
  """The allocations that others may move into, and who lives there when.

  Args:
    ranges: Live range of every value.
    shares_at_end: Whether a value may take the place of one that ends where it
      is defined, given the value and the other.
  """

  def __init__(
    self,
    ranges: dict[Value, LiveRange],
    shares_at_end: Callable[[Value, Value], bool],
  ):
    self._ranges = ranges
    self._shares_at_end = shares_at_end
    self._slots: list[Allocation] = []
    self._number: dict[Allocation, int] = {}
    # One column per value that lives in a slot holds the slot, the start and
    # the end.
    self._lives = np.empty((3, 64), np.int64)
    self._num_lives = 0
    # One column per slot holds its bytes and its memory space.
    self._rooms = np.empty((2, 64), np.int64)

  def add(self, slot: Allocation) -> None:
    """Makes an allocation available; its inhabitants follow by `move_in`."""
    self._number[slot] = len(self._slots)
    self._slots.append(slot)
    if len(self._slots) > self._rooms.shape[1]:
      self._rooms = np.concatenate([self._rooms, self._rooms], axis=1)
    self._rooms[:, len(self._slots) - 1] = slot.size_bytes, slot.memory_space

  def move_in(self, buffer: LogicalBuffer, slot: Allocation) -> None:
    """Notes that a buffer was placed in an allocation, if that is a slot."""
    if slot not in self._number:
      return
    for value in buffer.values:
      if self._num_lives == self._lives.shape[1]:
        self._lives = np.concatenate([self._lives, self._lives], axis=1)
      live = self._ranges[value]
      self._lives[:, self._num_lives] = (
        self._number[slot],
        live.start,
        live.end,
      )
      self._num_lives += 1

  def find(
    self, buffer: LogicalBuffer, first: list[Allocation]
  ) -> Allocation | None:
    """Returns the slot that XLA chooses for a buffer, if there is one.

    Args:
      buffer: The buffer.
      first: Allocations to be tried before the others, which are tried from
        the one that was added last.
    """
    possible = self._possible(buffer)
    latest_first = possible.nonzero()[0][::-1].tolist()
    if not latest_first:
      return None
    times = busy_times(buffer, self._ranges)
    preferred = (self._number[s] for s in first if s in self._number)
    for number in (*preferred, *latest_first):
      slot = self._slots[number]
      if possible[number] and self._fits(buffer, slot, *times):
        return slot
    return None

  def _possible(self, buffer: LogicalBuffer) -> np.ndarray:
    """Slots of a sufficient size that are free, or may be handed over."""
    sizes, spaces = self._rooms[:, : len(self._slots)]
    if buffer.is_live_out:
      possible = sizes == buffer.size_bytes
    else:
      possible = sizes >= buffer.size_bytes
    possible &= spaces == buffer.memory_space
    if len(buffer.values) > 1:
      return possible
    live = self._ranges[buffer.values[0]]
    slots, starts, ends = self._lives[:, : self._num_lives]
    # Lives that only touch, one ending where the other starts, may hand over.
    possible[slots[(starts < live.end) & (ends > live.start)]] = False
    return possible

  def _fits(
    self, buffer: LogicalBuffer, slot: Allocation, busy: int, ends: int
  ) -> bool:
    """Whether a buffer may move in.

    Args:
      buffer: The buffer.
      slot: The slot.
      busy: When the buffer is live; see `busy_times`.
      ends: When its values begin and end.
    """
    overlap = slot.busy & busy
    # Ranges may only touch where one value ends and the other begins.
    if overlap & ~ends:
      return False
    if overlap and not self._only_hands_over(buffer, slot, overlap):
      return False
    return not any(
      _copies_from(new, placed)
      for new in buffer.values
      if new.instruction.opcode == "copy"
      for placed in slot.offsets
    )

  def _only_hands_over(
    self, buffer: LogicalBuffer, slot: Allocation, overlap: int
  ) -> bool:
    """Whether at each common time one value ends in place of the other."""
    for new in buffer.values:
      live = self._ranges[new]
      for time in {live.start, live.end}:
        if not overlap >> time & 1:
          continue
        overlap &= ~(1 << time)
        before, after = slot.last.get(time), slot.first.get(time)
        if before is not None and after is None and time == live.start:
          if not self._shares_at_end(new, before):
            return False
        elif after is not None and before is None and time == live.end:
          if not self._shares_at_end(after, new):
            return False
        else:
          return False
    return not overlap


def _copies_from(copy: Value, placed: Value) -> bool:
  """Whether a copy reads a value, whose place it may then not take."""
  operands = copy.instruction.operands
  return any(p.instruction.id in operands for p in placed.positions)
