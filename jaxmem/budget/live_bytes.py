"""Live bytes at the keys of a plan, counted anew only where it changes."""

from __future__ import annotations

import bisect
import copy
from collections.abc import Iterable

import numpy as np

# A version of a value lives from the key of its producer to that of its last
# reader, both included.
Interval = tuple[int, int]
_NO_BYTES = np.zeros((4, 1), np.int64)


class LiveBytes:
  """Bytes that begin, end, are shared and come on top at each key.

  Args:
    keys: The keys of the steps, ascending.
    extra_bytes: What the steps need only while they run, int64.
    end: Versions that end there are live after the last key.

  Attributes:
    keys: Of all steps and runs, ascending. Nobody else changes them.
  """

  def __init__(self, keys: list[int], extra_bytes: np.ndarray, end: int):
    self.keys = keys
    self._end = end
    self._shared_at: dict[int, int] = {}
    self._live: np.ndarray | None = None
    rows = np.zeros((4, len(keys)), np.int64)
    rows[3] = extra_bytes
    self._set_rows(rows)

  def copy(self) -> LiveBytes:
    """Returns the same bytes, to be changed apart from these."""
    other = copy.copy(self)
    other.keys = [*self.keys]
    other._shared_at = dict(self._shared_at)
    other._set_rows(self._rows.copy())
    return other

  @property
  def live(self) -> np.ndarray:
    """Live bytes at each of `keys`, int64: another array after a change."""
    if self._live is None:
      changes = self._starts.copy()
      changes[1:] -= self._ends[:-1]
      live = changes.cumsum() + self._extra - self._shared
      self._live = live
      return live
    return self._live

  def neighbours(self, key: int) -> tuple[int, int]:
    """Returns the keys before and after one, which may be there or not."""
    before = bisect.bisect_left(self.keys, key) - 1
    after = bisect.bisect_right(self.keys, key)
    return (
      self.keys[before] if before >= 0 else -1,
      self.keys[after] if after < len(self.keys) else self._end,
    )

  def between(self, start: int, end: int) -> tuple[int, int]:
    """Returns where the keys between two keys begin and end in `keys`."""
    first = bisect.bisect_right(self.keys, start)
    return first, bisect.bisect_left(self.keys, end, first)

  def insert(self, key: int) -> None:
    """Adds a key at which nothing begins or ends yet."""
    at = bisect.bisect_left(self.keys, key)
    self.keys.insert(at, key)
    before_it, after_it = self._rows[:, :at], self._rows[:, at:]
    rows = np.concatenate((before_it, _NO_BYTES, after_it), axis=1)
    self._set_rows(rows)

  def remove(self, key: int) -> None:
    """Takes out a key at which nothing begins or ends any more."""
    at = bisect.bisect_left(self.keys, key)
    del self.keys[at]
    self._shared_at.pop(key, None)
    before_it, after_it = self._rows[:, :at], self._rows[:, at + 1 :]
    self._set_rows(np.concatenate((before_it, after_it), axis=1))

  def count(self, intervals: Iterable[Interval], size_bytes: int) -> None:
    """Adds bytes over intervals; a negative number takes them away.

    Args:
      intervals: They may begin and end between keys.
      size_bytes: Bytes of each.
    """
    for start, end in intervals:
      self._starts[bisect.bisect_left(self.keys, start)] += size_bytes
      if end < self._end:
        self._ends[bisect.bisect_right(self.keys, end) - 1] += size_bytes
    self._live = None

  def set_shared(self, key: int, shared_bytes: int) -> None:
    """Sets how many bytes outputs share at a key with operands that die."""
    if shared_bytes != self._shared_at.get(key, 0):
      self._shared_at[key] = shared_bytes
      self._shared[bisect.bisect_left(self.keys, key)] = shared_bytes
      self._live = None

  def _set_rows(self, rows: np.ndarray) -> None:
    self._rows = rows
    self._starts, self._ends, self._shared, self._extra = rows
    self._live = None


class Excess:
  """Bytes live above a limit, summed over spans of the keys.

  Args:
    memory: What is live.
    limit_bytes: The limit.

  Attributes:
    limit_bytes: The limit.
  """

  def __init__(self, memory: LiveBytes, limit_bytes: int):
    self._memory = memory
    self.limit_bytes = limit_bytes
    # Sums up to each key, and the live bytes they are of.
    self._sums = np.zeros(1, np.int64)
    self._live: np.ndarray | None = None

  def total(self) -> int:
    """Returns the sum over all keys."""
    return int(self._up_to_date()[-1])

  def between(self, first: int, last: int) -> int:
    """Returns the sum over a span of positions, the last one left out."""
    sums = self._up_to_date()
    return int(sums[last] - sums[first])

  def _up_to_date(self) -> np.ndarray:
    live = self._memory.live
    if live is not self._live:
      self._live = live
      self._sums = np.zeros(len(live) + 1, np.int64)
      np.maximum(live - self.limit_bytes, 0).cumsum(out=self._sums[1:])
    return self._sums
