import contextlib
import io
import pathlib
import shutil
from unittest import mock

import jax
import pytest
from absl.testing import absltest, parameterized

from jaxmem import targets
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
    limited, other = cases.tiny_cases()
    # Once among the plans, once among the runs, one under a limit besides.
    self.assertEqual(text.count(limited.name), 3, text)
    self.assertEqual(text.count(other.name), 2, text)
    self.assertEqual(text.count("bit-equal"), 2, text)
    self.assertIn("All outputs are equal, bit by bit.", text)
    picture = pathlib.Path(text.splitlines()[-1].rpartition(": ")[2])
    self.addCleanup(shutil.rmtree, picture.parent)
    self.assertIn("<title>gpt2_step on cpu", picture.read_text())

  def test_different_outputs_fail_the_demo(self):
    measured = [_measured("a"), _measured("b")]
    out = io.StringIO()
    with (
      mock.patch.object(running, "measure", return_value=measured),
      mock.patch.object(planning, "show_plans"),
      mock.patch.object(planning, "show_limit", return_value=None),
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
      planning.show_plans({"h200": cases.tiny_cases()})
      self.assertIsNone(planning.show_limit(cases.limited_case(), "h200", "1"))
      planning.show_sharded("h200")
    self.assertEqual(out.getvalue().count("h200 left out"), 3)

  @pytest.mark.slow
  def test_a_step_over_devices_that_are_not_here(self):
    if not targets.is_available("h200"):
      self.skipTest("JAX's CUDA plugin is not installed.")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      planning.show_sharded("h200")
    _, own, planned = out.getvalue().splitlines()
    self.assertRegex(own, r"MLP, 8 blocks, FSDP +jax.jit +2\.\d+ GiB .* ms$")
    # The gathered parameters and the sums of gradients do not pile up.
    self.assertRegex(planned, r"^ +jaxmem.jit +1\.\d+ GiB .* ms$")

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
