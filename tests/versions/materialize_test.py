"""Operands of products that are written to memory before they are read."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.extend import core
from jaxmem_hlo.module import ELEMENTWISE, Module

import jaxmem
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.cost import device_for, strides
from jaxmem.planning import Request
from jaxmem.versions import blocks
from jaxmem.versions.bodies import bodies
from jaxmem.versions.materialize import materialized
from jaxmem.versions.version import (
  Version,
  recomputing_blocks,
  stacking_less,
)

_ROWS, _WIDTH = 64, 96


def _layer(x: jax.Array, weights: Any) -> jax.Array:
  first, second = weights
  return x + jnp.square(x @ first) @ second / _WIDTH


def _weights(shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
  keys = jax.random.split(jax.random.key(0), 2)
  return tuple(jax.random.normal(key, shape) / 10 for key in keys)


def _looped(weights: Any, x: jax.Array) -> jax.Array:
  x, _ = jax.lax.scan(lambda x, w: (_layer(x, w), None), x, weights)
  return jnp.square(x).mean()


def _unrolled(layers: Any, x: jax.Array) -> jax.Array:
  for weights in layers:
    x = _layer(x, weights)
  return jnp.square(x).mean()


def _case(is_looped: bool) -> tuple[Any, tuple[Any, jax.Array]]:
  """Returns a step, the gradient of four layers, and its arguments."""
  stacked = _weights((4, _WIDTH, _WIDTH))
  x = jnp.linspace(-1.0, 1.0, _ROWS * _WIDTH).reshape(4, -1, _WIDTH)
  if is_looped:
    return jax.jit(jax.grad(_looped)), (stacked, x)
  layers = [tuple(w[i] for w in stacked) for i in range(4)]
  return jax.jit(jax.grad(_unrolled)), (layers, x)


def _step(is_looped: bool) -> TracedStep:
  jitted, args = _case(is_looped)
  return TracedStep(jitted.trace(*args))


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
  """Yields the equations of a jaxpr, and of what they run."""
  for eqn in jaxpr.eqns:
    yield eqn
    for body in bodies(eqn):
      yield from _equations(body)


def _num_barriers(jaxpr: core.Jaxpr) -> int:
  names = [eqn.primitive.name for eqn in _equations(jaxpr)]
  return names.count("optimization_barrier")


def _computing_copies(module: Module) -> list[str]:
  """Returns the kernels that turn what they compute."""
  found = []
  for computation in map(module.by_id.__getitem__, module.scheduled_ids):
    for fusion in computation.instructions:
      if fusion.opcode == "fusion":
        body = module.by_id[fusion.callees[0]]
        turned = [i for i in body.instructions if strides.turns(i, body.by_id)]
        made = strides.made_of(body, turned)
        opcodes = {body.by_id[i].opcode for i in made}
        if opcodes & (ELEMENTWISE - {"copy", "convert"}):
          found.append(fusion.name)
  return found


def _results(step: TracedStep, args: Any) -> list[Any]:
  return jax.tree.leaves(step.compile({})(*args))


class MaterializedTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_copies_for_products_do_not_compute(self, is_looped):
    written = _step(is_looped)
    changed = written.with_jaxpr(materialized(written.jaxpr))
    schedules = ScheduleCapture(Request(options=jaxmem.Options()))
    before, after = (
      _computing_copies(schedules.module(step)) for step in (written, changed)
    )
    self.assertNotEmpty(before)
    self.assertEmpty(after)

  @parameterized.parameters(False, True)
  def test_results_are_the_same_but_for_rounding(self, is_looped):
    _, args = _case(is_looped)
    written = _step(is_looped)
    changed = written.with_jaxpr(materialized(written.jaxpr))
    for want, got in zip(
      _results(written, args), _results(changed, args), strict=True
    ):
      np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)

  def test_products_of_the_same_pass_read_what_was_written(self):
    def loss(w, x):
      return jnp.sin(jnp.cos(x) @ w).sum()

    w, x = jnp.ones((128, 128)), jnp.ones((64, 128))
    jaxpr = materialized(jax.jit(jax.grad(loss)).trace(w, x).jaxpr)
    written = {
      eqn.outvars[0]
      for eqn in jaxpr.eqns
      if eqn.primitive.name == "optimization_barrier"
    }
    products = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    reads = [[v in written for v in eqn.invars] for eqn in products]
    # Of the two operands of the weight's gradient, one is the cosine that the
    # forward pass made: XLA may make that again.
    self.assertEqual(reads[0], [True, False])
    self.assertCountEqual(reads[1], [True, False])
    self.assertLen(written, 2)

  def test_what_stays(self):
    w = jnp.ones((128, 128))
    small, large = jnp.ones((4, 128)), jnp.ones((64, 128))
    for fun, args, expected in (
      (lambda w, x: (x + 1.0) @ w, (w, large), 1),
      # Products read it in another order.
      (lambda w, x: (x.T + 1.0).T @ w, (w, large), 1),
      (lambda w, x: (x + 1.0) @ w, (w, small), 0),
      # No product reads it, or it was not computed element by element.
      (lambda w, x: x @ w + 1.0, (w, large), 0),
      (lambda w, x: x.cumsum(0) @ w, (w, large), 0),
      (lambda w, x: x.astype(jnp.bfloat16) @ w, (w, large), 0),
    ):
      jaxpr = materialized(jax.jit(fun).trace(*args).jaxpr)
      self.assertEqual(_num_barriers(jaxpr), expected)

  def test_what_equations_run(self):
    def compute(w, x):
      return (x + 1.0) @ w

    def branch(w, x):
      return jax.lax.cond(x[0, 0] > 0, compute, lambda w, x: x, w, x)

    def repeat(w, x):
      return jax.lax.fori_loop(0, 3, lambda _, x: compute(w, x), x)

    def until(w, x):
      def body(x):
        return branch(w, x)

      return jax.lax.while_loop(lambda x: x[0, 0] < 9, body, x)

    def call(w, x):
      return jax.jit(compute)(w, x)

    args = jnp.ones((128, 128)), jnp.ones((64, 128))
    for fun in (branch, repeat, until, call):
      step = TracedStep(jax.jit(fun).trace(*args))
      changed = step.with_jaxpr(materialized(step.jaxpr))
      self.assertEqual(_num_barriers(changed.jaxpr), 1)
      np.testing.assert_allclose(
        *(each.compile({})(*args) for each in (step, changed)), rtol=1e-6
      )

  @parameterized.parameters(False, True)
  def test_again_changes_nothing(self, is_looped):
    once = materialized(_step(is_looped).jaxpr)
    self.assertEqual(_num_barriers(once), _num_barriers(materialized(once)))


class VersionsTest(parameterized.TestCase):
  @parameterized.parameters(("cpu", 1), ("cpu", 8), ("h200", 1))
  def test_versions_for_one_cpu_are(self, target, num_devices):
    device = device_for(target, num_devices=num_devices)
    looped = stacking_less(Version(step=_step(True)), "all", device)
    step = _step(False)
    found = blocks.BlockStep(step.jaxpr)
    choice = blocks.BlockChoice(num_groups=found.blocks.number)
    recomputed = found.recompute(choice, device.rates)
    blocked = recomputing_blocks(Version(step=step), choice, recomputed, device)
    for version in (looped, blocked):
      jaxpr = version.step.jaxpr
      is_done = _num_barriers(materialized(jaxpr)) == _num_barriers(jaxpr)
      self.assertEqual(is_done, (target, num_devices) == ("cpu", 1))


if __name__ == "__main__":
  absltest.main()
