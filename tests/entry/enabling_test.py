"""What `jaxmem.enable` costs a process in which nothing is planned."""

import json
import subprocess
import sys

from absl.testing import absltest

_PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
before = set(sys.modules)
import jaxmem
jaxmem.enable(min_bytes="1MiB")
jax.jit(lambda x: x * 2)(1.0)
small = set(sys.modules) - before
jax.jit(lambda x: (x @ x).sum())(jnp.ones((1024, 1024)))
large = set(sys.modules) - before
print(json.dumps([sorted(small), sorted(large)]))
"""
# The planner, and what it brings along.
_HEAVY = ("google", "ortools", "pandas", "jaxmem.planning", "jaxmem.budget")


class EnablingTest(absltest.TestCase):
  def test_the_planner_is_loaded_for_the_first_program_to_plan(self):
    done = subprocess.run(
      [sys.executable, "-c", _PROGRAM],
      check=True,
      capture_output=True,
      text=True,
    )
    small, large = map(set, json.loads(done.stdout))
    self.assertIn("jaxmem.entry.enabling", small)
    self.assertEmpty(small.intersection(_HEAVY))
    self.assertContainsSubset(_HEAVY, large)


if __name__ == "__main__":
  absltest.main()
