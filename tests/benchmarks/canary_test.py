"""The canary names in one line what moved, and is silent where nothing did."""

import contextlib
import io
from unittest import mock

from absl.testing import absltest
from jax._src import compilation_cache, compiler
from jax._src.interpreters import pxla

from benchmarks import canary
from jaxmem.jaxpr import internals


def _run():
  out = io.StringIO()
  with contextlib.redirect_stdout(out):
    code = canary.main()
  return code, out.getvalue()


class CanaryTest(absltest.TestCase):
  def check(self, expected):
    code, line = _run()
    self.assertEqual(code, 1)
    self.assertEqual(line.count("\n"), 1, line)
    self.assertIn(expected, line)

  def test_nothing_moved(self):
    code, line = _run()
    self.assertEqual(code, 0, line)
    self.assertEndsWith(line, ": nothing that jaxmem uses has moved.\n")

  def test_a_function_with_other_parameters(self):
    with mock.patch.object(pxla, "lower_sharding_computation", lambda x: x):
      self.check("pxla.lower_sharding_computation takes (x), expected (")

  def test_names_that_only_some_programs_need(self):
    # Those of persistent caches, which no step of the canary's uses.
    for module, name in (
      (compilation_cache, "extract_executable_and_time"),
      (compiler, "_get_cache_key"),
    ):
      self.assertIn((module.__name__, name), canary.used_names())
      with mock.patch.object(module, name):
        delattr(module, name)
        self.check(f"1 moved: {module.__name__}.{name} is gone.")
        setattr(module, name, None)

  def test_jaxprs_that_say_it_otherwise(self):
    error = AttributeError("ft_in is gone")
    with mock.patch.object(internals, "scan_counts", side_effect=error):
      self.check("jaxprs: AttributeError: ft_in is gone")

  def test_bytes_that_xla_assigns_otherwise(self):
    with mock.patch.object(
      canary, "_PROBES", (lambda: ["XLA assigns 3 bytes."],)
    ):
      self.check("1 moved: XLA assigns 3 bytes.")


if __name__ == "__main__":
  absltest.main()
