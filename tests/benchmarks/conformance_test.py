"""Tests of running other projects' tests with every compile planned."""

import pytest

from benchmarks import conformance_report
from benchmarks.conformance_runs import Runs

_TESTS = """
import jax
import jax.numpy as jnp
import pytest


def test_a_step():
  # Planned in another order than XLA's.
  def loss(weights, x):
    for w in weights:
      x = jnp.tanh(x @ w) * jax.nn.sigmoid(x)
    return (x * x).sum()

  @jax.jit
  def step(weights, x):
    gradients = jax.grad(loss)(weights, x)
    return [w - 0.1 * g for w, g in zip(weights, gradients)]

  weights = [jnp.ones((32, 32))] * 8
  assert jnp.isfinite(step(weights, jnp.ones((64, 32)))[0]).all()


def test_that_sees_jaxmem():
  from jaxmem.entry.policies import PLANNED

  assert PLANNED._enabled is None


def test_that_fails():
  assert jax.jit(jnp.sin)(0.0) == 1.0


@pytest.mark.skip
def test_that_is_skipped():
  pass
"""


@pytest.mark.slow
def test_a_file(tmp_path):
  (tmp_path / "some_test.py").write_text(_TESTS)
  row = Runs(checkout=tmp_path).measure("some_test.py")
  assert row["num_tests"] == 4
  assert row["num_passed_jit"] == 2
  assert row["num_passed"] == 1
  name = "some_test.test_that_sees_jaxmem"
  assert row["differences"] == {name: "passed, failed"}
  assert row["num_planned"] > 2
  assert row["num_changed"] > 0
  assert not row["faults"]
  text = conformance_report.text_of([row])
  assert "| `some_test.py` | 4 | 2 | 1 | 1 |" in text
  assert f"- `{name}`: passed, failed." in text


def test_files_that_do_not_end(tmp_path):
  (tmp_path / "slow_test.py").write_text("import time\ntime.sleep(60)\n")
  row = Runs(checkout=tmp_path, timeout_s=1.0).measure("slow_test.py")
  assert row["faults"] == ["stopped after 1 s"] * 2
  assert row["num_tests"] == 0
