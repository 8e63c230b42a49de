import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax import lax

from jaxmem.experimental import jaxpr_order as jaxpr_lib
from jaxmem.graph import liveness
from jaxmem.jaxpr import memory


def _f32(*shape):
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def _names(graph):
  return [node.name.split(".")[0] for node in graph.graph.nodes]


def _node(graph, name):
  return graph.graph.nodes[_names(graph).index(name)]


def _live(graph):
  return liveness.live_bytes(graph.graph, graph.program_order).tolist()


def _layer(x, w):
  return jnp.sum(jnp.sin(x @ w))


class HandComputedTest(parameterized.TestCase):
  @parameterized.parameters(
    # Inputs 16 + 64 bytes throughout. The product takes 16, its sine is written
    # over it, and the sum adds 4.
    ("xla", [96, 96, 100]),
    # The sine gets its own 16 bytes.
    ("eager", [96, 112, 100]),
  )
  def test_bytes_of_every_step(self, model, expected):
    graph = jaxpr_lib.from_function(_layer, _f32(4), _f32(4, 4), model=model)
    self.assertEqual(_names(graph), ["dot_general", "sin", "reduce_sum"])
    self.assertEqual(_live(graph), expected)
    self.assertEqual(graph.graph.base_bytes, 80)
    self.assertEqual(graph.program_order, (0, 1, 2))

  def test_donated_inputs_die_at_their_last_use(self):
    graph = jaxpr_lib.from_function(
      _layer,
      _f32(4),
      _f32(4, 4),
      jit_kwargs={"donate_argnums": (0, 1)},
    )
    self.assertEqual(graph.is_donated, (True, True))
    self.assertEqual(_live(graph), [96, 16, 20])

  def test_donation_of_a_jitted_function_is_known(self):
    step = jax.jit(_layer, donate_argnums=1)
    graph = jaxpr_lib.from_function(step, _f32(4), _f32(4, 4))
    self.assertEqual(graph.is_donated, (False, True))
    with self.assertRaisesRegex(ValueError, "Pass them to jax.jit"):
      jaxpr_lib.from_function(step, _f32(4), jit_kwargs={"donate_argnums": 0})

  def test_donated_input_is_kept_where_it_is_an_output(self):
    graph = jaxpr_lib.from_function(
      lambda x: (x, jnp.sin(x)), _f32(4), jit_kwargs={"donate_argnums": 0}
    )
    self.assertEqual(_live(graph), [32])

  def test_rejects_a_wrong_number_of_donations(self):
    jaxpr = jax.make_jaxpr(_layer)(_f32(4), _f32(4, 4))
    with self.assertRaisesRegex(ValueError, "each of the 2 inputs, got 1"):
      jaxpr_lib.from_jaxpr(jaxpr, is_donated=[True])

  def test_names_and_sources(self):
    graph = jaxpr_lib.from_function(_layer, _f32(4), _f32(4, 4))
    names = [buffer.name for buffer in graph.graph.buffers]
    self.assertEqual(
      names, ["x", "w", "dot_general.0", "sin.1", "reduce_sum.2"]
    )
    for node in graph.graph.nodes:
      self.assertRegex(node.source, r"from_jaxpr_test\.py:\d+$")

  def test_empty_function(self):
    graph = jaxpr_lib.from_function(lambda x: (x, 1.0), _f32(4))
    self.assertEqual(graph.graph.num_nodes, 0)
    self.assertEqual(graph.graph.base_bytes, 16)

  def test_dead_equations_are_dropped(self):
    def fun(x):
      jnp.cos(x)
      return jnp.sin(x)

    graph = jaxpr_lib.from_function(fun, _f32(4))
    self.assertEqual(_names(graph), ["sin"])


class SizeTest(parameterized.TestCase):
  @parameterized.parameters(
    (jnp.float32, 24),
    (jnp.bfloat16, 12),
    (jnp.bool_, 6),
    (jnp.int4, 6),
    (jax.dtypes.float0, 0),
  )
  def test_bytes_of_types(self, dtype, expected):
    aval = jax.ShapeDtypeStruct((2, 3), dtype)
    self.assertEqual(memory.size_bytes(aval), expected)

  def test_keys_weigh_their_words(self):
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 5))
    self.assertEqual(memory.size_bytes(keys), 5 * 8)

  def test_tokens_weigh_nothing(self):
    jaxpr = jax.make_jaxpr(lax.create_token)()
    self.assertEqual(memory.size_bytes(jaxpr.out_avals[0]), 0)

  def test_unknown_sizes_are_refused(self):
    with self.assertRaisesRegex(ValueError, "whose size is not known"):
      memory.size_bytes(object())
    (dimension,) = jax.export.symbolic_shape("b")
    with self.assertRaisesRegex(ValueError, "concrete shapes"):
      memory.size_bytes(_f32(dimension))

  def test_mutable_arrays_weigh_their_contents(self):
    def fun(x):
      ref = jax.new_ref(x)
      ref[...] += 1.0
      return ref[...]

    graph = jaxpr_lib.from_function(fun, _f32(4))
    self.assertEqual(
      [b.size_bytes for b in graph.graph.buffers if b.name == "new_ref.0"],
      [16],
    )

  def test_constants_count_once_and_throughout(self):
    table = np.ones(10, np.float32)
    first, second = jnp.asarray(table), jnp.asarray(table)
    graph = jaxpr_lib.from_function(
      lambda x: jnp.sin(x + first) + jax.jit(lambda y: y * first)(x) + second,
      _f32(10),
    )
    constants = [b for b in graph.graph.buffers if b.name.startswith("const")]
    self.assertEqual([b.size_bytes for b in constants], [40, 40])
    for buffer in constants:
      self.assertTrue(buffer.live_at_start and buffer.live_at_end)


