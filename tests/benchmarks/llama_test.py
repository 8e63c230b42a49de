"""Llama's step and its policies in small, and what rows are made of."""

import dataclasses
import importlib.util
import json
import os
import unittest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

if importlib.util.find_spec("optax") is None and not os.environ.get("CI"):
  raise unittest.SkipTest("optax is not installed; see .[test].")


from benchmarks import (
  llama,
  llama_report,
  llama_rows,
)
from jaxmem import targets

_SHAPE = llama.Shape(
  num_layers=2,
  width=64,
  num_heads=4,
  num_key_heads=2,
  head_width=16,
  inner=96,
  vocabulary=128,
  length=32,
)
_needs_plugin = unittest.skipUnless(
  targets.is_available("h200"), "JAX's CUDA plugin is not installed"
)


def _num_products(form, policy):
  # One layer: what several share stands in the text once.
  shape = dataclasses.replace(_SHAPE, num_layers=1)
  step = llama.build(shape, form, policy)
  return str(jax.make_jaxpr(step.function)(*step.args)).count("dot_general")


def _arguments(step):
  """Returns small normal weights, and tokens; the optimizer's state is zero."""
  generator = np.random.default_rng(0)
  params, opt_state, tokens, _ = step.args
  params = jax.tree.map(
    lambda leaf: jnp.asarray(generator.normal(0, 0.1, leaf.shape), leaf.dtype),
    params,
  )
  opt_state = jax.tree.map(
    lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), opt_state
  )
  drawn = [generator.integers(0, 128, tokens.shape) for _ in range(2)]
  return (params, opt_state, *map(jnp.asarray, drawn))


class ModelTest(parameterized.TestCase):
  def test_full_size_is_llama_3_8b(self):
    step = llama.build(llama.Shape(num_layers=32), "scanned")
    count = sum(leaf.size for leaf in jax.tree.leaves(step.args[0]))
    self.assertEqual(count, 8_030_261_248)  # As the paper's weights have.

  @parameterized.parameters(*llama.FORMS)
  @pytest.mark.slow
  def test_policies_recompute_the_products_that_they_do_not_keep(self, form):
    kept = _num_products(form, None)
    extra = {
      policy: _num_products(form, policy) - kept for policy in llama.POLICIES
    }
    # All make the scores and the mixture of values again, to go back through
    # what attention does. Nothing reads mlpwo on the way back.
    attention = 2
    self.assertEqual(
      extra,
      {
        "minimal": attention,
        "save_dot_except_mlp": attention + 2,
        "save_qkv_proj": attention + 3,
        "save_out_proj": attention + 5,
        "qkv_proj_offloaded": attention + 3,
        "minimal_offloaded": attention,
        "full": attention + 6,
      },
    )

  @pytest.mark.slow
  def test_forms_and_policies_compute_the_same(self):
    plain = llama.build(_SHAPE, "unrolled")
    params, opt_state, *batch = _arguments(plain)
    expected = jax.jit(plain.function)(params, opt_state, *batch)
    layers = jax.tree.map(lambda *each: jnp.stack(each), *params["layers"])
    for policy in (None, "minimal"):
      step = llama.build(_SHAPE, "scanned", policy)
      zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), step.args[1]
      )
      stacked = {**params, "layers": layers}
      result = jax.jit(step.function)(stacked, zeros, *batch)
      np.testing.assert_allclose(result[2], expected[2], rtol=1e-3)
      # A step of AdamW is as long as the rate in each direction: where the
      # gradient is rounded about zero, it may go the other way.
      np.testing.assert_allclose(
        result[0]["layers"]["gate"][1],
        expected[0]["layers"][1]["gate"],
        atol=1e-3,
      )
      moment = result[1][0].mu["layers"]["gate"][1]
      own = expected[1][0].mu["layers"][1]["gate"]
      np.testing.assert_allclose(moment, own, atol=0.05 * np.abs(own).max())


