"""Two processes of four devices each plan alike, and compute what jax.jit does.

Each plans by itself: that their plans agree is what is tested, since a process
that runs another order than the rest waits for them without end.
"""

import subprocess
from unittest import mock

import pytest
import sharded_runs
import sharded_steps
from absl.testing import absltest, parameterized


class TwoProcessesTest(parameterized.TestCase):
  def test_fsdp(self):
    self._check(["fsdp"])

  @pytest.mark.slow
  def test_all(self):
    self._check(list(sharded_steps.STEPS))

  def _check(self, names):
    first, second = sharded_runs.run(
      names, "SMALL", num_processes=2, timeout_s=300
    )
    self.assertEqual([row["name"] for row in first], names)
    for row in first:
      with self.subTest(row["name"]):
        sharded_runs.check(self, row)
        self.assertNotEqual(row["planned"]["schedule"], row["own"]["schedule"])
        self.assertNotEqual(row["limited"]["schedule"], row["own"]["schedule"])
    # The bytes, orders and limits of one are those of the other.
    self.assertEqual(first, second)

  def test_what_takes_too_long_is_ended(self):
    started = []

    def start(*args, **kwargs):
      started.append(popen(*args, **kwargs))
      return started[-1]

    popen = subprocess.Popen
    with (
      mock.patch.object(subprocess, "Popen", start),
      self.assertRaisesRegex(AssertionError, "took more than 0.1 s"),
    ):
      sharded_runs.run(["fsdp"], "SMALL", num_processes=2, timeout_s=0.1)
    self.assertLen(started, 2)
    self.assertNotIn(None, [process.poll() for process in started])


if __name__ == "__main__":
  absltest.main()
