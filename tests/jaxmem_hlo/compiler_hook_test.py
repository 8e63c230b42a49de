"""Tests of compiler_hook: what the compiler hook does with a module."""

import contextlib
import subprocess
import sys
import threading
import warnings
from unittest import mock

import jax
import jax.numpy as jnp
import record_modules
from absl.testing import absltest, parameterized
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.compiler_hook import PlanningWarning
from jaxmem_hlo.module import Module
from jaxmem_hlo.proto import hlo_pb2


def _module(name: str) -> bytes:
  return hlo_pb2.Module(name=name, id=1).SerializeToString()


@contextlib.contextmanager
def _handler(tag, handler):
  compiler_hook.add_handler(tag, handler)
  try:
    yield
  finally:
    compiler_hook.remove_handler(tag)


class _TransformTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.object(compiler_hook, "_warned", False))
    self.callback = compiler_hook._callback("cpu")


class DispatchTest(_TransformTest):
  def test_a_marked_module_reaches_its_handler(self):
    seen = []
    with (
      _handler("a1", lambda data, platform: seen.append((data, platform))),
      _handler("b2", lambda data, platform: b"other"),
    ):
      data = _module("jit_" + compiler_hook.mark("step", "a1"))
      self.assertIsNone(self.callback(data))
      self.assertEqual(seen, [(data, "cpu")])
      other = _module("jit_" + compiler_hook.mark("step", "b2"))
      self.assertEqual(self.callback(other), b"other")
    self.assertLen(seen, 1)

  def test_platforms_are_told_apart(self):
    with _handler("a1", lambda data, platform: platform.encode()):
      data = _module(compiler_hook.mark("step", "a1"))
      self.assertEqual(compiler_hook._callback("cuda")(data), b"cuda")
      self.assertEqual(self.callback(data), b"cpu")

  @parameterized.parameters(
    "jit_step",
    "",
    "jit_step__jaxmem_",
    "jit_step__jaxmem_zz",  # Nobody asked for this one.
    "jit_step__jaxmem_A1",
    "jit_step__jaxmem_a1_2",
    "gemm_fusion_dot.3",
    "jit_" + "long_name_" * 30,
  )
  def test_other_modules_are_left_alone(self, name):
    never = mock.Mock(side_effect=AssertionError)
    with _handler("a1", never):
      self.assertIsNone(self.callback(_module(name)))
    never.assert_not_called()
    self.assertFalse(compiler_hook._warned)

  @parameterized.parameters(1, 127, 128, 300, 20_000)
  def test_names_of_any_length(self, length):
    name = compiler_hook.mark("f" * length, "a1")
    with _handler("a1", lambda data, platform: b"seen"):
      self.assertEqual(self.callback(_module(name)), b"seen")

  @parameterized.parameters(b"", b"\x0a", b"\x12\x03abc", b"\x0a\xff\xff\xff")
  def test_bytes_that_name_nothing(self, data):
    self.assertEqual(compiler_hook._module_name(data), b"")
    self.assertIsNone(self.callback(data))
    self.assertFalse(compiler_hook._warned)

  def test_the_name_of_a_recorded_module(self):
    data = record_modules.load("mlp_cpu").data
    self.assertEqual(
      compiler_hook._module_name(data).decode(), Module.from_bytes(data).name
    )

  def test_forgotten_tags(self):
    with _handler("a1", lambda data, platform: b"seen"):
      pass
    self.assertIsNone(self.callback(_module(compiler_hook.mark("f", "a1"))))
    compiler_hook.remove_handler("a1")  # Twice does no harm.


class FailureTest(_TransformTest):
  def fail(self, times=1):
    def handler(data, platform):
      raise RuntimeError("no plan today")

    with _handler("bad", handler):
      for _ in range(times):
        data = _module(compiler_hook.mark("step", "bad"))
        self.assertIsNone(self.callback(data))

  def test_exceptions_are_reported_once(self):
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      self.fail(times=3)
    (warning,) = caught
    self.assertIs(warning.category, PlanningWarning)
    self.assertRegex(
      str(warning.message),
      r"left it to XLA's own plan: RuntimeError: no plan today\.",
    )

  def test_once_even_where_warnings_are_errors(self):
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      self.fail(times=2)
    self.assertTrue(compiler_hook._warned)

  def test_once_from_many_threads(self):
    barrier = threading.Barrier(4)

    def handler(data, platform):
      barrier.wait()
      raise RuntimeError("all at once")

    def call():
      self.callback(_module(compiler_hook.mark("step", "bad")))

    with (
      warnings.catch_warnings(record=True) as caught,
      _handler("bad", handler),
    ):
      warnings.simplefilter("always")
      threads = [threading.Thread(target=call) for _ in range(4)]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
    self.assertLen(caught, 1)


class CompileTest(_TransformTest):
  def step(self, tag):
    def step(x):
      return jnp.tanh(x @ x).sum()

    step.__name__ = compiler_hook.mark("step", tag)
    return jax.jit(step)

  def test_the_handler_sees_the_scheduled_module(self):
    compiler_hook.install()
    compiler_hook.install()  # Registers nothing twice.
    seen = []

    def handler(data, platform):
      seen.append((Module.from_bytes(data), platform))

    with _handler("compile1", handler):
      x = jnp.ones((8, 8))
      self.step("compile1")(x)
      jax.jit(lambda x: jnp.tanh(x @ x).sum())(x)
    ((module, platform),) = seen
    self.assertEqual(platform, "cpu")
    self.assertEqual(module.name, "jit_step__jaxmem_compile1")
    self.assertTrue(module.is_scheduled(module.entry.id))

  def test_a_failing_handler_leaves_the_step_working(self):
    compiler_hook.install()
    x = jnp.arange(64.0).reshape(8, 8) / 64
    expected = jax.jit(lambda x: jnp.tanh(x @ x).sum())(x)
    handler = mock.Mock(side_effect=ValueError("broken"))
    with (
      _handler("compile2", handler),
      self.assertWarnsRegex(PlanningWarning, "ValueError: broken"),
    ):
      self.assertEqual(self.step("compile2")(x), expected)
    handler.assert_called_once()

  def test_under_python_w_error(self):
    code = """
import jax, jax.numpy as jnp
from jaxmem_hlo import compiler_hook
def fail(data, platform):
  raise RuntimeError("no plan")
compiler_hook.install()
compiler_hook.add_handler("t", fail)
for n in range(2):
  def step(x): return jnp.tanh(x @ x).sum() + n
  step.__name__ = compiler_hook.mark("step", "t")
  print(float(jax.jit(step)(jnp.zeros((4, 4)))), compiler_hook._warned)
"""
    options = ["-W", "error::RuntimeWarning"]
    out = subprocess.run(
      [sys.executable, *options, "-c", code],
      check=True,
      capture_output=True,
      text=True,
    )
    self.assertEqual(out.stdout.split(), ["0.0", "True", "1.0", "True"])
    self.assertNotIn("PlanningWarning", out.stderr)


if __name__ == "__main__":
  absltest.main()