@jax.custom_vjp
def _doubled(x):
  return x * 2


_doubled.defvjp(lambda x: (_doubled(x), None), lambda _, g: (g * 2,))


class InlineTest(parameterized.TestCase):
  @parameterized.parameters(
    (jax.jit(jax.jit(jnp.sin)), ["sin"]),
    (_doubled, ["mul"]),
    (jax.nn.relu, ["max"]),
    (jax.checkpoint(jnp.sin), ["sin"]),
  )
  def test_calls_disappear(self, fun, expected):
    graph = jaxpr_lib.from_function(lambda x: fun(x), _f32(4))
    self.assertEqual(_names(graph), expected)

  def test_a_function_called_twice_gets_two_nodes(self):
    inner = jax.jit(jnp.sin)
    graph = jaxpr_lib.from_function(lambda x: inner(inner(x)), _f32(4))
    self.assertEqual(_names(graph), ["sin", "sin"])
    self.assertEqual(graph.graph.nodes[1].predecessors, (0,))

  def test_jit_with_shardings_stays(self):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    inner = jax.jit(lambda x: jnp.sum(jnp.outer(x, x)), in_shardings=sharding)
    graph = jaxpr_lib.from_function(lambda x: inner(x) + 1, _f32(4))
    self.assertEqual(_names(graph), ["jit", "add"])
    self.assertGreaterEqual(graph.graph.nodes[0].extra_bytes, 4 * 4 * 4)

  def test_recomputation_reads_through_a_barrier(self):
    loss = jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x))))
    graph = jaxpr_lib.from_function(jax.grad(loss), _f32(4))
    names = _names(graph)
    self.assertIn("optimization_barrier", names)
    barrier = names.index("optimization_barrier")
    self.assertTrue(all(graph.is_backward[barrier:]))
    # The barrier is another name of its operand: no buffer is its own.
    self.assertNotIn(
      "optimization_barrier",
      {b.name.split(".")[0] for b in graph.graph.buffers},
    )


class BackwardTest(absltest.TestCase):
  def test_backward_equations_are_those_that_were_transposed(self):
    def fun(x):
      with jax.named_scope("transpose"):
        y = jnp.sin(x)
      return jnp.sum(y * y)

    graph = jaxpr_lib.from_function(jax.value_and_grad(fun), _f32(4))
    forward = [
      name
      for name, backward in zip(_names(graph), graph.is_backward, strict=True)
      if not backward
    ]
    self.assertIn("sin", forward)
    self.assertIn("reduce_sum", forward)
    self.assertTrue(graph.is_backward[-1])
    self.assertFalse(any(jaxpr_lib.from_function(fun, _f32(4)).is_backward))


