import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax import lax
from jax.extend import core
from naive_peak import check_peak

from benchmarks import zoo
from jaxmem.experimental import jaxpr_order as jaxpr_lib
from jaxmem.graph import ValidationError, liveness
from jaxmem.jaxpr import memory
from jaxmem.order import plan_order


def _random_order(graph, seed):
  """Returns a topological order, every choice drawn."""
  generator = random.Random(seed)
  waiting = [len(set(node.predecessors)) for node in graph.nodes]
  ready = [index for index, count in enumerate(waiting) if not count]
  order = []
  while ready:
    node = ready.pop(generator.randrange(len(ready)))
    order.append(node)
    for successor in set(graph.successors[node]):
      waiting[successor] -= 1
      if not waiting[successor]:
        ready.append(successor)
  return order


@jax.custom_vjp
def _doubled(x):
  return x * 2


_doubled.defvjp(lambda x: (_doubled(x), None), lambda _, g: (g * 2,))


def _loops(x):
  final, stacked = lax.scan(lambda c, a: (c + a, c * a), x[0], x)
  _, w = lax.while_loop(
    lambda s: s[0] < 3,
    lambda s: (s[0] + 1, s[1] * 2),
    (0, lax.stop_gradient(x)),
  )
  branch = lax.cond(x.sum() > 0, jnp.sin, lambda y: y * 2, x)
  return final.sum() + stacked.sum() + w.sum() + branch.sum()


def _calls(x):
  inner = jax.jit(lambda y: jax.nn.relu(y) + 1)
  kept = jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))
  return jnp.sum(_doubled(inner(x)) * kept(inner(x)))


def _keys(x):
  first, second = jax.random.split(jax.random.key(3))
  noise = jax.random.normal(first, x.shape)
  return jnp.sum(x * noise + jax.random.bits(second, x.shape) % 3)


def _mutable(x):
  ref = jax.new_ref(lax.stop_gradient(x))
  ref[0] = jnp.full(4, 0.5)
  ref[...] += 1.0
  return jnp.sum(x * ref[...])


def _input():
  return jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


class ReorderTest(parameterized.TestCase):
  @parameterized.parameters(_loops, _calls, _keys, _mutable)
  def test_every_order_gives_equal_results(self, fun):
    step = jax.value_and_grad(fun)
    x = _input()
    graph = jaxpr_lib.from_function(step, x)
    expected = jaxpr_lib.run_eager(graph, graph.program_order, [x])
    for seed in range(3):
      order = _random_order(graph.graph, seed)
      actual = jaxpr_lib.run_eager(graph, order, [x])
      jax.tree.map(np.testing.assert_array_equal, actual, expected)
    order = _random_order(graph.graph, 3)
    reordered = jaxpr_lib.reorder(step, order)
    for actual in (reordered(x), jax.jit(reordered)(x)):
      jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        actual,
        step(x),
      )

  def test_signature_is_kept(self):
    def fun(first, *, second):
      return {"sum": first["a"] + second, "one": 1}

    graph = jaxpr_lib.from_function(fun, {"a": 1.0}, second=2.0)
    reordered = jaxpr_lib.reorder(fun, graph.program_order)
    self.assertEqual(reordered({"a": 1.0}, second=2.0), {"sum": 3.0, "one": 1})

  def test_jaxprs_and_graphs_take_flat_arguments(self):
    jaxpr = jax.make_jaxpr(lambda x: (x * 2, x + 1))(1.0)
    graph = jaxpr_lib.from_jaxpr(jaxpr)
    self.assertEqual(jaxpr_lib.reorder(jaxpr, [1, 0])(2.0), [4.0, 3.0])
    self.assertEqual(jaxpr_lib.reorder(graph, [1, 0])(2.0), [4.0, 3.0])
    names = [e.primitive.name for e in graph.ordered_jaxpr([1, 0]).eqns]
    self.assertEqual(names, ["add", "mul"])

  def test_wrong_orders_are_refused(self):
    graph = jaxpr_lib.from_function(lambda x: jnp.sin(x) * 2, 1.0)
    with self.assertRaises(ValidationError):
      jaxpr_lib.reorder(graph, [1, 0])
    with self.assertRaises(ValidationError):
      jaxpr_lib.run_eager(graph, [0], [1.0])
    with self.assertRaisesRegex(ValueError, "the 1 flat inputs, got 0"):
      jaxpr_lib.run_eager(graph, [0, 1], [])

  def test_effects_happen_once_and_in_order(self):
    printed = []

    def fun(x):
      jax.debug.callback(printed.append, 1, ordered=True)
      y = jnp.sin(x)
      jax.debug.callback(printed.append, 2, ordered=True)
      return y

    graph = jaxpr_lib.from_function(fun, 1.0)
    order = _random_order(graph.graph, 0)
    jaxpr_lib.run_eager(graph, order, [1.0])
    jax.effects_barrier()
    self.assertEqual([int(p) for p in printed], [1, 2])
    jax.jit(jaxpr_lib.reorder(fun, order))(1.0)
    jax.effects_barrier()
    self.assertEqual([int(p) for p in printed], [1, 2, 1, 2])

  def test_recomputation_is_not_merged_under_jit(self):
    loss = jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x))))
    step = jax.value_and_grad(loss)
    graph = jaxpr_lib.from_function(step, _input())
    reordered = jax.jit(jaxpr_lib.reorder(step, graph.program_order))
    text = reordered.lower(_input()).as_text()
    self.assertIn("optimization_barrier", text)


