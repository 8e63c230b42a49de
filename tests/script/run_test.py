"""`python -m jaxmem run`: scripts in processes of their own."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest
from absl.testing import absltest, parameterized

from jaxmem import cli

# Two functions; what happens then is the first argument's choice.
_SCRIPT = """
import os, sys
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def prepare(x):
  return jnp.sin(x)

@jax.jit
def train_step(weights, x):
  def loss(weights):
    hidden = x
    for w in weights:
      hidden = jnp.tanh(hidden @ w)
    return jnp.mean(hidden**2)
  grads = jax.grad(loss)(weights)
  return [w - 0.1 * g for w, g in zip(weights, grads)]

print(__name__, sys.argv[1:])
weights = [np.ones((64, 64), np.float32)] * 4
train_step(weights, prepare(np.ones((256, 64), np.float32)))
print("the step ran")
match sys.argv[1]:
  case "number":
    sys.exit(7)
  case "text":
    sys.exit("bad luck")
  case "raise":
    try:
      {}["first"]
    except KeyError:
      raise ValueError("second")
  case "hook":
    sys.excepthook = lambda kind, error, traceback: print("hooked", error)
    raise ValueError("for the hook")
  case "interrupt":
    os.kill(os.getpid(), 2)
"""

_BROKEN = """
import jax
from jaxmem.script import pictures

def fails(*args):
  raise RuntimeError("no picture")

"""

_WIDE = """
import os
os.environ["JAX_ENABLE_X64"] = "1"
import jax.numpy as jnp
import jax

@jax.jit
def squared(x):
  return jnp.sin(x @ x)

