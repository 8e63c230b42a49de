"""Sets as integers, against Python's own sets."""

import random

import pytest

from jaxmem.experimental.allocators import bit_sets


def _random_sets(seed, num_sets, count):
  rng = random.Random(seed)
  return [
    {member for member in range(count) if rng.random() < density}
    for density in (rng.random() for _ in range(num_sets))
  ]


# 512 numbers are turned at once.
@pytest.mark.parametrize("count", [1, 7, 8, 9, 511, 512, 513, 1200])
def test_sets_are_turned_and_become_flags(count):
  for num_sets in (0, 1, 30):
    sets = _random_sets(count, num_sets, count)
    bits = [sum(1 << member for member in each) for each in sets]
    assert bit_sets.transposed(bits, count) == [
      sum(1 << number for number, each in enumerate(sets) if member in each)
      for member in range(count)
    ]
    for each, members in zip(bits, sets, strict=True):
      flags = bit_sets.flags(each, count)
      assert flags.tolist() == [member in members for member in range(count)]
      assert bit_sets.from_flags(flags) == each
