"""Versions that begin to compile early, in threads."""

import threading
from unittest import mock

import jax
import version_cases as cases
from absl.testing import absltest, parameterized
from jaxmem_hlo import compiler_hook

import jaxmem
from jaxmem import targets
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.planning import Request


def early():
  """Has compiles begin early on a CPU, too."""
  return mock.patch.object(ScheduleCapture, "begins_early", True)


def request_for(fraction):
  return Request(options=cases.OPTIONS, limit_bytes=cases.limit_of(fraction))


class EarlyTest(parameterized.TestCase):
  @parameterized.parameters(0.5, 0.7, 0.9)
  def test_the_same_is_chosen(self, fraction):
    request = request_for(fraction)
    traced = cases.traced_case()
    version, decided = cases.pick_version(request, traced)
    begin = ScheduleCapture.begin
    with (
      early(),
      mock.patch.object(
        ScheduleCapture, "begin", autospec=True, side_effect=begin
      ) as begun,
    ):
      other, also = cases.pick_version(request, traced)
    self.assertGreaterEqual(begun.call_count, 2)
    self.assertEqual(version, other)
    assert decided is not None and also is not None
    self.assertEqual(decided.fingerprint, also.fingerprint)

  def test_nothing_stays_behind(self):
    before = threading.active_count()
    with early():
      cases.pick_version(request_for(0.7))
    self.assertEqual(threading.active_count(), before)
    self.assertFalse(compiler_hook.is_installed())

  def test_what_was_begun_is_not_begun_again(self):
    step = cases.traced_case()
    # Its limit is found by compiles; they do not count.
    request = request_for(0.7)
    prepare = TracedStep.prepare
    with (
      early(),
      mock.patch.object(
        TracedStep, "prepare", autospec=True, side_effect=prepare
      ) as lowered,
      ScheduleCapture(request) as schedules,
    ):
      schedules.begin(step)
      schedules.begin(step)
      schedules.module(step)
    lowered.assert_called_once()

  def test_only_for_gpus(self):
    for name, expected in (("h200", True), ("cpu", False)):
      request = Request(
        options=jaxmem.Options(), limit_bytes=1, target=targets.get(name)
      )
      self.assertFalse(ScheduleCapture(request).begins_early)
      with ScheduleCapture(request) as schedules:
        self.assertEqual(schedules.begins_early, expected)
    group = targets.DeviceGroup.of(jax.devices())
    request = Request(options=jaxmem.Options(), limit_bytes=1, group=group)
    with ScheduleCapture(request) as schedules:
      self.assertFalse(schedules.begins_early)


if __name__ == "__main__":
  absltest.main()
