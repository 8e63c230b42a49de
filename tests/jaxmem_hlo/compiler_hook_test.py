"""Tests of compiler_hook: what the compiler hook does with a module."""

import contextlib
import subprocess
import sys
import threading
import warnings
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.compiler_hook import PlanningWarning
from jaxmem_hlo.proto import hlo_pb2

# A process of its own, as it died where the hook was freed while XLA was in it.
_TAKEN_OUT_MEANWHILE = """
import threading
import jax
from jaxmem_hlo import compiler_hook

shown, taken_out = threading.Event(), threading.Event()

def answer(data):
  shown.set()
  assert taken_out.wait(60)
  return ""

compiler_hook._tag = answer

def compile_one():
  with compiler_hook.installed():
    jax.jit(lambda x: x + 1)(0)

thread = threading.Thread(target=compile_one)
thread.start()
assert shown.wait(60)
with compiler_hook.taken_out():
  pass
taken_out.set()
thread.join()
print("compiled")
"""


def _module(tag: str) -> bytes:
  """A module with a frontend attribute, in a field of the map's type.

  Fields 1 and 2 of an entry are its key and its value.
  """
  entry = b"\x0a\x06jaxmem\x12" + bytes([len(tag)]) + tag.encode()
  attributes = b"\x0a" + bytes([len(entry)]) + entry
  # The length of a message of more than 127 bytes takes two bytes.
  length = len(attributes)
  size = bytes([length | 0x80, 1]) if length > 127 else bytes([length])
  name = hlo_pb2.Module(name="jit_step", id=1).SerializeToString()
  return name + b"\xaa\x02" + size + attributes


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
  def test_a_tagged_module_reaches_its_handler(self):
    seen = []
    with (
      _handler("a1", lambda data, platform: seen.append((data, platform))),
      _handler("b2", lambda data, platform: b"other"),
    ):
      self.assertIsNone(self.callback(_module("a1")))
      self.assertEqual(seen, [(_module("a1"), "cpu")])
      self.assertEqual(self.callback(_module("b2")), b"other")
    self.assertLen(seen, 1)

  def test_platforms_are_told_apart(self):
    with _handler("a1", lambda data, platform: platform.encode()):
      self.assertEqual(compiler_hook._callback("cuda")(_module("a1")), b"cuda")
      self.assertEqual(self.callback(_module("a1")), b"cpu")

  @parameterized.parameters(
    "",
    "zz",  # Nobody asked for this one.
    "A1",
    "a1_2",
    "a",
  )
  def test_other_modules_are_left_alone(self, tag):
    never = mock.Mock(side_effect=AssertionError)
    with _handler("a1", never):
      self.assertIsNone(self.callback(_module(tag)))
      self.assertIsNone(self.callback(hlo_pb2.Module().SerializeToString()))
    never.assert_not_called()
    self.assertFalse(compiler_hook._warned)

  @parameterized.parameters(1, 60, 127)
  def test_tags_of_any_length(self, length):
    with _handler("a" * length, lambda data, platform: b"seen"):
      self.assertEqual(self.callback(_module("a" * length)), b"seen")

  @parameterized.parameters(
    b"", b"\x0a", b"\x0a\x06jaxmem\x12", b"\x0a\x06jaxmem\x12\x7fab"
  )
  def test_bytes_that_are_cut_off(self, data):
    self.assertIsNone(self.callback(data))
    self.assertFalse(compiler_hook._warned)

  def test_forgotten_tags(self):
    with _handler("a1", lambda data, platform: b"seen"):
      pass
    self.assertIsNone(self.callback(_module("a1")))
    compiler_hook.remove_handler("a1")  # Twice does no harm.


class FailureTest(_TransformTest):
  def fail(self, times=1):
    def handler(data, platform):
      raise RuntimeError("no plan today")

    with _handler("bad", handler):
      for _ in range(times):
        data = _module("bad")
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
      self.callback(_module("bad"))

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


class InstalledTest(_TransformTest):
  def test_xla_shows_modules_only_meanwhile(self):
    seen = []
    x = jnp.ones((8, 8))

    def compile_one(n):
      jax.jit(lambda x: jnp.tanh(x @ x).sum() + n)(x)

    with mock.patch.object(
      compiler_hook, "_tag", side_effect=lambda data: seen.append(data) or ""
    ):
      compile_one(1)
      self.assertEmpty(seen)
      with compiler_hook.installed():
        with compiler_hook.installed():
          compile_one(2)
        self.assertTrue(compiler_hook.is_installed())
        compile_one(3)
        with compiler_hook.taken_out():
          compile_one(4)
        compile_one(5)
      compile_one(6)
    self.assertLen(seen, 3)
    self.assertFalse(compiler_hook.is_installed())

  def test_taken_out_while_xla_is_in_it(self):
    done = subprocess.run(
      [sys.executable, "-c", _TAKEN_OUT_MEANWHILE],
      check=False,
      capture_output=True,
      text=True,
      timeout=120,
    )
    self.assertEqual(done.stdout, "compiled\n", done.stderr)
    self.assertEqual(done.returncode, 0)

  def test_from_many_threads(self):
    def install():
      for _ in range(20):
        with compiler_hook.installed():
          pass

    threads = [threading.Thread(target=install) for _ in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertFalse(compiler_hook.is_installed())
    self.assertEmpty(compiler_hook._platforms)


if __name__ == "__main__":
  absltest.main()
