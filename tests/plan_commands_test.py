"""`check` and `diff`: plans compared on the command line."""

import json
import os
import pathlib
import tempfile
from unittest import mock

import commands
import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized

import jaxmem

_WEIGHTS = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def _net(depth, batch):
  def step(weights, x):
    def loss(weights):
      y = x
      for i in range(depth):
        with jax.named_scope(f"layer_{i}"):
          y = jnp.tanh(y @ weights)
      return jnp.sum(y**2)

    return weights - jax.grad(loss)(weights)

  x = jax.ShapeDtypeStruct((batch, 64), jnp.float32)
  return step, (_WEIGHTS, x), {"donate_argnums": 0}


def make_small():
  return _net(4, 256)


def make_deeper():
  return _net(5, 256)


def make_broken():
  raise KeyError("no such weights")


class PlanCommandsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self._folder = pathlib.Path(folder)
    self._summary = self._folder / "summary.md"
    self.enterContext(
      mock.patch.dict(os.environ, {"GITHUB_STEP_SUMMARY": str(self._summary)})
    )

  def _saved(self, factory: str) -> str:
    path = self._folder / f"{factory}.json"
    code, _, err = commands.run(
      "plan", f"{__name__}:{factory}", "--effort", "fast", "--json", str(path)
    )
    self.assertEqual((code, err), (0, ""))
    return str(path)

  def _check(self, factory: str, baseline: str, *words: str):
    return commands.run(
      *("check", f"{__name__}:{factory}", "--baseline", baseline),
      *("--effort", "fast"),
      *words,
    )

  def test_what_did_not_grow_passes(self):
    code, out, err = self._check("make_small", self._saved("make_small"))
    self.assertEqual((code, err), (0, ""))
    self.assertIn("nothing changed at the peak", out)
    self.assertIn("OK", out.splitlines()[-1])
    self.assertIn("**OK", self._summary.read_text())

  def test_what_shrank_passes(self):
    code, out, _ = self._check("make_small", self._saved("make_deeper"))
    self.assertEqual(code, 0)
    self.assertIn("shrank by 64.0 KiB", out)

  def test_what_grew_has_a_code_of_its_own_and_says_where(self):
    baseline = self._saved("make_small")
    code, out, err = self._check("make_deeper", baseline, "--max-growth", "1%")
    self.assertEqual((code, err), (4, ""))
    self.assertIn("FAILED: the whole program grew by 64.0 KiB", out)
    # A layer's activations wait for the backward pass.
    self.assertRegex(out, r"\+64\.0 KiB +residuals")
    summary = self._summary.read_text()
    self.assertIn("| residuals |", summary)
    self.assertIn("**FAILED", summary)

  @parameterized.parameters(("65536", 0), ("64KiB", 0), ("65535", 4))
  def test_growth_up_to_the_allowed_bytes_passes(self, allowed, expected):
    baseline = self._saved("make_small")
    code, *_ = self._check("make_deeper", baseline, "--max-growth", allowed)
    self.assertEqual(code, expected)

  def test_the_summary_is_appended_to(self):
    self._summary.write_text("before\n")
    self._check("make_small", self._saved("make_small"))
    self.assertStartsWith(self._summary.read_text(), "before\n###")

  def test_a_summary_that_cannot_be_written_changes_no_code(self):
    baseline = self._saved("make_small")
    path = str(self._folder / "none" / "summary.md")
    with mock.patch.dict(os.environ, {"GITHUB_STEP_SUMMARY": path}):
      code, _, err = self._check("make_small", baseline)
    self.assertEqual(code, 0)
    self.assertIn("cannot write", err)

  def test_what_does_not_fit_is_not_what_grew(self):
    baseline = self._saved("make_small")
    code, _, err = self._check("make_small", baseline, "--memory-limit", "1kB")
    self.assertEqual(code, 1)
    self.assertIn("fits", err)
    self.assertIn("Does not fit 1kB", self._summary.read_text())

  def test_a_broken_factory_is_not_what_grew(self):
    code, _, err = self._check("make_broken", self._saved("make_small"))
    self.assertEqual(code, 3)
    self.assertIn("no such weights", err)

  @parameterized.parameters("-1%", "1 parsec", "")
  def test_a_wrong_growth_is_a_wrong_command(self, text):
    code, _, err = self._check(
      "make_small", self._saved("make_small"), f"--max-growth={text or 'x'}"
    )
    self.assertEqual(code, 2)
    self.assertIn("--max-growth", err)

  def test_a_baseline_for_another_device_is_a_wrong_command(self):
    path = self._saved("make_small")
    self._edit(path, target="h200")
    code, _, err = self._check("make_small", path)
    self.assertEqual(code, 2)
    self.assertIn("a plan for h200, this is one for cpu", err)

  def _edit(self, path: str, **fields) -> None:
    record = json.loads(pathlib.Path(path).read_text())
    pathlib.Path(path).write_text(json.dumps({**record, **fields}))

  def test_a_plan_of_an_older_version_has_to_be_made_again(self):
    path = self._saved("make_small")
    written = json.loads(pathlib.Path(path).read_text())["format"]
    self._edit(path, format=written - 1)
    for words in (("diff", path, path), ("check", "x:y", "--baseline", path)):
      code, _, err = commands.run(*words)
      self.assertEqual(code, 2)
      self.assertIn(f"its format is {written - 1}, not {written}", err)
      self.assertIn("Plan the step again", err)

  @parameterized.parameters("missing.json", "not_json")
  def test_no_plan_is_a_wrong_command(self, name):
    (self._folder / "not_json").write_text("{")
    path = str(self._folder / name)
    code, _, err = commands.run("diff", path, path)
    self.assertEqual(code, 2)
    self.assertEqual(err.count("\n"), 1, err)

  def test_diff_says_what_grew_and_what_shrank(self):
    small, deeper = self._saved("make_small"), self._saved("make_deeper")
    code, out, err = commands.run("diff", small, deeper)
    self.assertEqual((code, err), (0, ""))
    self.assertRegex(out, r"whole program .* \(\+\d+\.\d %\)")
    self.assertRegex(out, r"\+64\.0 KiB +layer_")
    code, out, _ = commands.run("diff", deeper, small)
    self.assertRegex(out, r"-64\.0 KiB +residuals")

  def test_a_baseline_under_a_limit_is_not_compared_with_none(self):
    saved = self._folder / "limited.json"
    limited = ("--memory-limit", "400KiB", "--effort", "fast")
    program = f"{__name__}:make_small"
    code, _, err = commands.run("plan", program, *limited, "--json", str(saved))
    self.assertEqual((code, err), (0, ""))
    code, _, err = self._check("make_small", str(saved))
    self.assertEqual(code, 2)
    self.assertIn("give --memory-limit 409600,", err)
    again = self._check("make_small", str(saved), "--memory-limit", "409600")
    self.assertEqual((again[0], again[2]), (0, ""))

  def test_diff_of_two_programs(self):
    programs = [f"{__name__}:{f}" for f in ("make_small", "make_deeper")]
    code, out, err = commands.run("diff", *programs, "--effort", "fast")
    self.assertEqual((code, err), (0, ""))
    saved = [self._saved(f) for f in ("make_small", "make_deeper")]
    self.assertEqual(out, commands.run("diff", *saved)[1])
    mixed = commands.run("diff", saved[0], programs[1], "--effort", "fast")
    self.assertEqual(mixed, (0, out, ""))

  def test_diff_of_a_program_that_does_not_fit(self):
    program = f"{__name__}:make_small"
    code, out, err = commands.run(
      "diff", program, program, "--memory-limit", "64KiB"
    )
    self.assertEqual((code, out), (1, ""))
    self.assertIn("64.0 KiB", err)

  def test_diffs_add_up(self):
    plans = [
      jaxmem.Plan.from_json(pathlib.Path(self._saved(f)).read_text())
      for f in ("make_small", "make_deeper")
    ]
    diff = plans[1].diff(plans[0])
    for change in diff.trees.values():
      self.assertEqual(change.before_bytes, plans[0].total_bytes)
      self.assertEqual(change.after_bytes, plans[1].total_bytes)
      self.assertEqual(sum(c.bytes for c in change.children), change.bytes)


if __name__ == "__main__":
  absltest.main()
