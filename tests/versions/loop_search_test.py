"""Tests of which amounts loops are asked not to stack, one after the other."""

from unittest import mock

from absl.testing import absltest, parameterized

from jaxmem.versions import loop_search
from jaxmem.versions.tried_versions import TriedVersions


class StackLessTest(parameterized.TestCase):
  @parameterized.parameters(
    # What each amount takes. To drop 266 in place of 400 takes longer, and
    # says nothing of what more takes.
    ({400: 1.0, 266: 1.1, 600: 0.9, 700: 0.95}, [400, 266, 600, 700]),
    # What takes longer with more ends it.
    ({400: 1.0, 266: 0.95, 600: 1.0}, [400, 266, 600]),
    ({400: 1.0, 266: 1.1, 600: 1.0}, [400, 266, 600]),
  )
  def test_what_drops_less_and_is_slower_ends_nothing(self, seconds, expected):
    # Of 800 bytes, 200 have to go: 100 and 200 save too little, 400 saves 300.
    too_little = (100, 200)

    def stacking_less(base, amount, device):
      # To keep all products saves too little.
      return mock.Mock(
        amount=amount, dropped=(f"{amount}",), extra_s=0.0, saved_bytes=100
      )

    def compiled(version):
      amount = version.amount
      tried.append(amount)
      planner = mock.Mock(total_bytes=400, step_s=seconds.get(amount, 2.0))
      fits = amount not in too_little
      return mock.Mock(version=version, fits=fits, planner=planner)

    tried = []
    versions = mock.Mock(spec=TriedVersions, limit_bytes=500, is_fast=False)
    versions.device = mock.Mock(platform="cpu")
    versions.base = mock.Mock(excess_bytes=200)
    versions.base.planner.least_bytes = 0
    versions.base.planner.step_s = 1.0
    versions.compile.side_effect = compiled
    with mock.patch.object(loop_search, "stacking_less", stacking_less):
      loop_search.stack_less(versions, 800)
    self.assertEqual(tried, [*too_little, *expected])


if __name__ == "__main__":
  absltest.main()
