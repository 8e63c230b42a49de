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
