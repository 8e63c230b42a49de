"""For how many temporaries a plan is made: as many as pay, or as there are."""

import math
from unittest import mock

from absl.testing import absltest, parameterized

from jaxmem import cost, targets
from jaxmem.planning import TUNING
from jaxmem.planning.aim import MOST_PROMISING_VIEW
from jaxmem.planning.promise import promise

_CPU = cost.device_for("cpu")
_MB = 2**20
# Below so many megabytes nothing is mapped anew.
_KEPT = _CPU.most_kept_bytes


def _base(
  needed_bytes, seconds, least_bytes=0, step_s=0.01, baseline_bytes=2**40
):
  """Returns an ordered module that needs so much, and whose edits cost so."""
  names = ["unedited", "estimate", "bound", "step_s", "planned"]
  base = mock.Mock(spec_set=names)
  base.planned.decision.baseline_bytes = baseline_bytes
  base.step_s = step_s
  base.unedited().temp_bytes = needed_bytes
  base.bound.num_bytes = least_bytes

  def estimate(view, live_bytes, useless_s):
    edits_s = seconds(live_bytes / TUNING.promise.estimated_live_share)
    # In the other view more bytes are counted.
    edits_s += 1e-3 * (view != MOST_PROMISING_VIEW)
    return edits_s if edits_s < useless_s else math.inf

  base.estimate.side_effect = estimate
  return base


def _missing(rate_s, needed_bytes):
  return lambda room: rate_s * (needed_bytes - room)


class PromiseTest(parameterized.TestCase):
  def test_what_fits_needs_no_edits(self):
    base = _base(800 * _MB, lambda room: math.inf)
    made = promise(base, _CPU, 900 * _MB)
    self.assertEqual((made.room_bytes, made.edits_s), (900 * _MB, 0.0))
    self.assertEqual(made.mapping_s, _CPU.mapping_s(800 * _MB))

  def test_what_fits_may_be_faster_with_less(self):
    # Free until half is left, and beyond everything after that.
    base = _base(800 * _MB, lambda room: 0.0 if room >= 400 * _MB else 1.0)
    for room_bytes in (800 * _MB, 900 * _MB):
      made = promise(base, _CPU, room_bytes)
      self.assertEqual(made.room_bytes, 400 * _MB)
      self.assertEqual(made.mapping_s, _CPU.mapping_s(400 * _MB))

  def test_what_xla_keeps_by_itself_asks_for_nothing(self):
    base = _base(800 * _MB, lambda room: 0.0, baseline_bytes=900 * _MB)
    self.assertEqual(promise(base, _CPU, 900 * _MB).room_bytes, 900 * _MB)
    self.assertEqual(promise(base, _CPU, 899 * _MB).room_bytes, 200 * _MB)

  @parameterized.parameters(0.0, 1e-9)
  def test_cheap_edits_go_as_far_as_they_save(self, cheap_s):
    # Free until half is left, and beyond everything after that.
    base = _base(800 * _MB, lambda room: cheap_s if room >= 400 * _MB else 1.0)
    made = promise(base, _CPU, 750 * _MB)
    self.assertEqual(made.room_bytes, 400 * _MB)
    self.assertEqual(made.mapping_s, _CPU.mapping_s(400 * _MB))

  @parameterized.parameters((0.9, 0.25), (1.1, 0.9))
  def test_edits_are_weighed_with_what_mapping_takes_at_least(
    self, ratio, expected
  ):
    saved_s = TUNING.promise.sure_mapping_share * _CPU.mapping_s(800 * _MB)
    rate_s = ratio * saved_s / (800 * _MB)
    base = _base(800 * _MB, _missing(rate_s, 800 * _MB))
    made = promise(base, _CPU, int(0.9 * 800 * _MB))
    self.assertEqual(made.room_bytes, int(expected * 800 * _MB))

  def test_a_larger_limit_promises_no_longer_step(self):
    needed = 600 * _MB
    base = _base(needed, lambda room: 3e-19 * (needed - room) ** 2 + 1e-9)
    shares = TUNING.promise.lower_room_shares
    limits = sorted(int(share * needed) for share in shares)
    found = [promise(base, _CPU, limit).least_s for limit in limits]
    self.assertEqual(found, sorted(found, reverse=True))
    self.assertLess(found[-1], found[0])

  def test_a_leap_to_where_nothing_is_mapped(self):
    # No room between the limit and the leap is worth its edits.
    needed = 88 * _MB
    base = _base(needed, _missing(2e-10, needed))
    made = promise(base, _CPU, 60 * _MB)
    self.assertEqual((made.room_bytes, made.mapping_s), (_KEPT, 0.0))
    # One that is too far is not looked for.
    made = promise(base, _CPU, 85 * _MB)
    self.assertEqual(made.room_bytes, 85 * _MB)

  def test_not_below_what_every_plan_needs(self):
    base = _base(800 * _MB, lambda room: 1e-9, least_bytes=500 * _MB)
    self.assertGreaterEqual(
      promise(base, _CPU, 750 * _MB).room_bytes, 500 * _MB
    )
    base = _base(60 * _MB, lambda room: 1e-9, least_bytes=50 * _MB)
    self.assertEqual(promise(base, _CPU, 55 * _MB).room_bytes, 52.5 * _MB)

  def test_next_to_nothing_is_not_looked_for(self):
    needed, room = 66 * _MB, 60 * _MB
    base = _base(needed, _missing(1e-12, needed), step_s=10.0)
    self.assertEqual(promise(base, _CPU, room).room_bytes, room)
    # Of the room itself, and of no smaller one.
    base.estimate.assert_called_once()

  def test_nothing_is_mapped_on_a_gpu(self):
    device = cost.device_for(targets.get("h200"))
    base = _base(800 * _MB, lambda room: 0.25)
    made = promise(base, device, 700 * _MB)
    self.assertEqual(
      (made.room_bytes, made.edits_s, made.mapping_s), (700 * _MB, 0.25, 0.0)
    )


if __name__ == "__main__":
  absltest.main()