class LoopTest(parameterized.TestCase):
  def test_scan_needs_what_its_body_needs(self):
    def body(carry, x):
      square = jnp.outer(carry, x)
      return jnp.sum(square, axis=0), x

    graph = jaxpr_lib.from_function(
      lambda c, xs: lax.scan(body, c, xs)[0], _f32(4), _f32(8, 4)
    )
    scan = _node(graph, "scan")
    ((inner,),) = (callee for callee in graph.callees if callee)
    # Reading 4 floats of carry, 4 of x, in place or not, and the 16 of the
    # square; the caller holds one carry.
    peak = liveness.peak_bytes(inner.graph, inner.program_order)
    self.assertEqual(scan.extra_bytes, peak - 16)
    self.assertGreaterEqual(scan.extra_bytes, 64)
    self.assertLess(scan.extra_bytes, 64 + 4 * 16)

  def test_scan_writes_over_its_carry(self):
    graph = jaxpr_lib.from_function(
      lambda c, xs: lax.scan(lambda c, x: (c + x, None), jnp.sin(c), xs)[0],
      _f32(4),
      _f32(8, 4),
    )
    ((operand, result),) = _node(graph, "scan").shares
    buffers = graph.graph.buffers
    self.assertEqual(buffers[operand].size_bytes, buffers[result].size_bytes)
    self.assertIn("sin", buffers[operand].name)

  def test_while_needs_the_larger_of_condition_and_body(self):
    def condition(state):
      return jnp.sum(jnp.outer(state, state)) < 3  # 64 bytes and a few.

    graph = jaxpr_lib.from_function(
      lambda x: lax.while_loop(condition, lambda x: x * 2, x), _f32(4)
    )
    extra_bytes = _node(graph, "while").extra_bytes
    self.assertGreaterEqual(extra_bytes, 64)
    self.assertLess(extra_bytes, 64 + 3 * 16)
    (callees,) = (callee for callee in graph.callees if callee)
    self.assertLen(callees, 2)

  def test_cond_needs_the_largest_branch(self):
    graph = jaxpr_lib.from_function(
      lambda p, x: lax.cond(
        p, lambda x: jnp.sum(jnp.outer(x, x), 0), lambda x: x + 1, x
      ),
      jax.ShapeDtypeStruct((), bool),
      _f32(4),
    )
    extra_bytes = _node(graph, "cond").extra_bytes
    self.assertGreaterEqual(extra_bytes, 64)
    self.assertLess(extra_bytes, 64 + 3 * 16)

  def test_functions_of_scalars_need_nothing(self):
    graph = jaxpr_lib.from_function(
      lambda x: x.at[jnp.array([0, 2])].add(1.0), _f32(4)
    )
    scatter = next(n for n in graph.graph.nodes if "scatter" in n.name)
    self.assertEqual(scatter.extra_bytes, 0)


class InPlaceTest(parameterized.TestCase):
  @parameterized.parameters(
    ("dynamic_update_slice", lambda x: lax.dynamic_update_slice(x, x[:1], [2])),
    ("scatter", lambda x: x.at[jnp.array([1])].set(0.0)),
    ("sort", lambda x: jnp.sort(x)),
    ("add", lambda x: x + 1),
    ("select_n", lambda x: jnp.where(x > 0, x, 0.0)),
  )
  def test_result_may_be_written_over_the_operand(self, name, fun):
    graph = jaxpr_lib.from_function(lambda x: fun(jnp.sin(x)), _f32(4))
    operands = {
      graph.graph.buffers[operand].name
      for operand, _ in _node(graph, name).shares
    }
    self.assertIn("sin.0", operands)

  @parameterized.parameters(
    ("dot_general", lambda x: x @ x),
    ("cumsum", lambda x: jnp.cumsum(x, axis=0)),
    ("rev", lambda x: x[::-1]),
    ("convert_element_type", lambda x: x.astype(jnp.bfloat16)),
  )
  def test_others_may_not(self, name, fun):
    graph = jaxpr_lib.from_function(lambda x: fun(jnp.sin(x)), _f32(4, 4))
    self.assertEqual(_node(graph, name).shares, ())

  def test_a_reshape_is_the_same_memory_unless_both_are_kept(self):
    def fun(x):
      y = jnp.sin(x)
      return y.reshape(2, 2) @ jnp.ones((2, 2)), x.reshape(2, 2)

    graph = jaxpr_lib.from_function(fun, _f32(4))
    reshapes = [b for b in graph.graph.buffers if b.name.startswith("reshape")]
    # Of the input, which stays, the reshaped output is a copy.
    self.assertLen(reshapes, 1)
    self.assertTrue(reshapes[0].live_at_end)


class EffectTest(absltest.TestCase):
  def test_effects_keep_their_order(self):
    def fun(x):
      jax.debug.print("first {}", jnp.sum(x))
      y = jnp.sin(x)
      jax.debug.print("second {}", 0, ordered=True)
      return y

    graph = jaxpr_lib.from_function(fun, _f32(4))
    prints = [i for i, n in enumerate(_names(graph)) if n == "debug_print"]
    self.assertLen(prints, 2)
    self.assertIn(prints[0], graph.graph.nodes[prints[1]].predecessors)

  def test_reads_and_writes_of_a_mutable_array_keep_their_order(self):
    @functools.partial(jax.jit, static_argnums=1)
    def increment(ref, by):
      ref[...] += by

    def fun(x):
      ref = jax.new_ref(x)
      increment(ref, 1)
      increment(ref, 2)
      return ref[...]

    graph = jaxpr_lib.from_function(fun, _f32(4))
    touched = [
      i
      for i, name in enumerate(_names(graph))
      if name in ("new_ref", "get", "swap", "addupdate")
    ]
    for before, after in itertools.pairwise(touched):
      self.assertIn(before, graph.graph.nodes[after].predecessors)

  def test_unknown_primitives_get_their_own_memory(self):
    graph = jaxpr_lib.from_function(
      lambda x: jax.pure_callback(np.sin, x, jnp.sin(x)), _f32(4)
    )
    self.assertEqual(graph.graph.nodes[-1].shares, ())
    self.assertEqual(_live(graph), [32, 48])


if __name__ == "__main__":
  absltest.main()
