"""Tests of running other projects' tests with every compile planned."""

import pytest

from benchmarks import conformance_report
from benchmarks.conformance_runs import JAX_FILES, Runs

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


def test_a_package_s_own_tests(tmp_path):
  # Settings of a folder above an installed package are not those of its tests.
  (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
  package = tmp_path / "lib" / "optax"
  package.mkdir(parents=True)
  (package / "__init__.py").write_text("")
  (package / "drawn_test.py").write_text(
    "import os\n"
    "def test_that_is_drawn():\n"
    "  assert os.environ['NUM_CASES'] == '1'\n"
    "def test_that_is_not():\n"
    "  assert False\n"
  )
  row = Runs(
    checkout=package.parent,
    project="optax",
    is_installed=True,
    select="is_drawn",
    environment={"NUM_CASES": "1"},
  ).measure("optax")
  assert not row["faults"]
  assert (row["num_tests"], row["num_passed_jit"], row["num_passed"]) == (
    1,
  ) * 3
  name = f"optax {row['project_version']}: `optax`, `-k 'is_drawn'`"
  text = conformance_report.text_of([row, row])
  assert f"| {name}, `NUM_CASES=1` | 1 | 1 | 1 | 0 |" in text
  # The row that was there twice counts once.
  assert "| all | 1 | 1 | 1 | 0 |" in text


def test_what_remains():
  (first, *others) = JAX_FILES
  rows = [{"file": file, "faults": [], "select": ""} for file in others]
  left = f"\nNot run to their end: `{first}`.\n"
  assert conformance_report.remaining(rows) == left
  row = {"file": first, "faults": [], "select": ""}
  rows += [row | {"faults": ["exit code 2"]}, row | {"select": "some"}]
  assert conformance_report.remaining(rows) == left
  rows.append(row)
  assert conformance_report.remaining(rows) == "\nNot run to their end: none.\n"


def test_files_that_do_not_end(tmp_path):
  (tmp_path / "slow_test.py").write_text("import time\ntime.sleep(60)\n")
  row = Runs(checkout=tmp_path, timeout_s=1.0).measure("slow_test.py")
  assert row["faults"] == ["stopped after 1 s"] * 2
  assert row["num_tests"] == 0
