import contextlib
import io
from unittest import mock

import jax
import pytest
from absl.testing import absltest, parameterized

from jaxmem.demo import cases, main, planning, running


class CasesTest(parameterized.TestCase):
  def test_full_models_are_the_published_ones(self):
    gpt2, resnet = cases.full_cases()
    self.assertEqual(gpt2.num_params, 124_439_808)
    self.assertEqual(resnet.num_params, 25_557_032)

  @parameterized.parameters(*cases.full_cases(), *cases.small_cases())
  def test_step_returns_the_state_it_takes(self, case):
    shapes = case.state_shapes()
    state, loss = jax.eval_shape(case.step, shapes, *case.batch)
    self.assertEqual(state, shapes)
    self.assertEqual(loss.shape, ())

  @parameterized.parameters(*cases.tiny_cases())
  @pytest.mark.slow
  def test_loss_falls(self, case):
    step = jax.jit(case.step)
    state, batch = case.state(), case.random_batch()
    losses = []
    for _ in range(5):
      state, loss = step(state, *batch)
      losses.append(float(loss))
    self.assertLess(losses[-1], losses[0])


class DemoTest(absltest.TestCase):
  @pytest.mark.slow
  def test_quick_demo_shows_plans_and_equal_outputs(self):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      code = main.run(quick=True)
    text = out.getvalue()
    self.assertEqual(code, 0, text)
    for case in cases.tiny_cases():
      # Once among the plans, once among the runs.
      self.assertEqual(text.count(case.name), 2, text)
    self.assertEqual(text.count("bit-equal"), 2, text)
    self.assertIn("All outputs are equal, bit by bit.", text)

  def test_different_outputs_fail_the_demo(self):
    measured = [_measured("a"), _measured("b")]
    out = io.StringIO()
    with (
      mock.patch.object(running, "measure", return_value=measured),
      mock.patch.object(planning, "show_plans"),
      contextlib.redirect_stdout(out),
    ):
      code = main.run(quick=True)
    self.assertEqual(code, 1)
    self.assertIn("OUTPUTS DIFFER", out.getvalue())
    # 300 of 400 bytes; the peak rose from 1,000 to 1,600 in both.
    self.assertIn("0.75x", running._ratio(300, 400))
    self.assertEqual(measured[0].growth_bytes, 600)

  def test_missing_plugin_is_said(self):
    out = io.StringIO()
    with (
      mock.patch.object(planning.targets, "is_available", return_value=False),
      contextlib.redirect_stdout(out),
    ):
      planning.show_plans(cases.tiny_cases(), ["h200"])
    self.assertIn("h200 left out", out.getvalue())

  @pytest.mark.slow
  def test_a_lost_process_is_an_error(self):
    with (
      running.Worker("tiny", 0, "no.such.compiler") as worker,
      self.assertRaisesRegex(RuntimeError, "exit code 1"),
    ):
      worker.answer()


def _measured(digest: str) -> running.Measured:
  return running.Measured(
    temp_bytes=400,
    compiled_rss_bytes=1_000,
    peak_rss_bytes=1_600,
    step_s=0.1,
    digest=digest,
  )


if __name__ == "__main__":
  absltest.main()
