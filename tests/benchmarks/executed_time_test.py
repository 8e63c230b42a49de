"""The benchmark that executes plans, in small, and what it makes of rows."""

import importlib.util
import json
import math
import os
import unittest
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, flagsaver

_MISSING = [
  package
  for package in ("equinox", "flax", "optax")
  if importlib.util.find_spec(package) is None
]
if _MISSING and not os.environ.get("CI"):
  raise unittest.SkipTest(f"{_MISSING} are not installed; see .[test].")

import optax  # noqa: E402

from benchmarks import (  # noqa: E402
  executed_time_benchmark,
  executed_time_report,
  policies,
)
from benchmarks.held_out import step as held_out_step  # noqa: E402


def _small_step(policy=None):
  """Returns a step of three blocks; products, and what lies between them."""

  def block(weights, x):
    for w in weights:
      x = jnp.sin(x @ w) * x
    return x

  def loss(params, x):
    run = held_out_step.checkpointed(block, policy)
    for weights in params:
      x = run(weights, x)
    return jnp.square(x).mean()

  return held_out_step.make_train_step(
    lambda key: list(jax.random.normal(key, (3, 3, 16, 16)) / 4),
    loss,
    optax.sgd(1e-3),
    [held_out_step.floats(64, 16)],
  )


def _row(kind, *, estimated, executed, compile_s=3.0, **others):
  return {
    "step": "small",
    "kind": kind,
    "policy": None,
    "share": None,
    "limit_bytes": None,
    "total_bytes": 8_000_000,
    "num_instructions": 7,
    "compile_wall_s": compile_s,
    "compile_cpu_s": compile_s,
    "backend_cpu_s": 2.0,
    "wall_s": executed / 10,
    "rounds": 5,
    "estimated_ratio": estimated,
    "is_bit_equal": True,
    "largest_difference": 0.0,
    **{
      clock: {
        "median_of_ratios": executed,
        "median_of_ratios_interval": [executed, executed],
      }
      for clock in ("wall", "cpu")
    },
    **others,
  }


class MeasureTest(absltest.TestCase):
  @pytest.mark.slow
  def test_all_ways_run_and_keep_their_limits(self):
    shares, efforts = ["0.9", "0.001"], ["normal", "fast"]
    with flagsaver.as_parsed(rounds="2", shares=shares, efforts=efforts):
      rows = executed_time_benchmark.measure("small", _small_step)
    rows = json.loads(json.dumps(rows))
    plain, unlimited, *groups = rows[:-4]
    self.assertEqual((plain["kind"], unlimited["kind"]), ("jit", "jaxmem"))
    self.assertEqual(plain["estimated_ratio"], 1)
    self.assertEqual(plain["wall"]["median_of_ratios"], 1)
    self.assertTrue(unlimited["is_bit_equal"])
    for policy, plan, fast in zip(
      *(groups[i::3] for i in range(3)), strict=True
    ):
      self.assertEqual((plan["effort"], fast["effort"]), ("normal", "fast"))
      for each in (plan, fast):
        self.assertEqual(policy["policy"], each["policy"])
        self.assertEqual(each["limit_bytes"], policy["total_bytes"])
        # A plan may be impossible, but never above its limit.
        if "error" not in each:
          self.assertLessEqual(each["total_bytes"], each["limit_bytes"])
          self.assertLess(each["largest_difference"], 1e-4)
      if "error" not in plan:
        self.assertGreater(plan["to_policy"]["median_of_ratios"], 0)
        if "error" not in fast:
          self.assertGreater(fast["to_first_effort"]["median_of_ratios"], 0)
          self.assertNotIn("to_policy", fast)
    self.assertEqual(
      [row["policy"] for row in groups[::3]], [*policies.POLICIES]
    )
    # The arguments alone take more than a thousandth.
    self.assertEqual(rows[-1]["error"], "no plan was found")
    self.assertGreater(rows[-1]["smallest_bytes"], rows[-1]["limit_bytes"])
    self.assertNotIn("wall", rows[-1])
    self.assertIn("no limit", executed_time_report.text_of(rows))


