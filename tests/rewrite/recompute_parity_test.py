"""Steps with random recomputes give the bits that they gave without."""

import importlib
from typing import Any

import edited_steps
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_steps
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module
from jaxmem_hlo.module.post_order import instruction_post_order

from benchmarks import zoo
from jaxmem import Options, cost
from jaxmem.graph import check_order, from_hlo
from jaxmem.planning import reorder

_NUM_STEPS = 3


def _bits(tree):
  found = []
  for leaf in jax.tree.leaves(tree):
    array = np.asarray(leaf)
    found.append((array.dtype, array.shape, array.tobytes()))
  return found


def _dropout(impl):
  def step(params, x):
    key = jax.random.key(x[0, 0].astype(jnp.int32), impl=impl)

    def loss(params):
      hidden = x
      for i, weights in enumerate(params):
        hidden = jax.nn.gelu(hidden @ weights)
        keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape)
        hidden = jnp.where(keep, hidden / 0.9, 0)
      return jnp.mean(hidden**2)

    value, grads = jax.value_and_grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value

  return step, [small_steps.normal(i, 32, 32) * 0.2 for i in range(3)]


def _bfloat16(params, x):
  def loss(params):
    hidden = x.astype(jnp.bfloat16)
    for weights in params:
      hidden = jnp.tanh(jnp.sin(hidden) @ weights.astype(jnp.bfloat16))
    return jnp.mean(hidden.astype(jnp.float32) ** 2)

  value, grads = jax.value_and_grad(loss)(params)
  return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


def _branches_and_loops(params, x):
  def loss(params):
    hidden = x
    for weights in params:
      hidden = jax.lax.cond(
        hidden.sum() > 0,
        lambda h, w: jnp.sin(h @ w),
        lambda h, w: jnp.cos(h @ w),
        hidden,
        weights,
      )
      hidden, _ = jax.lax.scan(
        lambda h, _: (jnp.tanh(h) * 1.1, None), hidden, None, length=3
      )
    return jnp.sum(hidden.at[jnp.arange(5)].add(1.0) ** 2)

  value, grads = jax.value_and_grad(loss)(params)
  return [p - 0.01 * g for p, g in zip(params, grads, strict=True)], value


def _reads_after_donation(params, x):
  sine = jnp.sin(params)
  hidden = jnp.tanh(jnp.tanh(sine @ x.T) @ x)
  new = params * 2 + hidden
  return new, jnp.sum(sine * jnp.tanh(new @ x.T @ x))


_WEIGHTS = [small_steps.normal(i, 32, 32) * 0.2 for i in range(3)]
_INPUT = small_steps.normal(9, 32, 32)
_STEPS = {
  **small_steps.STEPS,
  "dropout_threefry": (*_dropout("threefry2x32"), _INPUT),
  "dropout_rbg": (*_dropout("rbg"), _INPUT),
  "bfloat16": (_bfloat16, _WEIGHTS, _INPUT),
  "branches_and_loops": (_branches_and_loops, _WEIGHTS, _INPUT),
  "reads_after_donation": (_reads_after_donation, _WEIGHTS[0], _INPUT),
}


class ParityTest(parameterized.TestCase):
  def _run(self, compiled, state, *batch):
    state = jax.tree.map(lambda x: jnp.array(x, copy=True), state)
    seen = []
    for _ in range(_NUM_STEPS):
      *state, value = compiled(*state, *batch)
      seen.append(_bits((state, value)))
    return seen

  def _check_edited(self, edited):
    self.assertEqual(edited.faults, ())
    self.assertEqual(edited.temp_bytes, edited.predicted_bytes)
    # The edited module can be planned like any other.
    model = AssignmentModel(edited.after, "cpu")
    entry = from_hlo(model, edited.after.entry)
    self.assertFalse(entry.is_repaired)
    check_order(entry.graph, range(entry.graph.num_nodes))
    for computation in edited.after.computations:
      self.assertEqual(
        instruction_post_order(computation.proto.instructions),
        [i.id for i in computation.instructions],
      )

  @parameterized.parameters(*_STEPS)
  def test_small_steps(self, name):
    step, params, x = _STEPS[name]
    made = []
    edited = edited_steps.compile_edited(
      step,
      (params, x),
      edited_steps.edit_randomly(0, 16, made),
      donate_argnums=0,
    )
    self._check_edited(edited)
    self.assertNotEmpty(made[0].recomputes)
    plain = jax.jit(step, donate_argnums=0).lower(params, x).compile()
    self.assertEqual(
      self._run(edited.compiled, [params], x), self._run(plain, [params], x)
    )

  @parameterized.parameters("mlp", "conv", "reads_after_donation")
  def test_on_a_planned_order(self, name):
    # Copies of donated arguments may be gone there: readers of the argument
    # and the output in its place are closer than XLA would have them.
    step, params, x = _STEPS[name]
    random_edit = edited_steps.edit_randomly(0, 16)

    def edit(module, platform):
      device = cost.device_for("cpu")
      planned = reorder.plan_module(module, device, Options())
      return random_edit(planned.module, platform)

    edited = edited_steps.compile_edited(
      step, (params, x), edit, donate_argnums=0
    )
    self._check_edited(edited)
    plain = jax.jit(step, donate_argnums=0).lower(params, x).compile()
    self.assertEqual(
      self._run(edited.compiled, [params], x), self._run(plain, [params], x)
    )

  @pytest.mark.slow
  def test_a_model(self):
    step = zoo.build("gpt2_small", 2, size="tiny")
    variables, opt_state, *batch = zoo.concrete(step)
    made = []
    edited = edited_steps.compile_edited(
      step.function,
      (variables, opt_state, *batch),
      edited_steps.edit_randomly(0, 30, made),
      **step.jit_kwargs,
    )
    self._check_edited(edited)
    clones = [
      i for i in edited.after.entry.instructions if "recompute" in i.name
    ]
    self.assertGreater(len(clones), 10)
    jitted = jax.jit(step.function, **step.jit_kwargs)
    plain = jitted.lower(variables, opt_state, *batch).compile()
    state = [variables, opt_state]
    self.assertEqual(
      self._run(edited.compiled, state, *batch),
      self._run(plain, state, *batch),
    )


