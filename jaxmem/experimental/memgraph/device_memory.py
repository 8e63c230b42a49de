"""Simulated memory of one device: what is free, and since when.

Every byte remembers which vertices must have completed before it may be
overwritten. That is what turns a choice of offsets into edges.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable
from typing import Literal

Place = Literal["oldest", "lowest", "tightest"]


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Stay:
  """A stay of a tensor in memory while the graph is being built.

  Attributes:
    tensor: Index of the tensor; None for scratch memory.
    name: What to call it in messages.
    device: Whose memory it is in.
    size_bytes: Its bytes, aligned.
    offset_bytes: Where it begins.
    waits: Vertices that must have completed before it is written.
    is_reload: Whether it is brought from host memory, not made by a task.
    index: Its number among the residencies; None until a writer is emitted.
    writers: Vertices that write it.
    readers: Vertices that read it.
  """

  tensor: int | None
  name: str
  device: int
  size_bytes: int
  offset_bytes: int = 0
  waits: tuple[int, ...] = ()
  is_reload: bool = False
  index: int | None = None
  writers: list[int] = dataclasses.field(default_factory=list)
  readers: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, eq=False)
class _Piece:
  """A range of bytes with one history.

  Attributes:
    begin: First byte.
    end: One past the last byte.
    owner: Who has it; None if it is free.
    waits: If free, the vertices that must complete before it is overwritten.
    last_use: If free, when it was freed; -1 if it was never used.
    within: If owned, the free pieces that it was before.
  """

  begin: int
  end: int
  owner: Stay | None
  waits: tuple[int, ...] = ()
  last_use: int = -1
  within: list[_Piece] = dataclasses.field(default_factory=list)

  def part(self, begin: int, end: int) -> _Piece:
    """Returns a free piece of the same history; empty if begin == end."""
    return _Piece(begin, end, None, self.waits, self.last_use)


class DeviceMemory:
  """The memory of a device, as pieces in ascending order.

  Args:
    capacity_bytes: Its size; a multiple of what all sizes are multiples of.
  """

  def __init__(self, capacity_bytes: int):
    self._pieces = [_Piece(0, capacity_bytes, None)] if capacity_bytes else []
    self._begins = [0] if capacity_bytes else []
    # No free run is as large as this one; frees reset it.
    self._too_large = math.inf

  def find(self, size_bytes: int, place: Place) -> int | None:
    """Returns a free place, or None if no free run is large enough.

    Args:
      size_bytes: How much is needed.
      place: "oldest": where the last use is furthest in the past; among equally
        old ones, in the tightest free run. "lowest": at the lowest offset.
        "tightest": in the tightest free run.
    """
    if not size_bytes:
      return 0
    if size_bytes >= self._too_large:
      return None
    best: tuple[int, int, int] | None = None
    for begin, end in self._free_runs():
      offset = self._pieces[begin].begin
      length = self._pieces[end - 1].end - offset
      if length < size_bytes:
        continue
      if place == "lowest":
        return offset
      last = end if place == "oldest" else begin + 1
      for first in range(begin, last):
        age = self._age(first, end, size_bytes) if place == "oldest" else 0
        if age is None:
          break
        key = (age, length, self._pieces[first].begin)
        best = key if best is None else min(best, key)
    if best is None:
      self._too_large = size_bytes
      return None
    return best[2]

  def find_victims(
    self, size_bytes: int, next_use: Callable[[Stay], tuple[int, int] | None]
  ) -> tuple[int, list[Stay]] | None:
    """Returns the place whose owners are needed again last.

    Args:
      size_bytes: How much is needed.
      next_use: For an owner, when it is needed again and how many bytes it
        costs to move it away; None if it has to stay.

    Returns:
      An offset and the owners in the way, or None. The earliest next use among
      them is as late as possible; ties go to the place with the fewest bytes to
      move away, then to the lowest.
    """
    pieces = self._pieces
    uses = [
      (math.inf, 0) if p.owner is None else next_use(p.owner) for p in pieces
    ]
    best: tuple[float, int, int] | None = None
    span = (0, 0)
    for first, piece in enumerate(pieces):
      earliest, cost, last = math.inf, 0, first
      while last < len(pieces):
        use = uses[last]
        if use is None:
          break
        earliest = min(earliest, use[0])
        cost += use[1]
        if best is not None and earliest < best[0]:
          break
        if pieces[last].end - piece.begin >= size_bytes:
          key = (earliest, -cost, -piece.begin)
          if best is None or key > best:
            best, span = key, (first, last + 1)
          break
        last += 1
    if best is None:
      return None
    owners = [p.owner for p in pieces[slice(*span)] if p.owner is not None]
    return -best[2], owners

  def take(self, offset_bytes: int, stay: Stay) -> None:
    """Gives free bytes to an owner; sets its offset and what it waits for."""
    end = offset_bytes + stay.size_bytes
    stay.offset_bytes = offset_bytes
    if not stay.size_bytes:
      return
    first = bisect.bisect_right(self._begins, offset_bytes) - 1
    last = first
    while self._pieces[last].end < end:
      last += 1
    covered = self._pieces[first : last + 1]
    if any(piece.owner is not None for piece in covered):
      raise AssertionError(f"{stay.name!r} would overwrite an owner")
    stay.waits = tuple({v: None for piece in covered for v in piece.waits})
    head, tail = covered[0], covered[-1]
    left = [head.part(head.begin, offset_bytes)]
    right = [tail.part(end, tail.end)]
    within = [
      piece.part(max(piece.begin, offset_bytes), min(piece.end, end))
      for piece in covered
    ]
    owned = _Piece(offset_bytes, end, stay, within=within)
    new = [p for p in (*left, owned, *right) if p.begin < p.end]
    self._replace(first, last + 1, new)

  def give_back(self, stay: Stay) -> None:
    """Undoes `take`: nothing was written, and nobody has to wait for it."""
    if not stay.size_bytes:
      return
    at = self._find(stay)
    self._replace(at, at + 1, self._pieces[at].within)
    self._too_large = math.inf

  def free(self, stay: Stay, waits: tuple[int, ...], time: int) -> None:
    """Frees what an owner has.

    Args:
      stay: The owner.
      waits: Who must have completed before its bytes are overwritten.
      time: When it was used last.
    """
    if not stay.size_bytes:
      return
    at = self._find(stay)
    old = self._pieces[at]
    self._pieces[at] = _Piece(old.begin, old.end, None, waits, time)
    self._too_large = math.inf

  def owners(self) -> list[Stay]:
    """Returns who has bytes, by offset."""
    return [p.owner for p in self._pieces if p.owner is not None]

  def _find(self, stay: Stay) -> int:
    """Returns which piece an owner has."""
    at = bisect.bisect_left(self._begins, stay.offset_bytes)
    if self._pieces[at].owner is not stay:
      raise AssertionError(f"{stay.name!r} does not own its bytes")
    return at

  def _replace(self, first: int, end: int, new: list[_Piece]) -> None:
    self._pieces[first:end] = new
    self._begins[first:end] = [piece.begin for piece in new]

  def _free_runs(self) -> list[tuple[int, int]]:
    """Returns half-open ranges of adjacent free pieces."""
    runs: list[tuple[int, int]] = []
    begin = None
    for index, piece in enumerate(self._pieces):
      if piece.owner is None:
        begin = index if begin is None else begin
      elif begin is not None:
        runs.append((begin, index))
        begin = None
    if begin is not None:
      runs.append((begin, len(self._pieces)))
    return runs

  def _age(self, first: int, end: int, size_bytes: int) -> int | None:
    """The latest last use of a place that begins with a piece of a run."""
    need = self._pieces[first].begin + size_bytes
    latest = -1
    for index in range(first, end):
      piece = self._pieces[index]
      latest = max(latest, piece.last_use)
      if piece.end >= need:
        return latest
    return None
