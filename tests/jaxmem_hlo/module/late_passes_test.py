"""Barriers and tuples go as XLA lets them go."""

import jax
import jax.numpy as jnp
import numpy as np
import small_steps
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.module.late_passes import apply_late_passes
from tiny_hlo import f32, tuple_of

import jaxmem
from jaxmem import targets


def _step(params, x):
  """Blocks under jax.checkpoint, which puts barriers around what it repeats."""

  def loss(params):
    hidden = x
    for weights in params:
      block = jax.checkpoint(lambda h, w: jnp.sin(jnp.tanh(h @ w) * h))
      hidden = block(hidden, weights)
    return jnp.mean(hidden**2)

  value, grads = jax.value_and_grad(loss)(params)
  return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


def _begin():
  """Returns a builder, its computation, and two values: x, and a made of it."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(4), name="x")
  return builder, main, x, main.op("tanh", f32(4), x, name="a")


class ExpandTest(parameterized.TestCase):
  def test_of_an_array_and_of_a_tuple(self):
    builder, main, x, a = _begin()
    one = main.op("opt-barrier", f32(4), a, name="one")
    both = main.tuple(one, x)
    two = main.op("opt-barrier", tuple_of(f32(4), f32(4)), both, name="two")
    first = main.element(two, 0, name="first")
    main.op("negate", f32(4), first, name="b")
    module = builder.module(main)
    expanded = apply_late_passes(module, "cpu")
    names = [i.name for i in expanded.schedule(expanded.entry.id)]
    self.assertEqual(names, ["x", "a", "b"])
    self.assertEqual(expanded.entry.root.name, "b")
    self.assertEqual(expanded.entry.root.operands, (a,))
    # The given module is as it was.
    self.assertLen(module.schedule(module.entry.id), 7)

  def test_instructions_are_listed_as_xla_lists_them(self):
    builder, main, x, a = _begin()
    b = main.op("negate", f32(4), x, name="b")
    both = main.tuple(a, b)
    barrier = main.op("opt-barrier", tuple_of(f32(4), f32(4)), both, name="two")
    second = main.element(barrier, 1, name="second")
    first = main.element(barrier, 0, name="first")
    main.op("subtract", f32(4), second, first, name="c")
    expanded = apply_late_passes(builder.module(main), "cpu")
    # Depth first from the root: its first operand is b now.
    listed = [i.name for i in expanded.entry.instructions]
    self.assertEqual(listed, ["x", "b", "a", "c"])

  @parameterized.parameters(("kLoop", 2), ("kCustom", 3))
  def test_a_fusion_reads_what_became_one_operand_once(self, kind, num_left):
    builder, main, x, a = _begin()
    body = builder.fusion("body")
    p, q, r = (body.parameter(f32(4), name=name) for name in "pqr")
    product = body.op("multiply", f32(4), p, q, name="product")
    body.op("subtract", f32(4), product, r, name="difference")
    body.proto.program_shape.parameters.extend([f32(4)] * 3)
    body.proto.program_shape.parameter_names.extend("pqr")
    barrier = main.op("opt-barrier", f32(4), a, name="barrier")
    main.op(
      *("fusion", f32(4), a, barrier, x),
      name="f",
      fusion_kind=kind,
      calls=(body,),
    )
    module = apply_late_passes(builder.module(main), "cpu")
    fusion = module.entry.root
    self.assertEqual(fusion.operands, (a, a, x)[3 - num_left :])
    inner = module.by_id[fusion.callees[0]]
    self.assertLen(inner.parameters, num_left)
    shape = inner.proto.program_shape
    self.assertLen(shape.parameters, num_left)
    if num_left == 2:
      self.assertEqual(shape.parameter_names, ["p", "r"])
      multiply = inner.by_id[product]
      self.assertEqual(multiply.operands, (p, p))
      self.assertEqual([i.id for i in inner.parameters], [p, r])

  def test_nobody_waits_for_what_is_gone(self):
    builder, main, x, a = _begin()
    barrier = main.op("opt-barrier", f32(4), a, name="one")
    b = main.op("negate", f32(4), x, name="b", after=(barrier, a))
    waiting = main.op("opt-barrier", f32(4), b, name="two", after=(a,))
    main.op("add", f32(4), barrier, waiting, name="c")
    expanded = apply_late_passes(builder.module(main), "cpu").entry
    # The barrier that waits for something stays.
    left = [i.name for i in expanded.instructions]
    self.assertEqual(left, ["x", "a", "b", "two", "c"])
    self.assertEqual(expanded.by_id[b].proto.control_predecessor_ids, [a])

  def test_without_barriers_nothing_is_copied(self):
    module = tiny_hlo.loop(kinds="u")
    self.assertIs(apply_late_passes(module, "cpu"), module)


class TupleTest(parameterized.TestCase):
  def module(self):
    """A step that returns its first argument as a copy."""
    builder, main, x, a = _begin()
    both = main.tuple(x, a)
    first = main.element(both, 0, name="first")
    second = main.element(both, 1, name="second")
    copied = main.op("copy", f32(4), first, name="copied")
    main.tuple(copied, second)
    return builder.module(main), x, a

  def test_what_is_picked_out_is_read_itself(self):
    module, x, a = self.module()
    with tiny_hlo.jaxlib("0.12.0"):
      entry = apply_late_passes(module, "cuda").entry
    opcodes = [i.opcode for i in entry.instructions]
    self.assertEqual(opcodes, ["parameter", "copy", "tanh", "tuple"])
    copied = entry.instructions[1]
    self.assertEqual(copied.operands, (x,))
    self.assertEqual(entry.root.operands, (copied.id, a))

  @parameterized.parameters(((0, 1), True), ((1, 0), False), ((0,), False))
  def test_a_tuple_put_together_again_is_the_first(self, elements, is_whole):
    builder, main, x, _ = _begin()
    pair = tuple_of(f32(4), f32(4))
    made = main.op("rng", pair, x, name="made")
    parts = [main.element(made, n) for n in elements]
    parts[0] = main.op("opt-barrier", f32(4), parts[0])
    main.op("custom-call", f32(4), main.tuple(*parts), name="root")
    entry = apply_late_passes(builder.module(main), "cpu").entry
    opcodes = [i.opcode for i in entry.instructions]
    self.assertEqual(entry.root.operands == (made,), is_whole)
    self.assertEqual(opcodes.count("tuple"), 1 - is_whole)
    left = 0 if is_whole else len(elements)
    self.assertEqual(opcodes.count("get-tuple-element"), left)

  def test_all_elements_of_a_fusion_are_its_tuple(self):
    builder, main, x, _ = _begin()
    made = main.op("rng", tuple_of(f32(4), f32(4)), x, name="made")
    main.tuple(main.element(made, 0), main.element(made, 1))
    with tiny_hlo.jaxlib("0.12.0"):
      entry = apply_late_passes(builder.module(main), "cuda").entry
    self.assertEqual(entry.root.id, made)
    self.assertNotIn("tuple", {i.opcode for i in entry.instructions})

  def test_a_tuple_that_others_read_stays(self):
    builder, main, x, a = _begin()
    both = main.tuple(x, a)
    first = main.element(both, 0, name="first")
    kept = main.op("custom-call", f32(4), both, name="kept")
    main.op("add", f32(4), first, kept, name="root")
    with tiny_hlo.jaxlib("0.12.0"):
      entry = apply_late_passes(builder.module(main), "cuda").entry
    self.assertEqual(entry.root.operands, (x, kept))
    self.assertIn(both, entry.by_id)

  def test_what_only_a_barrier_kept_goes_with_it(self):
    builder, main, x, a = _begin()
    before = main.op("sine", f32(4), a, name="before")
    dead = main.op("negate", f32(4), before, name="dead")
    waited_for = main.op("negate", f32(4), a, name="waited_for")
    effect = main.op(
      "custom-call",
      f32(4),
      a,
      name="effect",
      custom_call_has_side_effect=True,
    )
    both = main.tuple(x, dead, effect, waited_for)
    shape = tuple_of(f32(4), f32(4), f32(4), f32(4))
    barrier = main.op("opt-barrier", shape, both, name="barrier")
    first = main.element(barrier, 0, name="first")
    main.op("cosine", f32(4), first, name="root", after=(waited_for,))
    expanded = apply_late_passes(builder.module(main), "cpu")
    names = [i.name for i in expanded.schedule(expanded.entry.id)]
    self.assertEqual(names, ["x", "a", "waited_for", "effect", "root"])

  def test_xla_left_them_on_gpus_before(self):
    module, _, _ = self.module()
    with tiny_hlo.jaxlib("0.11.2"):
      self.assertIs(apply_late_passes(module, "cuda"), module)
      builder, main, x, a = _begin()
      both = main.tuple(x, a)
      shape = tuple_of(f32(4), f32(4))
      barrier = main.op("opt-barrier", shape, both, name="barrier")
      main.op("negate", f32(4), main.element(barrier, 1), name="b")
      entry = apply_late_passes(builder.module(main), "cuda").entry
    opcodes = [i.opcode for i in entry.instructions]
    expected = ["parameter", "tanh", "tuple", "get-tuple-element", "negate"]
    self.assertEqual(opcodes, expected)

  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed"
  )
  def test_the_model_is_exact_for_a_gpu(self):
    def step(state, weights, x):
      return state, weights - (x @ weights).sum(0), jnp.tanh(x)

    def twice(x):
      # One kernel makes both results, and its tuple is the result.
      return (jnp.sin(x) * 2,) * 2

    x = small_steps.normal(0, 64, 64)
    for fun, args in ((step, (x, x, x)), (twice, (x,))):
      plan = jaxmem.plan(fun, *args, target="h200")
      self.assertEqual(plan.baseline_model_error, 0)
      self.assertEqual(plan.model_error, 0)


class CheckpointTest(parameterized.TestCase):
  def test_the_model_is_exact_and_outputs_are_equal(self):
    params = [0.2 * small_steps.normal(i, 32, 32) for i in range(5)]
    x = small_steps.normal(9, 128, 32)
    plan = jaxmem.plan(_step, params, x, donate_argnums=0)
    self.assertEqual(plan.baseline_model_error, 0)
    self.assertEqual(plan.model_error, 0)
    found, expected = (jit(_step)(params, x) for jit in (jaxmem.jit, jax.jit))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


if __name__ == "__main__":
  absltest.main()
