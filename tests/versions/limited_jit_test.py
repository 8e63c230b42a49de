"""A limited step is traced once, and keeps all that jit was told."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from version_cases import OPTIONS, limit_of, limited_case

import jaxmem
from jaxmem.compiler import TracedStep
from jaxmem.entry import planned_compiles
from jaxmem.planning import (
  Request,
)


class TraceTest(absltest.TestCase):
  """The step of the user is traced once, and keeps what jit was told."""

  def setUp(self):
    super().setUp()
    self.traces = []
    step, self.args = limited_case()

    def counted(params, state, batch, *, scale=1.0, mode="plain"):
      self.traces.append(mode)
      params, state, loss = step(params, state, batch * scale)
      return {"params": params, "state": state}, loss

    self.step = counted
    self.jitted = jaxmem.jit(
      counted,
      memory_limit=limit_of(0.5),
      options=OPTIONS,
      static_argnames="mode",
      donate_argnums=(0, 1),
    )

  def test_jit_traces_once(self):
    with mock.patch.object(
      planned_compiles, "pick", side_effect=planned_compiles.pick
    ) as pick:
      lowered = self.jitted.lower(*self.args, scale=2, mode="other")
    self.assertEqual(self.traces, ["other"])
    pick.assert_called_once()
    # The plan waits, though the version is traced from its jaxpr.
    with mock.patch.object(Request, "planner") as planner:
      compiled = lowered.compile()
    planner.assert_not_called()
    expected = jax.jit(self.step, static_argnames="mode")(
      *self.args, scale=2, mode="other"
    )
    results = compiled(*jax.tree.map(jnp.array, self.args), scale=2)
    jax.tree.map(np.testing.assert_array_equal, results, expected)

  def test_functions_that_are_jitted_alike_keep_their_plans(self):
    step, args = limited_case()
    lowered = []
    for scale in (2.0, 3.0):
      jitted = jaxmem.jit(
        lambda p, s, b, scale=scale: step(p, s, b * scale),
        memory_limit=limit_of(0.5),
        options=OPTIONS,
      )
      lowered.append(jitted.lower(*args))
    with mock.patch.object(Request, "planner") as planner:
      for each in lowered:
        each.compile()
    planner.assert_not_called()

  def test_names_and_donation_stay(self):
    mesh = jax.make_mesh((1,), ("data",))
    kwargs = {
      "donate_argnums": (0, 1),
      "in_shardings": jax.NamedSharding(mesh, jax.P()),
    }
    limited = functools.partial(
      jaxmem.jit, memory_limit=limit_of(0.5), options=OPTIONS
    )
    lowered, plain = (
      jit(self.step, **kwargs).lower(*self.args) for jit in (limited, jax.jit)
    )
    ours, theirs = (
      [
        line.split("loc(#")[0]
        for line in each.as_text(debug_info=True).splitlines()
        if "@main" in line
      ]
      for each in (lowered, plain)
    )
    self.assertEqual(ours, theirs)
    self.assertIn("params[0]['b']", ours[0])
    self.assertIn("tf.aliasing_output", ours[0])
    self.assertIn("sharding", ours[0])
    self.assertEqual(lowered.args_info, plain.args_info)

  def test_plan_traces_once(self):
    plan = jaxmem.plan(
      self.step,
      *self.args,
      memory_limit=limit_of(0.5),
      options=OPTIONS,
      donate_argnums=(0, 1),
    )
    self.assertEqual(self.traces, ["plain"])
    assert plan.budget is not None
    self.assertGreater(plan.budget.num_dropped, 0)
    self.assertGreater(plan.verify().num_reads, 0)
    self.assertEqual(self.traces, ["plain"])

  def test_plan_compiles_the_step_as_written_once(self):
    original = TracedStep.prepare
    limit = limit_of(1.0)
    with mock.patch.object(
      TracedStep, "prepare", autospec=True, side_effect=original
    ) as lowered:
      jaxmem.plan(self.step, *self.args, memory_limit=limit, options=OPTIONS)
    # Once for XLA's own plan, which is compared, and once with the plan.
    self.assertEqual(lowered.call_count, 2)

  def test_values_of_outer_functions(self):
    step, args = limited_case()

    @jax.jit
    def outer(factor, params, state, batch):
      inner = jaxmem.jit(
        lambda p, s, b: step(p, s, b * factor),
        memory_limit=limit_of(0.5),
        options=OPTIONS,
      )
      return inner(params, state, batch)

    params, state, batch = args
    jax.tree.map(
      np.testing.assert_array_equal,
      outer(2.0, *args),
      jax.jit(step)(params, state, batch * 2.0),
    )

  def test_without_jit(self):
    step, args = limited_case()
    ours = jaxmem.jit(step, memory_limit=limit_of(0.5), options=OPTIONS)
    with jax.disable_jit():
      jax.tree.map(np.testing.assert_array_equal, ours(*args), step(*args))

  def test_derivatives_from_outside(self):
    @jax.custom_vjp
    def doubled(x):
      return jnp.sin(x)

    doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * x,))
    for limit in ("1GB", "64B"):
      ours = jaxmem.jit(lambda x: doubled(x) ** 2, memory_limit=limit)
      gradient = jax.grad(ours)(3.0)
      self.assertAlmostEqual(gradient, 2 * np.sin(3.0) * 2 * 3.0, places=5)


if __name__ == "__main__":
  absltest.main()
