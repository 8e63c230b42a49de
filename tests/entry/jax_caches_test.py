"""Calls run no Python, and what jax's caches hold is found again."""

import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import cached_process
import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized

import jaxmem

_PROGRAM = """
def step(x, y):
  total = jnp.float32(0)
  for i in range(6):
    total += jnp.sum(jnp.sin((x + i) @ y) @ x.T)
  return total
x = jax.ShapeDtypeStruct((48, 48), jnp.float32)
if sys.argv[2] == "plan":
  jaxmem.plan(step, x, x)
else:
  for jit in (jax.jit, jaxmem.jit):
    jit(step).lower(x, x).compile()
print(num_hits())
"""


_LIMITED = """
from jax._src import compiler
compiles = []
compile_one = compiler.backend_compile_and_load
def watched(*args):
  executable = compile_one(*args)
  compiles.append(executable)
  return executable
compiler.backend_compile_and_load = watched
def loss(ws, x):
  for w in ws:
    x = jnp.tanh(jnp.sin(x @ w) @ w.T)
  return jnp.sum(x)
step = jax.grad(loss)
ws, x = [jnp.full((64, 64), 0.01 * i) for i in range(6)], jnp.ones((512, 64))
memory = jax.jit(step).lower(ws, x).compile().memory_analysis()
limit = memory.argument_size_in_bytes + memory.output_size_in_bytes
limit += memory.temp_size_in_bytes // 2
before = num_hits()
compiles.clear()
compiled = jaxmem.jit(step, memory_limit=limit).lower(ws, x).compile()
print(num_hits() - before, len(compiles))
print(compiled.memory_analysis().temp_size_in_bytes)
print(sum(float(jnp.sum(g)) for g in compiled(ws, x)))
"""


class TraceCacheTest(parameterized.TestCase):
  @parameterized.parameters(
    {},
    {"memory_limit": 10**9},
    {"options": jaxmem.Options(keep_arena=True)},
  )
  def test_a_function_is_traced_once(self, **kwargs):
    traces = []

    def step(x):
      traces.append(x)
      return jnp.tanh(jnp.sin(x @ x) @ x)

    x = jnp.ones((16, 16))
    for _ in range(5):
      jaxmem.jit(step, **kwargs)(x)
    self.assertLen(traces, 1)


def _num_python_calls(function: Callable[[Any], Any], x: Any) -> int:
  """Returns how many Python functions run in a call."""
  function(x)
  events = []
  sys.setprofile(lambda frame, event, arg: events.append(event))
  try:
    function(x)
  finally:
    sys.setprofile(None)
  return events.count("call")


class DispatchTest(absltest.TestCase):
  def test_a_call_runs_no_python(self):
    def step(x):
      return x + 1

    x = jnp.zeros(())
    self.assertEqual(_num_python_calls(jax.jit(step), x), 0)
    for limit in (None, 10**9):
      jitted = jaxmem.jit(step, memory_limit=limit)
      self.assertIs(type(jitted), type(jax.jit(step)))
      self.assertEqual(_num_python_calls(jitted, x), 0)


class PersistentCacheTest(absltest.TestCase):
  @pytest.mark.slow
  def test_each_entry_of_a_plan_is_found_again(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())

    def entries():
      return {path.name for path in pathlib.Path(folder).glob("*step*-cache")}

    def num_hits(use):
      (line,) = cached_process.run(_PROGRAM, folder, use)
      return int(line)

    self.assertEqual(num_hits("plan"), 0)
    left = entries()
    self.assertEqual(num_hits("jit"), len(left))
    everything = entries()
    num_hits("plan")
    self.assertEqual(entries(), everything)

  @pytest.mark.slow
  def test_a_step_under_a_limit_is_compiled_once_and_found_again(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    first, *expected = cached_process.run(_LIMITED, folder)
    second, *found = cached_process.run(_LIMITED, folder)
    # The versions that are not chosen are given up before they are compiled.
    self.assertEqual(first, "0 1")
    self.assertEqual(second, "1 0")
    self.assertEqual(found, expected)


class MemoryCacheTest(absltest.TestCase):
  def test_equal_functions_compile_once(self):
    def step(x):
      return jnp.tanh(jnp.sin(x @ x) @ x)

    x = jnp.ones((16, 16))
    with jax.log_compiles(), self.assertLogs("jax", "WARNING") as logs:
      for _ in range(5):
        jaxmem.jit(step)(x)
    compiled = [m for m in logs.output if "Finished XLA compilation" in m]
    self.assertLen(compiled, 1)


if __name__ == "__main__":
  absltest.main()
