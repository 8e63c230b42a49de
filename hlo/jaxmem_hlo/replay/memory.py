"""Byte ranges and what they hold while a schedule is replayed.

A version is what one execution of an instruction leaves at one shape index.
It is written once, to one place; whatever is written there later makes it
unreadable, even if only one byte is touched.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from jaxmem_hlo.buffers import Value
from jaxmem_hlo.module import Instruction, ShapeIndex


class Place(NamedTuple):
  """Bytes [offset, offset + size) of an allocation."""

  allocation: int
  offset: int
  size: int

  @property
  def end(self) -> int:
    """One past the last byte."""
    return self.offset + self.size

  def __str__(self) -> str:
    return f"allocation {self.allocation} bytes [{self.offset}, {self.end})"


@dataclasses.dataclass(slots=True, eq=False)
class Version:
  """What one execution of an instruction leaves at one shape index.

  Attributes:
    instruction: The writer; an entry parameter or constant for what is there
      before the program starts.
    index: Where in the writer's shape.
    value: The value of the dataflow analysis that this is an instance of.
    place: The bytes it is written to.
    step: The writer's position in the schedule of its computation.
  """

  instruction: Instruction
  index: ShapeIndex
  value: Value
  place: Place
  step: int

  def __str__(self) -> str:
    return describe(self.instruction, self.index)

  @property
  def dated(self) -> str:
    """Its name and when it is written."""
    return f"{self} ({when(self.instruction, self.step)})"

  @property
  def located(self) -> str:
    """Its name, when and where it is written."""
    return f"{self.dated} in {self.place}"


Tree = dict[ShapeIndex, Version]


class Piece(NamedTuple):
  """Bytes [start, end) of an allocation and the version they hold."""

  start: int
  end: int
  version: Version | None


class Memory:
  """Which version every byte of every allocation holds."""

  def __init__(self) -> None:
    # For each allocation, the sorted starts of pieces, and what each piece
    # holds up to the next start. The last piece never ends.
    self._maps: dict[int, tuple[list[int], list[Version | None]]] = {}

  def copy(self) -> Memory:
    """Returns an independent copy."""
    copy = Memory()
    copy._maps = {
      allocation: (list(starts), list(held))
      for allocation, (starts, held) in self._maps.items()
    }
    return copy

  def write(self, version: Version) -> None:
    """Lets the version's place hold it and nothing else."""
    place = version.place
    if not place.size:
      return
    starts, held = self._maps.setdefault(place.allocation, ([0], [None]))
    first = bisect.bisect_left(starts, place.offset)
    last = bisect.bisect_right(starts, place.end) - 1
    new_starts: list[int] = [place.offset]
    new_held: list[Version | None] = [version]
    if starts[last] < place.end:
      new_starts.append(place.end)
      new_held.append(held[last])
      last += 1
    starts[first:last] = new_starts
    held[first:last] = new_held

  def holds(self, version: Version) -> bool:
    """Returns whether the version is still intact in its place."""
    place = version.place
    if not place.size:
      return True
    starts, held = self._maps.get(place.allocation, ([0], [None]))
    # The first piece of an intact version is its only one: pieces are split
    # by nothing but writes of other versions.
    i = bisect.bisect_right(starts, place.offset) - 1
    return held[i] is version and (
      i + 1 == len(starts) or starts[i + 1] >= place.end
    )

  def pieces(self, place: Place) -> Iterator[Piece]:
    """Yields what a place holds, by increasing address."""
    if not place.size:
      return
    starts, held = self._maps.get(place.allocation, ([0], [None]))
    i = bisect.bisect_right(starts, place.offset) - 1
    while i < len(starts) and starts[i] < place.end:
      start = max(starts[i], place.offset)
      end = min(starts[i + 1], place.end) if i + 1 < len(starts) else place.end
      yield Piece(start, end, held[i])
      i += 1


def describe(instruction: Instruction, index: ShapeIndex = ()) -> str:
  """Returns a name such as fusion.3{1}."""
  if not index:
    return instruction.name
  return f"{instruction.name}{{{','.join(map(str, index))}}}"


def when(instruction: Instruction, step: int) -> str:
  """Returns a point of a schedule in words; before it, if negative."""
  if step < 0:
    return "before the first step"
  return f"step {step} of {instruction.computation.name}"