class RunEagerTest(parameterized.TestCase):
  @parameterized.parameters((), (0,))
  def test_jax_holds_the_live_bytes_of_the_plan(self, *donate):
    def fun(x):
      a = jnp.sin(x)
      b = a @ a
      return jnp.cos(b) + a, jnp.sum(b)

    # Large enough for stray scalars not to matter.
    x = np.ones((64, 64), np.float32)
    graph = jaxpr_lib.from_function(
      fun, x, model="eager", jit_kwargs={"donate_argnums": donate}
    )
    order = plan_order(graph.graph).order
    expected = liveness.live_bytes(graph.graph, order)
    arguments = [jnp.asarray(x)]
    kept = None if donate else arguments[0]
    jaxpr_lib.run_eager(graph, order, [jnp.asarray(x)])  # Fills jax's caches.
    before = self._held_bytes() - x.nbytes
    held = []
    jaxpr_lib.run_eager(
      graph,
      order,
      arguments,
      on_step=lambda _: held.append(self._held_bytes() - before),
    )
    del kept
    self.assertEmpty(arguments)
    np.testing.assert_array_equal(held, expected)

  def _held_bytes(self):
    return sum(array.nbytes for array in jax.live_arrays())

  def test_undonated_arrays_survive(self):
    x = _input()
    graph = jaxpr_lib.from_function(lambda x: jnp.sum(x), x)
    jaxpr_lib.run_eager(graph, graph.program_order, [x])
    self.assertFalse(x.is_deleted())


class ZooTest(parameterized.TestCase):
  @parameterized.parameters(*sorted(zoo.MODELS))
  def test_tiny_steps_are_planned(self, name):
    step = zoo.build(name, 1, size="tiny")
    jitted = jax.jit(step.function, **step.jit_kwargs)
    graph = jaxpr_lib.from_function(jitted, *step.args)
    planned = plan_order(graph.graph, effort="fast")
    check_peak(graph.graph, planned.order, planned.peak_bytes)
    self.assertLessEqual(
      planned.peak_bytes,
      liveness.peak_bytes(graph.graph, graph.program_order),
    )
    self.assertTrue(any(graph.is_backward))
    self.assertFalse(all(graph.is_backward))
    self.assertTrue(any(graph.is_donated))
    # jax's own checker: every value is defined before it is read, and typed.
    core.check_jaxpr(graph.ordered_jaxpr(planned.order))
    outputs = jax.tree.leaves(jax.eval_shape(step.function, *step.args))
    avals = graph.closed_jaxpr.out_avals
    self.assertEqual(
      [memory.size_bytes(aval) for aval in avals],
      [memory.size_bytes(output) for output in outputs],
    )

  @pytest.mark.slow
  def test_a_tiny_step_runs_with_equal_results(self):
    step = zoo.build("alexnet", 1, size="tiny")
    graph = jaxpr_lib.from_function(
      step.function, *step.args, jit_kwargs=dict(step.jit_kwargs)
    )
    expected = jax.tree.leaves(jax.jit(step.function)(*zoo.concrete(step)))
    planned = plan_order(graph.graph, effort="fast").order
    runs = [
      jaxpr_lib.run_eager(graph, order, jax.tree.leaves(zoo.concrete(step)))
      for order in (graph.program_order, planned)
    ]
    jax.tree.map(np.testing.assert_array_equal, *runs)
    # Fused kernels round differently.
    for actual, wanted in zip(runs[0], expected, strict=True):
      np.testing.assert_allclose(actual, wanted, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
  absltest.main()
