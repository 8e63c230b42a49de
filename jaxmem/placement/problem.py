"""Buffers to place in one arena, and where they were placed.

The vocabulary is MiniMalloc's (Moffitt, ASPLOS 2023): times are plain integers
without a unit, ranges are half-open, and a buffer may have gaps.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any, Literal

Status = Literal["optimal", "feasible"]

# Times, and the sum of all sizes, must fit signed 64-bit integers.
LIMIT = 1 << 63


class InfeasiblePlacementError(ValueError):
  """No placement fits the capacity: proven.

  Attributes:
    conflict: Names of buffers that do not fit together, whatever is done with
      the others.
    is_irreducible: Whether without any one of them the others do fit.
    lower_bound_bytes: No placement of the whole problem is lower.
  """

  def __init__(
    self,
    message: str,
    *,
    conflict: tuple[str, ...],
    is_irreducible: bool,
    lower_bound_bytes: int,
  ):
    super().__init__(message)
    self.conflict = conflict
    self.is_irreducible = is_irreducible
    self.lower_bound_bytes = lower_bound_bytes

  def __reduce__(self) -> tuple[Any, ...]:
    """Lets it pass from process to process, and be copied."""
    make = functools.partial(
      type(self), conflict=(), is_irreducible=False, lower_bound_bytes=0
    )
    return make, self.args, self.__dict__


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
  """A time in which a buffer takes fewer bytes, or none.

  Attributes:
    lower: First time of the gap.
    upper: One past its last time.
    window: Half-open range of bytes, from the start of the buffer, that stays
      taken; None if all of the buffer is free.
  """

  lower: int
  upper: int
  window: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
  """Something to place.

  Attributes:
    name: Unique in its problem.
    size_bytes: Bytes, possibly none.
    lower: First time at which it is live.
    upper: One past the last time at which it is live.
    alignment_bytes: Its offset is a multiple of it.
    offset_bytes: Where it must be; None if it may be anywhere.
    gaps: Ascending and disjoint, within the live range.
    hint_bytes: Where it could be. If all buffers have one, it is a candidate.
    outside_cost: What it costs to keep it outside of all pools; its bytes if
      None. Only `pools` asks for it.
  """

  name: str
  size_bytes: int
  lower: int
  upper: int
  alignment_bytes: int = 1
  offset_bytes: int | None = None
  gaps: tuple[Gap, ...] = ()
  hint_bytes: int | None = None
  outside_cost: int | None = None

  def __post_init__(self):
    for name, value in (
      ("size", self.size_bytes),
      ("offset", self.offset_bytes),
      ("hint", self.hint_bytes),
      ("cost", self.outside_cost),
    ):
      if (value or 0) < 0:
        raise self._error(f"{name} must not be negative", value)
    if not -LIMIT <= self.lower < self.upper < LIMIT:
      raise self._error(
        "live range must not be empty, and must fit 64 bits",
        f"[{self.lower}, {self.upper})",
      )
    if self.alignment_bytes < 1:
      raise self._error("alignment must be positive", self.alignment_bytes)
    if (self.offset_bytes or 0) % self.alignment_bytes:
      raise self._error(
        f"offset must be a multiple of {self.alignment_bytes}",
        self.offset_bytes,
      )
    free_from = self.lower
    for gap in self.gaps:
      if not free_from <= gap.lower < gap.upper <= self.upper:
        raise self._error(
          "gaps must be ascending, disjoint and within the live range",
          f"[{gap.lower}, {gap.upper})",
        )
      free_from = gap.upper
      low, high = gap.window or (0, 0)
      if not 0 <= low <= high <= self.size_bytes:
        raise self._error(
          f"the window of a gap must be within its {self.size_bytes} bytes",
          f"[{low}, {high})",
        )

  def _error(self, rule: str, got: object) -> ValueError:
    return ValueError(f"Buffer {self.name!r}: {rule}, got {got}.")


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
  """Buffers that share one arena.

  Attributes:
    buffers: At least one.
  """

  buffers: tuple[Buffer, ...]

  def __post_init__(self):
    if not self.buffers:
      raise ValueError("A problem must have at least one buffer, got none.")
    names = collections.Counter(b.name for b in self.buffers)
    for name, count in names.most_common(1):
      if count > 1:
        raise ValueError(f"Two buffers are named {name!r}.")
    # No placer needs more than all buffers one after another on top of what is
    # fixed, so that no offset overflows.
    worst = sum(b.size_bytes + b.alignment_bytes for b in self.buffers)
    worst += max(
      max(b.offset_bytes or 0, b.hint_bytes or 0) for b in self.buffers
    )
    if worst >= LIMIT:
      raise ValueError(
        f"All buffers together must be less than 2**63 bytes, got {worst};"
        " use a larger unit than bytes."
      )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
  """Where the buffers of a problem are.

  Attributes:
    offsets: Offset of each buffer, in bytes, in the problem's order.
    height_bytes: One past the highest byte that any buffer ever takes.
    lower_bound_bytes: No placement is lower. The bytes live at once, if nothing
      better is known.
    method: What found it.
    seconds: Wall time of the search. It decides nothing, and solutions that
      differ only in it are equal.
  """

  offsets: tuple[int, ...]
  height_bytes: int
  lower_bound_bytes: int
  method: str
  seconds: float = dataclasses.field(default=0.0, compare=False)

  @property
  def status(self) -> Status:
    """Whether the height equals the lower bound: "optimal" then."""
    is_optimal = self.height_bytes == self.lower_bound_bytes
    return "optimal" if is_optimal else "feasible"

  def fits(self, capacity: int) -> bool:
    """Whether the placement needs at most so many bytes."""
    return self.height_bytes <= capacity
