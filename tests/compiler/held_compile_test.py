"""Compiles that wait at their schedule, and go on from there or do not."""

import threading
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import version_cases as cases
from absl.testing import absltest
from jax._src import config
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.module import Module

from jaxmem.compiler import HeldCompile, ScheduleCapture, TracedStep
from jaxmem.planning import Request


def _step(x):
  return jnp.tanh(x @ x).sum(axis=0)


_X = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(8, 8)


def _held(function=_step):
  traced = jax.jit(function).trace(_X)
  return HeldCompile(TracedStep(traced).prepare())


def _keep(data, platform):
  del data, platform


class HeldCompileTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    before = threading.active_count()
    self.addCleanup(lambda: self.assertEqual(threading.active_count(), before))
    self.addCleanup(lambda: self.assertFalse(compiler_hook.is_installed()))

  def test_it_goes_on_from_its_schedule(self):
    seen = []

    def answer(data, platform):
      seen.append(data)
      self.assertEqual(platform, "cpu")
      return data

    held = _held()
    held.start()
    shown = held.shown()
    self.assertEqual(shown.platform, "cpu")
    self.assertTrue(Module.from_bytes(shown.data).entry.instructions)
    # Another program compiles and runs while it waits.
    self.assertEqual(jax.jit(lambda x: x + 1)(1), 2)
    compiled = held.finish(answer)
    held.join()
    self.assertEqual(seen, [shown.data])
    np.testing.assert_array_equal(compiled(_X), jax.jit(_step)(_X))

  def test_several_wait_and_one_is_wanted(self):
    helds = [_held(lambda x, k=k: _step(x) * k) for k in range(4)]
    for held in helds:
      held.start()
    for held in helds:
      held.shown()
    compiled = helds[2].finish(_keep)
    for held in helds:
      held.give_up()
      held.join()
    np.testing.assert_array_equal(
      compiled(_X), jax.jit(lambda x: _step(x) * 2)(_X)
    )

  def test_given_up_before_it_starts_or_shows_anything(self):
    _held().join()
    held = _held()
    held.give_up()
    held.start()
    self.assertNotEmpty(held.shown().data)
    held.join()

  def test_what_xla_says_is_raised(self):
    def refuse(data, platform):
      raise compiler_hook.CompileRefusedError("It is not wanted.")

    held = _held()
    held.start()
    with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "not wanted"):
      held.finish(refuse)
    held.join()

  def test_what_fails_before_the_schedule_is_raised(self):
    def fail(options):
      raise ValueError("No such option.")

    held = HeldCompile(fail)
    held.start()
    for wait in (held.shown, lambda: held.finish(_keep)):
      with self.assertRaisesRegex(ValueError, "No such option"):
        wait()
    held.join()

  def test_without_threads_it_does_not_wait(self):
    held = _held()
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError):
      held.start()
    self.assertFalse(held.is_open)
    self.assertTrue(Module.from_bytes(held.shown().data).entry.instructions)
    held.join()

  def test_settings_of_the_thread_are_known(self):
    found = []

    def compile_(options):
      del options
      found.append((jax.config.jax_enable_x64, config.optimization_level.value))

    with jax.enable_x64(True), config.optimization_level("O1"):
      expected = jax.config.jax_enable_x64, config.optimization_level.value
      held = HeldCompile(compile_)
    held.start()
    held.join()
    self.assertEqual(found, [expected])
    self.assertNotEqual(jax.config.jax_enable_x64, expected[0])


class ScheduleCaptureTest(absltest.TestCase):
  def test_an_interrupt_leaves_nothing_behind(self):
    before = threading.active_count()
    request = Request(options=cases.OPTIONS, limit_bytes=1)
    with (
      self.assertRaises(KeyboardInterrupt),
      ScheduleCapture(request) as schedules,
      mock.patch.object(
        HeldCompile, "shown", autospec=True, side_effect=KeyboardInterrupt
      ),
    ):
      schedules.module(cases.traced_case())
    self.assertEqual(threading.active_count(), before)
    self.assertFalse(compiler_hook.is_installed())

  def test_outside_of_the_context_nothing_waits(self):
    before = threading.active_count()
    request = Request(options=cases.OPTIONS, limit_bytes=1)
    schedules, step = ScheduleCapture(request), cases.traced_case()
    schedules.module(step)
    self.assertEqual(threading.active_count(), before)
    self.assertIsNone(schedules.held(step))


if __name__ == "__main__":
  absltest.main()