# A program with fusions of two and three outputs. XLA:CPU makes none by
# itself, but compiles them.
_FUSED = """
HloModule fused, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

%two (p0: f32[64,64], p1: f32[64,64], p2: f32[64,64]) -> (f32[64,64], f32[64,64]) {
  %p0 = f32[64,64]{1,0} parameter(0)
  %p1 = f32[64,64]{1,0} parameter(1)
  %p2 = f32[64,64]{1,0} parameter(2)
  %a = f32[64,64]{1,0} add(%p0, %p1)
  %s = f32[64,64]{1,0} sine(%a)
  %m = f32[64,64]{1,0} multiply(%p1, %p2)
  %t = f32[64,64]{1,0} tanh(%m)
  ROOT %r2 = (f32[64,64]{1,0}, f32[64,64]{1,0}) tuple(%s, %t)
}

%three (q0: f32[64,64], q1: f32[64,64]) -> (f32[64,64], f32[64,64], f32[64,64]) {
  %q0 = f32[64,64]{1,0} parameter(0)
  %q1 = f32[64,64]{1,0} parameter(1)
  %b = f32[64,64]{1,0} add(%q0, %q1)
  %c = f32[64,64]{1,0} cosine(%b)
  %n = f32[64,64]{1,0} negate(%q1)
  ROOT %r3 = (f32[64,64]{1,0}, f32[64,64]{1,0}, f32[64,64]{1,0}) tuple(%b, %c, %n)
}

ENTRY %main (x: f32[64,64], w: f32[64,64]) -> (f32[64,64], f32[64,64]) {
  %x = f32[64,64]{1,0} parameter(0)
  %w = f32[64,64]{1,0} parameter(1)
  %d = f32[64,64]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %f = (f32[64,64]{1,0}, f32[64,64]{1,0}) fusion(%x, %w, %d), kind=kLoop, calls=%two
  %f0 = f32[64,64]{1,0} get-tuple-element(%f), index=0
  %f1 = f32[64,64]{1,0} get-tuple-element(%f), index=1
  %g = (f32[64,64]{1,0}, f32[64,64]{1,0}, f32[64,64]{1,0}) fusion(%f0, %f1), kind=kLoop, calls=%three
  %g0 = f32[64,64]{1,0} get-tuple-element(%g), index=0
  %g1 = f32[64,64]{1,0} get-tuple-element(%g), index=1
  %g2 = f32[64,64]{1,0} get-tuple-element(%g), index=2
  %flat = f32[4096]{0} bitcast(%g2)
  %back = f32[64,64]{1,0} bitcast(%flat)
  %e = f32[64,64]{1,0} dot(%f0, %g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %h = f32[64,64]{1,0} dot(%e, %back), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %i = f32[64,64]{1,0} dot(%h, %g0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %j = f32[64,64]{1,0} dot(%i, %f1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %k = f32[64,64]{1,0} dot(%j, %g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %last = f32[64,64]{1,0} dot(%k, %back), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %o = (f32[64,64]{1,0}, f32[64,64]{1,0}) tuple(%last, %j)
}
"""  # noqa: E501


def _fused_module(name):
  hlo: Any = importlib.import_module("jaxlib._hlo")
  parsed = hlo.hlo_module_from_text(_FUSED)
  module = Module.from_bytes(parsed.as_serialized_hlo_module_proto())
  module.proto.name = name
  return module


class MultiOutputParityTest(parameterized.TestCase):
  def _run(self, edit):
    """Compiles the program above in place of one with its signature."""
    edited = edited_steps.compile_edited(
      lambda x, w: (x @ w, x @ w.T),
      (self._x, self._w),
      lambda module, platform: edit(_fused_module(module.name), platform),
      donate_argnums=0,
    )
    self.assertEqual(edited.temp_bytes, edited.predicted_bytes)
    self.assertEqual(edited.faults, ())
    return edited, _bits(edited.compiled(jnp.array(self._x), self._w))

  def setUp(self):
    super().setUp()
    self._x = small_steps.normal(0, 64, 64) / 8
    self._w = small_steps.normal(1, 64, 64) / 8

  def test_random_recomputes(self):
    _, expected = self._run(lambda module, _: module)
    num_split = num_cut = 0
    for seed in range(8):
      edited, found = self._run(edited_steps.edit_randomly(seed, 10))
      self.assertEqual(found, expected, seed)
      fusions = [
        i for i in edited.after.entry.instructions if i.opcode == "fusion"
      ]
      for fusion in fusions:
        if "recompute" in fusion.name:
          self.assertEmpty(fusion.shape.tuple_shapes)
          num_split += 1
        elif len(fusion.shape.tuple_shapes) < {"f": 2, "g": 3}[fusion.name]:
          num_cut += 1
    self.assertGreater(num_split, 10)
    self.assertGreater(num_cut, 2)


if __name__ == "__main__":
  absltest.main()
