"""Tests of jaxmem_hlo.packing, with heights worked out by hand."""

import itertools
import random

import numpy as np
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import packing
from jaxmem_hlo.assignment.packing import Block


def _pack(*rows, alignment_bytes=1):
  """Packs rows of (bytes, first time, last time, ...)."""
  blocks = []
  for key, (size, *times) in enumerate(rows):
    pairs = list(zip(times[::2], times[1::2], strict=True))
    blocks.append(Block(key, size, pairs))
  return packing.pack(blocks, alignment_bytes)


class PackTest(parameterized.TestCase):
  def test_nothing(self):
    self.assertEqual(_pack(), (0, []))

  def test_blocks_that_never_meet_share_bytes(self):
    self.assertEqual(_pack((10, 0, 1), (7, 2, 3)), (10, [0, 0]))

  def test_ranges_include_both_ends(self):
    self.assertEqual(_pack((10, 0, 2), (7, 2, 3)), (17, [0, 10]))

  def test_the_smallest_gap_that_fits_is_taken(self):
    # By size: 20, 18, 16, 14, 12 stack to 80. Once the second and the fourth
    # are dead, gaps of 18 bytes at 20 and of 14 bytes at 54 are left between
    # the others: the first 10 bytes go into the smaller one. It then has 4
    # left, so the other 10 go to 20. By duration the three long ones come
    # first, 20 + 16 + 12, then 18 and 14 on top of them: 80 again.
    rows = [
      (20, 0, 10),
      (18, 0, 5),
      (16, 0, 10),
      (14, 0, 5),
      (12, 0, 10),
      (10, 6, 10),
      (10, 6, 10),
    ]
    self.assertEqual(_pack(*rows), (80, [0, 20, 38, 54, 68, 54, 20]))

  def test_by_duration_where_that_is_lower(self):
    # By size: 6 at 0; 5 at 0; 4 meets both, at 6; 2 does not fit between 5
    # and 6, so it goes to 10: 12 bytes. By duration: 4 at 0, 6 at 4, 5 at 4,
    # 2 at 9: 11 bytes.
    rows = [(5, 4, 4), (2, 4, 4), (4, 1, 4), (6, 1, 2)]
    self.assertEqual(_pack(*rows), (11, [4, 9, 0, 4]))

  def test_keys_break_ties(self):
    # Alike but for the key: the lower key lies lower.
    blocks = [Block(7, 4, [(0, 1)]), Block(3, 4, [(0, 1)])]
    self.assertEqual(packing.pack(blocks, 1), (8, [4, 0]))

  def test_offsets_are_aligned_and_the_height_is_not(self):
    self.assertEqual(
      _pack((70, 0, 1), (10, 0, 1), alignment_bytes=64), (138, [0, 128])
    )

  def test_a_block_may_be_live_twice(self):
    # The second fits between the two ranges of the first; the third does not.
    self.assertEqual(_pack((9, 0, 1, 6, 7), (8, 2, 5)), (9, [0, 0]))
    self.assertEqual(_pack((9, 0, 1, 6, 7), (8, 2, 6)), (17, [0, 9]))

  @parameterized.parameters(*range(20))
  def test_live_blocks_never_overlap(self, seed):
    generator = random.Random(seed)
    rows = []
    for _ in range(generator.randrange(1, 40)):
      times = sorted(generator.sample(range(60), 4))
      if generator.random() < 0.7:
        times = times[:2]
      rows.append((generator.randrange(1, 500), *times))
    alignment = generator.choice([1, 64, 256])
    height, offsets = _pack(*rows, alignment_bytes=alignment)
    self.assertTrue(all(offset % alignment == 0 for offset in offsets))
    tops = [offset + row[0] for offset, row in zip(offsets, rows, strict=True)]
    self.assertEqual(height, max(tops))
    for time in range(60):
      live = [
        (offsets[i], tops[i])
        for i, (_, *times) in enumerate(rows)
        if any(a <= time <= b for a, b in zip(times[::2], times[1::2]))  # noqa: B905
      ]
      live.sort()
      for below, above in itertools.pairwise(live):
        self.assertLessEqual(below[1], above[0])


class GapTest(parameterized.TestCase):
  @parameterized.parameters(
    (((0, 4), (10, 14)), 6, 4),  # Exactly between them.
    (((0, 4), (10, 14)), 7, 14),  # Nowhere but on top.
    (((3, 4), (6, 14)), 2, 4),  # 2 bytes at 4, though 3 are free at 0.
    (((3, 4), (7, 14)), 2, 0),  # 3 bytes at 0 and at 4: the lower.
    (((0, 9), (2, 4), (12, 14)), 3, 9),  # One lies inside another.
    ((), 5, 0),
  )
  def test_smallest_then_lowest(self, taken, size, expected):
    lows = np.array([t[0] for t in taken], np.int64)
    highs = np.array([t[1] for t in taken], np.int64)
    self.assertEqual(packing._best_gap(lows, highs, size), expected)


class RoundTest(parameterized.TestCase):
  @parameterized.parameters(
    (0, 64, 0), (1, 64, 64), (64, 64, 64), (65, 64, 128)
  )
  def test_round_up(self, value, multiple, expected):
    self.assertEqual(packing.round_up(value, multiple), expected)


if __name__ == "__main__":
  absltest.main()
