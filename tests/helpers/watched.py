"""A step with branches, and a test case that watches what is planned."""

import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from jaxmem.entry import PLANNED
from jaxmem.planning import request


def branches(x, y):
  """Large temporaries that XLA:CPU makes all at once, and need not."""
  total = jnp.float32(0)
  for i in range(6):
    total += jnp.sum(jnp.sin((x + i) @ y) @ x.T)
  return total


def both(x, y):
  return branches(x, y), x @ y


def arrays():
  generator = np.random.default_rng(0)
  shape = (48, 48)
  return tuple(
    jnp.asarray(generator.normal(size=shape), jnp.float32) for _ in range(2)
  )


def name_of(lowered) -> str:
  """Returns the name of the module."""
  found = re.search(r"module @(\S+)", lowered.as_text())
  assert found is not None
  return found[1]


class WatchedTest(parameterized.TestCase):
  """Sees what is planned, and forgets earlier warnings."""

  def setUp(self):
    super().setUp()
    # What was compiled before would not be planned again.
    jax.clear_caches()
    self.enter_context(mock.patch.object(PLANNED, "_warned", set()))
    self.plans = []
    plan_module = request.plan_module

    def watch(module, *args):
      planned = plan_module(module, *args)
      self.plans.append((module.name, planned.decision))
      return planned

    self.enter_context(mock.patch.object(request, "plan_module", watch))
