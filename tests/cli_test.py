import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from commands import run

import jaxmem
from jaxmem import step_planner

_ARGS = (jax.ShapeDtypeStruct((32, 32), jnp.float32),) * 2


def _step(weights, x):
  return weights - 0.1 * jnp.tanh(x @ weights), (x @ weights).sum()


def make_step():
  return _step, _ARGS


def make_donated():
  return _step, _ARGS, {"donate_argnums": 0}


def make_jitted():
  return jax.jit(_step), _ARGS


def make_jitted_with_keywords():
  return jax.jit(_step), _ARGS, {"donate_argnums": 0}


def make_four():
  return _step, _ARGS, {}, {}


def make_none():
  return None


def make_bad_args():
  return _step, _ARGS[0]


def make_bad_kwargs():
  return _step, _ARGS, ["donate_argnums"]


def make_unknown_keyword():
  return _step, _ARGS, {"donate": 0}


def make_reserved_keyword():
  return _step, _ARGS, {"target": "h200"}


def make_broken():
  raise KeyError("no such weights")


def make_untraceable():
  return lambda weights, x: weights.no_such_attribute, _ARGS


def make_untraceable_jitted():
  return jax.jit(make_untraceable()[0]), _ARGS


not_a_function = 3


class PlanTest(parameterized.TestCase):
  def test_prints_the_plan(self):
    code, out, err = run("plan", f"{__name__}:make_step")
    self.assertEqual((code, err), (0, ""))
    self.assertStartsWith(out, "_step on cpu:")

  def test_a_jitted_step(self):
    code, out, err = run("plan", f"{__name__}:make_jitted")
    self.assertEqual((code, err), (0, ""))
    self.assertStartsWith(out, "_step on cpu:")
    code, _, err = run("memcost", f"{__name__}:make_jitted")
    self.assertEqual(code, 2)
    self.assertIn("return the function itself", err)

  def test_writes_json_and_passes_jit_keywords(self):
    path = os.path.join(self._folder(), "plan.json")
    code, _, err = run(
      "plan", f"{__name__}:make_donated", "--json", path, "--effort", "fast"
    )
    self.assertEqual((code, err), (0, ""))
    plan = jaxmem.Plan.from_json(pathlib.Path(path).read_text(encoding="utf-8"))
    # The donated weights: 32 * 32 float32.
    self.assertEqual(plan.alias_bytes, 4096)

  def test_writes_a_page(self):
    path = os.path.join(self._folder(), "plan.html")
    code, _, err = run("plan", f"{__name__}:make_step", "--html", path)
    self.assertEqual((code, err), (0, ""))
    self.assertIn("<html", pathlib.Path(path).read_text(encoding="utf-8"))

  @parameterized.parameters(
    ("", "expected pkg.module:factory"),
    ("json", "expected pkg.module:factory"),
    ("json:", "expected pkg.module:factory"),
    ("../x:ok", "expected pkg.module:factory"),
    (".x:ok", "expected pkg.module:factory"),
    ("no_such_module_x:f", "No module named 'no_such_module_x'"),
    ("json:no_such_name", "has no attribute 'no_such_name'"),
    (f"{__name__}:not_a_function", "must be a function"),
    (f"{__name__}:make_none", "type NoneType"),
    (f"{__name__}:make_four", "a tuple of 4"),
    (f"{__name__}:make_jitted_with_keywords", "already jitted"),
    (f"{__name__}:make_bad_args", "a tuple of args"),
    (f"{__name__}:make_bad_kwargs", "a dict of jit_kwargs"),
    (f"{__name__}:make_unknown_keyword", "no keyword 'donate'"),
    (f"{__name__}:make_reserved_keyword", "no keyword 'target'"),
  )
  def test_wrong_factory_is_one_line(self, factory: str, message: str):
    self._check_usage_error(message, "plan", factory)

  @parameterized.parameters(
    ("--target", "b17", "target must be one of"),
    ("--memory-limit", "24G", "unknown unit 'G'"),
    ("--memory-limit", "110%", "at most 100%"),
  )
  def test_wrong_option_is_one_line(self, option, value, message):
    factory = f"{__name__}:make_step"
    self._check_usage_error(message, "plan", factory, option, value)

  def test_unwritable_file_is_one_line(self):
    path = os.path.join(self._folder(), "missing", "plan.json")
    factory = f"{__name__}:make_step"
    self._check_usage_error("cannot write", "plan", factory, "--json", path)

  def test_plan_above_the_limit_fails(self):
    code, out, err = run(
      "plan", f"{__name__}:make_step", "--memory-limit", "1kB"
    )
    self.assertEqual((code, out), (1, ""))
    self.assertIn("No plan of _step fits", err)

  @parameterized.parameters(
    ("make_broken", "no such weights"),
    ("make_untraceable", "no_such_attribute"),
    ("make_untraceable_jitted", "no_such_attribute"),
  )
  def test_what_fails_is_not_what_does_not_fit(self, factory, message):
    code, out, err = run("plan", f"{__name__}:{factory}")
    self.assertEqual((code, out), (3, ""))
    self.assertIn("Traceback", err)
    self.assertIn(message, err)

  def test_a_step_that_raises_fails_memcost_in_the_same_way(self):
    code, _, err = run("memcost", f"{__name__}:make_untraceable")
    self.assertEqual(code, 3)
    self.assertIn("no_such_attribute", err)

  def test_what_fails_in_jaxmem_is_not_the_steps_fault(self):
    with mock.patch.object(
      step_planner.StepPlanner, "plan", side_effect=RuntimeError("a fault")
    ):
      code, out, err = run("plan", f"{__name__}:make_jitted")
    self.assertEqual((code, out), (5, ""))
    self.assertIn("a fault", err)

  def test_explains_the_peak_with_what_limits_cost(self):
    words = ("plan", f"{__name__}:make_step", "--effort", "fast", "--explain")
    code, out, err = run(*words)
    self.assertEqual((code, err), (0, ""))
    self.assertIn("\n  by argument\n", out)
    self.assertIn("donate_argnums=(0,)", out.split("what would shrink it")[1])

  def test_frontier(self):
    page = os.path.join(self._folder(), "frontier.html")
    code, out, err = run(
      "plan", f"{__name__}:make_step", "--effort", "fast", "--frontier", page
    )
    self.assertEqual((code, err), (0, ""))
    self.assertIn("extra time", out)
    self.assertTrue(os.path.exists(page))

  def _folder(self) -> str:
    return self.enterContext(tempfile.TemporaryDirectory())

  def _check_usage_error(self, message: str, *argv: str):
    code, _, err = run(*argv)
    self.assertEqual(code, 2)
    self.assertIn(message, err)
    self.assertEqual(err.count("\n"), 1, err)