print(squared(jnp.ones((64, 64))).dtype)
"""


class RunTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    holder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(holder)
    (self.folder / "script.py").write_text(_SCRIPT, encoding="utf-8")

  def _run(self, *words: str) -> subprocess.CompletedProcess:
    folders = [os.path.abspath(folder) for folder in filter(None, sys.path)]
    return subprocess.run(
      [sys.executable, "-m", "jaxmem", "run", "--min-bytes", "0", *words],
      cwd=self.folder,
      env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
      capture_output=True,
      text=True,
      check=False,
    )

  def test_what_follows_the_script_is_its_own_and_so_is_the_exit_code(self):
    args = ["number", "--only", "-m", "--me=1", "--", "--help"]
    done = self._run("--json", "out.json", "script.py", *args)
    self.assertEqual(done.returncode, 7, done.stderr)
    self.assertEqual(done.stdout, f"__main__ {args}\nthe step ran\n")
    self.assertRegex(done.stderr, r"(?m)^function +compiles +XLA +planned")
    self.assertRegex(done.stderr, r"(?m)^prepare +1 ")
    self.assertRegex(done.stderr, r"(?m)^train_step +1 ")
    rows = json.loads((self.folder / "out.json").read_text(encoding="utf-8"))
    self.assertEqual([r["function"] for r in rows], ["prepare", "train_step"])
    self.assertGreater(rows[1]["planned_bytes"], 0)

  @pytest.mark.slow
  def test_what_the_script_sets_before_it_imports_jax_counts(self):
    (self.folder / "wide.py").write_text(_WIDE, encoding="utf-8")
    done = self._run("wide.py")
    self.assertEqual(done.stdout, "float64\n", done.stderr)
    self.assertRegex(done.stderr, r"(?m)^squared +1 ")

  @parameterized.parameters("enable(min_bytes=0)", "jit(print)", "Options()")
  def test_a_script_that_knows_jaxmem_itself(self, call):
    # Then jaxmem is what imports jax.
    (self.folder / "knows.py").write_text(
      f"import jaxmem\njaxmem.{call}\n{_SCRIPT}", encoding="utf-8"
    )
    done = self._run("knows.py", "number")
    self.assertEqual(done.returncode, 7, done.stderr)
    self.assertRegex(done.stderr, r"(?m)^train_step +1 ")

  def test_a_script_without_jax(self):
    (self.folder / "plain.py").write_text("print(3)", encoding="utf-8")
    done = self._run("plain.py")
    self.assertEqual((done.stdout, done.returncode), ("3\n", 0))
    self.assertIn("nothing was planned", done.stderr)

  def test_exit_message(self):
    done = self._run("script.py", "text")
    self.assertEqual(done.returncode, 1)
    self.assertEndsWith(done.stderr, "\nbad luck\n")
    self.assertRegex(done.stderr, r"(?m)^train_step ")

  def test_exception_shows_the_script_s_own_traceback(self):
    done = self._run("--only", "train", "script.py", "raise")
    self.assertEqual(done.returncode, 1)
    self.assertIn("KeyError: 'first'\n\nDuring handling of", done.stderr)
    self.assertIn("\nValueError: second\n", done.stderr)
    self.assertIn('File "script.py", line', done.stderr)
    self.assertNotIn("command.py", done.stderr)
    self.assertNotIn("runpy", done.stderr)
    self.assertRegex(done.stderr, r"(?m)^train_step ")
    self.assertNotRegex(done.stderr, r"(?m)^prepare ")

  def test_exception_goes_to_the_script_s_hook(self):
    done = self._run("script.py", "hook")
    self.assertEqual(done.returncode, 1)
    self.assertEndsWith(done.stdout, "hooked for the hook\n")
    self.assertNotIn("Traceback", done.stderr)

  def test_interrupt_ends_it_by_the_signal(self):
    done = self._run("script.py", "interrupt")
    self.assertEqual(done.returncode, -signal.SIGINT)
    self.assertEqual(done.stderr.count("Traceback"), 1)
    self.assertEqual(done.stderr.count("KeyboardInterrupt"), 1)
    self.assertRegex(done.stderr, r"(?m)^train_step ")

  def test_plan_only_ends_before_the_step_runs(self):
    words = ("--plan-only", "--only", "^train_step$", "-m", "script", "number")
    done = self._run(*words)
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(done.stdout, "__main__ ['number']\n")
    self.assertRegex(done.stderr, r"(?m)^train_step +1 ")
    self.assertRegex(done.stderr, r"(?m)^  Planned temporaries +\d")
    self.assertNotIn("Traceback", done.stderr)

  @pytest.mark.slow
  def test_plan_only_without_such_a_step_is_a_wrong_command(self):
    done = self._run("--plan-only", "--only", "no_such", "script.py", "end")
    self.assertEqual(done.returncode, 2)
    self.assertIn("no step was planned", done.stderr)

  def test_report_has_the_table_and_a_page_for_each_function(self):
    done = self._run("--report", "out.html", "script.py", "end")
    self.assertEqual(done.returncode, 0, done.stderr)
    first = (self.folder / "out.html").read_text(encoding="utf-8")
    other = (self.folder / "out.prepare.html").read_text(encoding="utf-8")
    self.assertIn("<h1>train_step</h1>", first)
    self.assertIn("<h1>prepare</h1>", other)
    for page in (first, other):
      self.assertIn('<td><a href="out.html">train_step</a></td>', page)
      self.assertIn('<td><a href="out.prepare.html">prepare</a></td>', page)
      self.assertIn("What the bytes at the peak are", page)
      for tree in ("kind", "module", "line", "argument"):
        self.assertIn(f"by {tree}", page)
    self.assertIn("script.py:", first.split("by line")[1])

  @pytest.mark.slow
  def test_a_report_that_fails_costs_the_script_nothing(self):
    for method in ("add", "save"):
      (self.folder / "broken.py").write_text(
        f"{_BROKEN}pictures.Pictures.{method} = fails\n{_SCRIPT}",
        encoding="utf-8",
      )
      done = self._run("--report", "out.html", "broken.py", "number")
      self.assertEqual(done.returncode, 7, done.stderr)
      self.assertEndsWith(done.stdout, "the step ran\n")
      self.assertIn("RuntimeError('no picture')", done.stderr)
      self.assertNotIn("Traceback", done.stderr)

  def test_a_limit_that_nothing_meets_ends_the_script(self):
    limit = ("--memory-limit", "100kB", "--only", "train_step")
    done = self._run(*limit, "script.py", "end")
    self.assertEqual(done.returncode, 1)
    self.assertNotIn("the step ran", done.stdout)
    self.assertIn("InfeasibleError: No plan of train_step fits", done.stderr)

  def test_no_such_module_and_syntax_errors(self):
    (self.folder / "broken.py").write_text("x = (", encoding="utf-8")
    done = self._run("-m", "no_such_module")
    self.assertEqual(done.returncode, 2)
    self.assertIn("error: No module named no_such_module", done.stderr)
    done = self._run("broken.py")
    self.assertEqual(done.returncode, 1)
    self.assertStartsWith(done.stderr, '  File "broken.py", line 1')

  @parameterized.parameters(
    ([], "needs a script"),
    (["-m"], "needs a script"),
    (["no_such.py"], "no script 'no_such.py'"),
    (["--memory-limit", "24G", __file__], "unknown unit 'G'"),
    (["--min-bytes", "many", __file__], "--min-bytes must be"),
    (["--only", "(", __file__], "--only: missing )"),
    (["--report", "/no/such/out.html", __file__], "cannot write"),
  )
  def test_wrong_command_is_one_line(self, words, message):
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
      code = cli.main(["run", *words])
    self.assertEqual(code, 2)
    self.assertIn(message, stderr.getvalue())
    self.assertEqual(stderr.getvalue().count("\n"), 1)


if __name__ == "__main__":
  absltest.main()
