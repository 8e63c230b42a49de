"""The garbage collector is paused while anybody plans, and runs afterwards."""

import gc
import threading
from unittest import mock

from absl.testing import absltest

from jaxmem.planning import collector
from jaxmem.planning.collector import paused_collector


class PausedCollectorTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.addCleanup(gc.enable if gc.isenabled() else gc.disable)
    gc.enable()

  def test_pauses_within_each_other(self):
    with paused_collector():
      with paused_collector():
        self.assertFalse(gc.isenabled())
      self.assertFalse(gc.isenabled())
    self.assertTrue(gc.isenabled())

  def test_runs_again_after_an_error(self):
    with self.assertRaises(KeyError), paused_collector():
      raise KeyError
    self.assertTrue(gc.isenabled())

  def test_runs_again_after_an_interrupt_at_its_end(self):
    end = collector._end
    with (
      mock.patch.object(
        collector, "_end", side_effect=[KeyboardInterrupt, mock.DEFAULT]
      ) as ending,
      self.assertRaises(KeyboardInterrupt),
      paused_collector(),
    ):
      ending.return_value = None
      self.assertFalse(gc.isenabled())
      (pause,) = collector._pauses
    self.assertEqual([call.args for call in ending.mock_calls], [(pause,)] * 2)
    end(pause)
    self.assertTrue(gc.isenabled())

  def test_stays_off_where_it_was_off(self):
    gc.disable()
    with paused_collector():
      pass
    self.assertFalse(gc.isenabled())

  def test_two_threads_whose_pauses_overlap(self):
    # The second begins while the first has it paused, and ends last.
    has_begun, may_end = threading.Event(), threading.Event()

    def plan():
      with paused_collector():
        has_begun.set()
        may_end.wait()

    second = threading.Thread(target=plan)
    with paused_collector():
      second.start()
      has_begun.wait()
    self.assertFalse(gc.isenabled())
    may_end.set()
    second.join()
    self.assertTrue(gc.isenabled())


if __name__ == "__main__":
  absltest.main()
