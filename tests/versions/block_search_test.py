"""Tests of which versions are compiled whose blocks keep something."""

from unittest import mock

from absl.testing import absltest, parameterized

from jaxmem.planning import TUNING
from jaxmem.versions import block_search
from jaxmem.versions.block_search import BlockSearch
from jaxmem.versions.tried_versions import TriedVersions

_DOUBT_S = TUNING.versions.doubt_share


class KeepTest(parameterized.TestCase):
  """Of a step of one second, whose blocks may keep 30, 20 or 10 bytes."""

  def _compiled(self, estimated_s, tried, best_s=2.0):
    """Returns what was compiled that keeps something.

    Args:
      estimated_s: What each version adds by estimate, by the bytes kept.
      tried: What comes of it when it is compiled, likewise.
      best_s: What was found before.
    """
    kept = [
      mock.Mock(
        version=number,
        hopeful_s=added_s,
        recomputed=mock.Mock(kept_bytes=number),
      )
      for number, added_s in estimated_s.items()
    ]
    every = mock.Mock(fits=True, excess_bytes=0)
    every.planner.total_bytes = 100
    versions = mock.Mock(spec=TriedVersions, limit_bytes=130, is_fast=False)
    versions.base = mock.Mock(fits=False)
    versions.base.planner.step_s = 1.0
    versions.schedules = mock.Mock(begins_early=False)
    versions.is_promising.side_effect = lambda seconds, _: seconds < best_s
    versions.compile.side_effect = lambda version: tried.get(version, every)
    with (
      mock.patch.object(block_search, "keeping", return_value=iter(kept)),
      mock.patch.object(block_search, "amounts_to_keep"),
    ):
      BlockSearch(versions, mock.Mock()).run(mock.Mock())
    return [call.args[0] for call in versions.compile.mock_calls[1:]]

  def _tried(self, *, fits, step_s, mapping_s=0.0):
    planner = mock.Mock(step_s=step_s)
    return mock.Mock(fits=fits, mapping_s=mapping_s, planner=planner)

  @parameterized.parameters(
    (True, 0.1, 0.9, [30, 10]),
    (True, 0.1, 1.1, [30]),
    (True, 0.0, 0.9, [30]),
    # What did not fit says nothing: the next is tried.
    (False, 0.1, 0.9, [30, 20, 10]),
  )
  def test_what_needs_no_mapping_is_tried_beside_what_does(
    self, fits, mapping_s, least_s, expected
  ):
    tried = self._tried(fits=fits, step_s=1.9, mapping_s=mapping_s)
    compiled = self._compiled(
      {30: 0.9, 20: 0.9, 10: least_s}, dict.fromkeys((30, 20, 10), tried)
    )
    self.assertEqual(compiled, expected)

  @parameterized.parameters(
    # The first takes half of what is doubted less than estimated. So may the
    # second, which does not, and then the third will not.
    (1 + 0.5 * _DOUBT_S, 0.9, [30, 20]),
    (1 + _DOUBT_S, 0.9, [30]),
    # However much less it takes, of the others no more is expected.
    (0.5, 1.4, [30, 20]),
    (0.5, 1.6, [30]),
  )
  def test_the_first_says_what_to_doubt(self, first_s, later, expected):
    compiled = self._compiled(
      {30: _DOUBT_S, 20: later * _DOUBT_S, 10: later * _DOUBT_S},
      {
        30: self._tried(fits=False, step_s=first_s),
        20: self._tried(fits=False, step_s=2.0),
      },
      best_s=1 + 0.5 * _DOUBT_S,
    )
    self.assertEqual(compiled, expected)


if __name__ == "__main__":
  absltest.main()
