"""Tests of placement; executable_test has those on real executables."""

from absl.testing import absltest, parameterized
from jaxmem_hlo.cpu_executable import placement
from jaxmem_hlo.cpu_executable.placement import PlacementItem, PlacementPart


def _item(name, size_bytes, *live_ranges):
  part = PlacementPart(0, size_bytes, live_ranges, (0,))
  return PlacementItem(name, size_bytes, live_ranges, 0, (part,))


class CheckPlacementTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.items = [
      _item("a", 128, (0, 2)),
      _item("b", 64, (2, 5)),
      _item("c", 64, (1, 2), (4, 6)),
    ]

  def test_bytes_can_be_shared_at_other_times(self):
    placement.check_placement(self.items, [0, 64, 128], 192)

  @parameterized.parameters(
    ([0, 64, 64], 192, "a at offset 0 and c at offset 64 share bytes"),
    ([0, 192, 192], 256, "b at offset 192 and c at offset 192 share bytes"),
    ([16, 64, 192], 256, "offset of a must be a multiple of 64, got 16"),
    ([0, 64, 128], 191, "c needs 64 bytes at offset 128, which is outside"),
    ([0, -64, 128], 192, "b needs 64 bytes at offset -64, which is outside"),
    ([0, 64], 192, "Expected 3 offsets, got 2"),
  )
  def test_names_what_is_wrong(self, offsets, size_bytes, message):
    with self.assertRaisesRegex(ValueError, message):
      placement.check_placement(self.items, offsets, size_bytes)

  def test_parts_leave_their_gaps_to_others(self):
    parts = (
      PlacementPart(0, 64, ((0, 9),), (0,)),
      PlacementPart(64, 64, ((0, 1),), (1,)),
      PlacementPart(128, 64, ((0, 9),), (2,)),
    )
    rigid = PlacementItem("rigid", 192, ((0, 9),), 0, parts)
    late = _item("late", 64, (1, 9))
    placement.check_placement([rigid, late], [0, 64], 192)
    with self.assertRaisesRegex(ValueError, "rigid at offset 0 and late"):
      placement.check_placement([rigid, late], [0, 128], 192)


if __name__ == "__main__":
  absltest.main()