class MainTest(parameterized.TestCase):
  def test_version(self):
    code, out, _ = run("--version")
    self.assertEqual((code, out), (0, f"jaxmem {jaxmem.__version__}\n"))

  def test_help_names_the_commands(self):
    code, out, _ = run("--help")
    self.assertEqual(code, 0)
    for text in ("plan a step", "place buffers", "allocators", "plan GPT-2"):
      self.assertIn(text, out)

  @parameterized.parameters(
    ("run", "--only"),
    ("plan", "--memory-limit"),
    ("check", "--max-growth"),
    ("diff", "--target"),
    ("place", "--capacity"),
    ("memcost", "--coarse"),
    ("demo", "--quick"),
  )
  def test_help_of_a_command_names_its_options(self, command, option):
    code, out, _ = run(command, "--help")
    self.assertEqual(code, 0)
    self.assertIn(option, out)

  def test_planning_loads_no_experiments(self):
    program = (
      "import sys; from jaxmem import cli;"
      " assert cli.main(['plan', 'cli_test:make_step']) == 0;"
      " assert not [m for m in sys.modules if 'jaxmem.experimental' in m]"
    )
    _run_python(program)

  def test_no_command_is_an_error(self):
    code, _, err = run()
    self.assertEqual(code, 2)
    self.assertIn("COMMAND", err)

  def test_import_starts_no_backend_and_sets_no_variable(self):
    program = (
      "import os; before = dict(os.environ); import jaxmem.cli;"
      " from jax._src import xla_bridge;"
      " assert not xla_bridge._backends; assert before == dict(os.environ)"
    )
    _run_python(program)


def _run_python(program: str) -> None:
  environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
  folders = [os.path.dirname(__file__), *filter(None, sys.path)]
  environment["PYTHONPATH"] = os.pathsep.join(folders)
  subprocess.run([sys.executable, "-c", program], check=True, env=environment)


if __name__ == "__main__":
  absltest.main()