class RowsTest(absltest.TestCase):
  def _check(self, form):
    # XLA's compiler for the CPU takes a fraction of that for a GPU.
    asked = llama_rows.Asked(
      shape=_SHAPE,
      form=form,
      policies=["full"],
      target="cpu",
      effort="fast",
      attention="xla",
      has_xla_remat=False,
    )
    rows = json.loads(json.dumps([*llama_rows.rows(asked)]))
    plain, unlimited, policy, plan = rows
    self.assertEqual(
      [row["kind"] for row in rows], ["jit", "jaxmem", "policy", "jaxmem"]
    )
    self.assertLess(policy["total_bytes"], plain["total_bytes"])
    self.assertLessEqual(unlimited["total_bytes"], plain["total_bytes"])
    self.assertEqual(plan["limit_bytes"], policy["total_bytes"])
    # A plan may be impossible, but never above its limit.
    smallest = plan.get("smallest_bytes", plan.get("total_bytes"))
    self.assertEqual(smallest > plan["limit_bytes"], "error" in plan)
    text = llama_report.text_of(rows)
    self.assertIn(f"2 layers, {form}, `--xla_remat=false`", text)

  @pytest.mark.slow
  def test_scanned_plans_keep_the_bytes_of_policies(self):
    self._check("scanned")

  @pytest.mark.slow
  def test_unrolled_plans_keep_the_bytes_of_policies(self):
    self._check("unrolled")

  @_needs_plugin
  def test_attention_is_cudnns_and_policies_move_to_the_host(self):
    step = llama.build(_SHAPE, "scanned", "minimal_offloaded", "cudnn")
    jitted = jax.jit(step.function, **step.jit_kwargs)
    with llama.described_cudnn():
      lowered = targets.lower(jitted, step.args, {}, "h200")
    text = lowered.as_text()
    self.assertIn("__cudnn$fmhaSoftmaxBackward", text)
    self.assertIn("pinned_host", text)


def _row(kind, total_bytes=8_000_000, step_s=1.0, **others):
  return {
    "form": "scanned",
    "num_layers": 2,
    "target": "h200",
    "kind": kind,
    "total_bytes": total_bytes,
    "temp_bytes": 7,
    "predicted_temp_bytes": 7,
    "num_instructions": 5,
    "step_s": step_s,
    "policy": None,
    "compile_cpu_s": 3.0,
    "planning_cpu_s": 4.0,
    **others,
  }


class ReportTest(absltest.TestCase):
  def test_text_names_what_is_dearer_and_what_has_no_plan(self):
    rows = [
      _row("jit"),
      _row("jaxmem"),
      _row("policy", policy="full", step_s=2.0),
      _row("jaxmem", policy="full", step_s=2.25),
      _row("policy", policy="minimal", step_s=1.5),
      _row("jaxmem", policy="minimal", step_s=1.75, temp_bytes=6),
      _row("policy", policy="save_out_proj"),
      {
        "form": "scanned",
        "num_layers": 2,
        "kind": "jaxmem",
        "policy": "save_out_proj",
        "planning_cpu_s": 2.0,
        "error": "no plan was found",
        "smallest_bytes": 10_000_000,
      },
      _row("jaxmem", 6_000_000, step_s=1.25, limit_bytes=7_000_000),
    ]
    text = llama_report.text_of(rows)
    words = " ".join(text.split())
    # 2.25 by 2.0, and 1.75 by 1.5.
    self.assertIn("1.146 of its estimated time", words)
    self.assertIn("1.146 beside those that offload nothing", words)
    self.assertIn("`full` (1.125), `minimal` (1.167)", words)
    self.assertIn("at the bytes of `save_out_proj` (1.250)", words)
    self.assertIn("| 2250.0 | 4.0 | 1.125 |", text)
    self.assertIn("| 7 | 6 | 1250.0 | 4.0 |", text)
    self.assertIn("| 8* |", text)  # XLA changed the program after planning.
    self.assertIn("none; smallest 10", text)

  def test_star_where_xla_goes_on_recomputing(self):
    for share, options, expected in (
      (0.79, {}, False),
      (0.81, {}, True),
      (0.81, {"xla_remat": False}, False),
    ):
      total_bytes = int(share * (targets.get("h200").memory_bytes or 0))
      rows = [_row("jit", total_bytes, **options), _row("jaxmem", **options)]
      self.assertEqual("* MB" in llama_report.text_of(rows), expected)


if __name__ == "__main__":
  absltest.main()
