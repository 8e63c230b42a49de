"""Sets of numbers as Python integers, bit i for member i, and as flags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# How many bytes of each row are turned at once: bounds what that takes.
_BLOCK_BYTES = 64


def packed(sets: Sequence[int], count: int) -> np.ndarray:
  """Returns sets of numbers below `count` as rows of bits.

  Args:
    sets: The sets, none with a number of `count` or above.
    count: How many numbers there are.

  Returns:
    uint8 `[len(sets), ceil(count / 8)]`, bit i % 8 of byte i // 8 for member i.
  """
  width = -(-count // 8)
  data = b"".join(each.to_bytes(width, "little") for each in sets)
  return np.frombuffer(data, np.uint8).reshape(len(sets), width)


def flags(members: int, count: int) -> np.ndarray:
  """Returns a set as booleans `[count]`."""
  return np.unpackbits(
    packed([members], count)[0], count=count, bitorder="little"
  ).view(bool)


def from_flags(members: np.ndarray) -> int:
  """Returns booleans `[count]` as a set."""
  return int.from_bytes(np.packbits(members, bitorder="little"), "little")


def transposed(sets: Sequence[int], count: int) -> list[int]:
  """Returns, for each number below `count`, which of the sets have it."""
  rows = packed(sets, count)
  found: list[int] = []
  for begin in range(0, rows.shape[1], _BLOCK_BYTES):
    block = rows[:, begin : begin + _BLOCK_BYTES]
    bits = np.unpackbits(block, axis=1, bitorder="little")
    columns = np.packbits(bits.T, axis=1, bitorder="little")
    found += [int.from_bytes(column, "little") for column in columns]
  return found[:count]