class ReportTest(absltest.TestCase):
  def _rows(self):
    named: dict[str, Any] = {"policy": "dots_saveable"}
    return [
      _row("jit", estimated=1.0, executed=1.0),
      _row("policy", estimated=1.2, executed=0.9, **named),
      _row(
        "jaxmem",
        estimated=1.1,
        executed=0.95,
        compile_s=7.0,
        limit_bytes=8_000_000,
        to_policy={
          "median_of_ratios": 1.06,
          "median_of_ratios_interval": [1.01, 1.1],
        },
        **named,
      ),
      {
        "step": "small",
        "kind": "jaxmem",
        "policy": None,
        "share": 0.5,
        "limit_bytes": 4_000_000,
        "error": "no plan was found",
        "smallest_bytes": 6_000_000,
        "compile_wall_s": 2.5,
        "compile_cpu_s": 2.0,
      },
    ]

  def test_planning_is_what_jax_does_not_take(self):
    plain, _, plan, impossible = self._rows()
    self.assertEqual(executed_time_report.planning_cpu_s(plan, plain), 4.0)
    # jax.jit takes a second before XLA's two.
    self.assertEqual(executed_time_report.planning_cpu_s(impossible, plain), 1)

  def test_rank_correlation(self):
    correlation = executed_time_report.rank_correlation
    rows = self._rows()
    # The dearer by estimate, the faster in truth.
    self.assertAlmostEqual(correlation(rows, "wall"), -1)
    self.assertTrue(math.isnan(correlation(rows[:2], "wall")))
    rows = [
      _row("jaxmem", estimated=estimated, executed=executed)
      for estimated, executed in ((1, 1), (2, 9), (2, 3), (4, 16))
    ]
    # By hand: ranks 0, 1.5, 1.5, 3 and 0, 2, 1, 3.
    self.assertAlmostEqual(correlation(rows, "cpu"), 4.5 / math.sqrt(4.5 * 5))

  def test_text_says_who_is_slower_and_what_has_no_plan(self):
    text = executed_time_report.text_of(self._rows())
    words = " ".join(text.split())
    self.assertIn("1.060 at worst; 1 are slower, 1 surely", words)
    # Of planning: 4 s beside 2 s.
    self.assertIn("2.0 at worst", words)
    self.assertIn("4.0 at worst; 0 take more than 10.", words)
    self.assertIn("1.056 at worst; 1 take more", words)  # 0.95 by 0.9.
    self.assertIn("none; smallest 6.0", text)
    self.assertIn("jaxmem, as `dots_saveable`", text)
    self.assertNotIn("pairs of limits", words)
    widths = {
      len(line.split(" | ")) for line in text.splitlines() if line[:3] == "| `"
    }
    self.assertEqual(widths, {10, 13})

  def test_text_says_what_less_effort_takes(self):
    limit: dict[str, Any] = {"limit_bytes": 8_000_000}
    ratios = {
      "median_of_ratios": 1.02,
      "median_of_ratios_interval": [1.0, 1.04],
    }
    _, _, _, impossible = self._rows()
    rows = [
      _row("jit", estimated=1.0, executed=1.0),
      _row("jaxmem", estimated=1.0, executed=1.0),
      _row(
        "jaxmem",
        estimated=1.0,
        executed=1,
        compile_s=9,
        effort="normal",
        **limit,
      ),
      _row(
        "jaxmem", estimated=1.1, executed=1, compile_s=5, effort="fast", **limit
      )
      | {"to_first_effort": ratios},
      impossible | {"effort": "normal"},
      impossible | {"effort": "fast"},
    ]
    text = executed_time_report.effort_text_of(rows)
    words = " ".join(text.split())
    # By hand: jax.jit takes 3 s, 2 of them XLA's. For the limits that is 6 and
    # 1 s, and 2 and 1 with less effort.
    self.assertIn('fast" takes 0.43 of the CPU time', words)
    self.assertIn("0.8 times that of XLA's compile by the median of 2", words)
    self.assertIn("1.020 of the wall time", words)
    self.assertIn(
      "| `small` | 2 | 3.5 | 1.5 | 1.8 | 0.8 | 0.43 | 1.020 | 1.020 | 1.100 | 1"
      " | 1 |",
      text,
    )

  def test_text_says_what_steps_take_without_a_limit(self):
    rows = [
      _row("jit", estimated=1.0, executed=1.0),
      _row("jaxmem", estimated=1.0, executed=1.25),
      _row("jaxmem", estimated=1.0, executed=9.0, limit_bytes=9_000_000),
    ]
    words = " ".join(executed_time_report.text_of(rows).split())
    self.assertIn("steps take 1.250 of `jax.jit`'s wall time", words)
    self.assertIn("1.250 at worst; 1 are surely slower", words)

  def test_larger_limits_with_longer_estimates_are_counted(self):
    rows = [
      _row("jaxmem", estimated=estimated, executed=1, limit_bytes=limit_bytes)
      for limit_bytes, estimated in (
        (None, 2.0),
        # Without a limit it takes 10 MB, so that this one asks for nothing.
        (11_000_000, 2.0),
        (9_000_000, 1.5),
        (8_000_000, 1.2),
        (7_000_000, 1.4),
      )
    ]
    rows[0]["total_bytes"] = 10_000_000
    rows.insert(0, _row("jit", estimated=1.0, executed=1.0))
    words = " ".join(executed_time_report.text_of(rows).split())
    self.assertIn("Of 3 pairs of limits", words)
    self.assertIn("the longer estimate in 2, by 25.0% at most", words)


if __name__ == "__main__":
  absltest.main()
