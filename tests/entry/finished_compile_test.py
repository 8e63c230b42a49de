"""Under a limit, the version that is chosen goes on from its schedule."""

import contextlib
import functools
import gc
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax._src import compiler
from version_cases import OPTIONS, limit_of, limited_case

import jaxmem
from jaxmem.compiler import ScheduleCapture, jax_doors
from jaxmem.compiler.persistent_cache import PersistentCache
from jaxmem.entry.planned_compiles import COMPILES


def _jitted(limit=None, **kwargs):
  step, args = limited_case()
  limit = limit or limit_of(0.5)
  jitted = jaxmem.jit(step, memory_limit=limit, options=OPTIONS, **kwargs)
  return jitted, args


def _check_results(results, args):
  """Checks that results have the bits of jax.jit's."""
  expected = jax.jit(limited_case()[0])(*args)
  jax.tree.map(np.testing.assert_array_equal, results, expected)


@contextlib.contextmanager
def _counted(owner, name):
  """Counts the calls of a function."""
  function = getattr(owner, name)
  with mock.patch.object(
    owner, name, autospec=True, side_effect=function
  ) as counted:
    yield counted


@contextlib.contextmanager
def _persistent_cache(holds):
  """Yields what puts entries in a persistent cache that holds all or none."""
  patch = functools.partial(mock.patch.object, PersistentCache, autospec=True)
  with (
    patch("key", return_value="the key"),
    patch("has", return_value=holds),
    patch("put") as put,
  ):
    yield put


class FinishedCompileTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    jax_doors.install()
    jax.clear_caches()

  @parameterized.parameters(0.5, 0.9)
  def test_nothing_is_compiled_or_lowered_twice(self, fraction):
    jitted, args = _jitted(limit_of(fraction))
    with (
      _counted(compiler, "backend_compile_and_load") as compiles,
      _counted(ScheduleCapture, "module") as modules,
      _counted(jax_doors.Lowering, "lower") as lowered,
    ):
      compiled = jitted.lower(*args).compile()
    versions = {call.args[1] for call in modules.call_args_list}
    self.assertEqual(compiles.call_count, len(versions))
    self.assertEqual(lowered.call_count, len(versions))
    _check_results(compiled(*args), args)
    self.assertEmpty(COMPILES._finished)

  def test_other_options_are_another_compile(self):
    jitted, args = _jitted()
    lowered = jitted.lower(*args)
    with _counted(compiler, "backend_compile_and_load") as compiles:
      lowered.compile(compiler_options={"xla_cpu_enable_fast_math": True})
    self.assertEqual(compiles.call_count, 1)
    self.assertEmpty(COMPILES._finished)

  def test_what_is_lowered_alone_is_let_go(self):
    jitted, args = _jitted()
    lowered = jitted.lower(*args)
    self.assertLen(COMPILES._finished, 1)
    del lowered
    jitted.clear_cache()
    jax.clear_caches()
    gc.collect()
    self.assertEmpty(COMPILES._finished)

  def test_what_is_compiled_with_a_profile_is_compiled_by_jax(self):
    jitted, args = _jitted()
    with mock.patch.object(jax_doors, "_is_profiled", return_value=True):
      lowered = jitted.lower(*args)
      self.assertEmpty(COMPILES._finished)
      with _counted(compiler, "backend_compile_and_load") as compiles:
        lowered.compile()
    self.assertEqual(compiles.call_count, 1)

  def test_jaxs_persistent_cache_keeps_it_once_it_is_asked_for(self):
    jitted, args = _jitted()
    with _persistent_cache(holds=False) as put:
      start = time.perf_counter()
      lowered = jitted.lower(*args)
      most_s = time.perf_counter() - start
      put.assert_not_called()
      with _counted(compiler, "backend_compile_and_load") as compiles:
        compiled = lowered.compile()
      compiles.assert_not_called()
    _, key, executable, seconds = put.call_args.args
    self.assertEqual(put.call_count, 1)
    self.assertEqual(key, "the key")
    self.assertIs(executable, compiled.runtime_executable())
    self.assertBetween(seconds, 0.0, most_s)
    self.assertGreater(seconds, 0.0)
    _check_results(compiled(*args), args)

  def test_what_jaxs_persistent_cache_has_is_taken_from_there(self):
    jitted, args = _jitted()
    with _persistent_cache(holds=True) as put:
      lowered = jitted.lower(*args)
      self.assertEmpty(COMPILES._finished)
      with _counted(compiler, "backend_compile_and_load") as compiles:
        lowered.compile()
    # Jax asks its cache, which has nothing in truth.
    self.assertEqual(compiles.call_count, 1)
    put.assert_not_called()

  def test_without_threads_it_is_compiled_again(self):
    jitted, args = _jitted()
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError):
      lowered = jitted.lower(*args)
    self.assertEmpty(COMPILES._finished)
    results = lowered.compile()(*args)
    _check_results(results, args)

  def test_an_impossible_limit_is_an_error_of_the_compile(self):
    jitted, args = _jitted(limit_of(0.01))
    lowered = jitted.lower(*args)
    with (
      _counted(compiler, "backend_compile_and_load") as compiles,
      self.assertRaises(jaxmem.InfeasibleError),
    ):
      lowered.compile()
    compiles.assert_not_called()
    with self.assertRaises(jaxmem.InfeasibleError):
      jitted.lower(*args).compile()

  def test_what_xla_refuses_is_compiled_as_before(self):
    jitted, args = _jitted()
    finish = mock.patch(
      "jaxmem.compiler.held_compile.HeldCompile.finish",
      side_effect=jax.errors.JaxRuntimeError("It was refused."),
    )
    with finish:
      lowered = jitted.lower(*args)
    self.assertEmpty(COMPILES._finished)
    results = lowered.compile()(*args)
    _check_results(results, args)

  def test_callbacks_are_called(self):
    step, args = limited_case()
    seen = []

    def called(*args):
      results = step(*args)
      jax.debug.callback(lambda x: seen.append(float(x)), results[-1])
      return results

    jitted = jaxmem.jit(called, memory_limit=limit_of(0.7), options=OPTIONS)
    for _ in range(2):
      gc.collect()
      results = jitted(*jax.tree.map(jnp.array, args))
    jax.effects_barrier()
    self.assertEqual(seen, [float(results[-1])] * 2)


if __name__ == "__main__":
  absltest.main()
