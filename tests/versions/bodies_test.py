"""Tests of limits on steps that lie in loops, branches and calls."""

import jax
import jax.numpy as jnp
import numpy as np
import scan_cases
from absl.testing import absltest, parameterized
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmem
from jaxmem.versions import scan
from jaxmem.versions.blocks import BlockChoice, BlockStep
from jaxmem.versions.bodies import bodies, num_constants
from jaxmem.versions.values import Values


def _arguments():
  draw = np.random.default_rng(0).normal

  def array(*shape, scale=0.1):
    return jnp.asarray(scale * draw(size=shape), jnp.float32)

  weights = [(array(64, 256), array(256, 64)) for _ in range(6)]
  return weights, array(512, 64, scale=1.0)


def _update(weights, x):
  """One step of gradient descent on residual blocks, written out."""

  def loss(weights):
    y = x
    for up, down in weights:
      y = y + jnp.tanh(y @ up) @ down
    return (y * y).mean()

  gradients = jax.grad(loss)(weights)
  return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def _in_while(weights, x):
  def body(carry):
    count, weights = carry
    return count + 1, _update(weights, x)

  _, weights = jax.lax.while_loop(lambda c: c[0] < 3, body, (0, weights))
  return weights


def _in_branch(weights, x):
  return jax.lax.cond(
    x[0, 0] > -100.0, lambda w: _update(w, x), lambda w: w, weights
  )


def _mesh():
  return jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))


def _in_shard_map(weights, x):
  return jax.shard_map(
    _update, mesh=_mesh(), in_specs=(P(), P("data")), out_specs=P()
  )(weights, x)


def _in_placed_jit(weights, x):
  sharding = NamedSharding(_mesh(), P("data"))
  return jax.jit(_update, in_shardings=(None, sharding))(weights, x)


_STEPS = (_in_while, _in_branch, _in_shard_map, _in_placed_jit)


def _scanned(weights, x):
  """Gradients of layers that a loop runs, from their stacked weights."""

  def layer(y, weight):
    return jnp.tanh(jnp.sin(y @ weight)), None

  return jax.grad(lambda w: jax.lax.scan(layer, x, w)[0].sum())(weights)


class ShardsTest(parameterized.TestCase):
  # The second axis stays with the compiler: shapes do not show it.
  @parameterized.parameters(((8,), 8), ((4, 2), 4))
  def test_what_loops_stack_within_shard_map_is_there_on_each_device(
    self, sizes, num_shards
  ):
    args = (jnp.zeros((6, 32, 32)), jnp.zeros((256, 32)))
    alone = jax.make_jaxpr(_scanned)(*args)
    mapped = jax.make_jaxpr(_mapped(_scanned, sizes))(
      *(jnp.zeros((num_shards * a.shape[0], *a.shape[1:])) for a in args)
    )
    stacked = scan.droppable_bytes(alone)
    self.assertGreater(stacked, 0)
    self.assertEqual(scan.droppable_bytes(mapped), num_shards * stacked)
    for save in ("all", stacked // 3):
      of_one, of_all = (
        scan.rewrite_step(
          jaxpr, save if save == "all" else times * save, scan_cases.RATES
        )
        for jaxpr, times in ((alone, 1), (mapped, num_shards))
      )
      self.assertNotEmpty(of_one.dropped)
      self.assertLen(of_all.dropped, len(of_one.dropped))
      self.assertEqual(of_all.saved_bytes, num_shards * of_one.saved_bytes)

  @parameterized.parameters(((8,), 8, 1), ((4, 2), 4, 2))
  def test_blocks_count_for_one_device(self, sizes, num_shards, num_left):
    weights, x = _arguments()
    alone = BlockStep(jax.make_jaxpr(_update)(weights, x))
    weights, x = jax.tree.map(
      lambda a: jnp.zeros((num_shards * a.shape[0], *a.shape[1:])), (weights, x)
    )
    mapped = jax.make_jaxpr(_mapped(_update, sizes))(weights, x)
    self.assertEqual(
      BlockStep(mapped, num_devices=8).blocks.crossing_bytes,
      alone.blocks.crossing_bytes // num_left,
    )


def _mapped(fun, sizes):
  names = ("data", "model")[: len(sizes)]
  mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))
  return jax.shard_map(
    fun,
    mesh=mesh,
    in_specs=(P("data"), P("data")),
    out_specs=P("data"),
    axis_names={"data"},
  )


def _half_updates(weights, batches):
  """Updates of half precision in a loop over parts of a batch."""

  def add(total, x):
    mask = jnp.broadcast_to(weights[0][0][:1, :64], x.shape)

    def loss(weights):
      y = x.astype(jnp.bfloat16)
      # All casts come first, and belong to the first block if to any.
      for up, down in jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights):
        y = y + jnp.tanh(y @ up) @ down
      return (mask * y * y).mean(dtype=jnp.float32)

    return jax.tree.map(jnp.add, total, jax.grad(loss)(weights)), None

  zeros = jax.tree.map(jnp.zeros_like, weights)
  return jax.lax.scan(add, zeros, batches)[0]


def _body(step):
  (eqn,) = [e for e in step.closed_jaxpr.eqns if e.primitive.name == "scan"]
  return Values(bodies(eqn)[0], num_constants(eqn))


class ConstantsTest(absltest.TestCase):
  def test_what_is_the_same_in_all_iterations_is_not_made_again(self):
    weights, x = _arguments()
    args = weights, x.reshape(4, -1, 64)
    step = BlockStep(jax.make_jaxpr(_half_updates)(*args))
    choice = BlockChoice(num_groups=step.blocks.number)
    changed = step.recompute(choice, scan_cases.RATES)
    self.assertGreater(changed.num_dropped, len(weights))
    body = _body(changed)
    casts = len(jax.tree.leaves(weights))
    # The weights, their casts and the row that the mask repeats: not the mask.
    self.assertLen(body.hoisted, 2 * casts + 1)
    shapes = {"bfloat16[64,256]", "bfloat16[256,64]"}
    made = [
      str(eqn.outvars[0].aval)
      for eqn in body.eqns
      if eqn.primitive.name == "convert_element_type"
    ]
    self.assertLen([name for name in made if name in shapes], casts)

  def test_parity(self):
    weights, x = _arguments()
    args = weights, x.reshape(4, -1, 64)
    want = jax.jit(_half_updates)(*args)
    plan = jaxmem.plan(_half_updates, *args)
    limit = plan.total_bytes - int(0.3 * plan.temp_bytes)
    found = jaxmem.jit(_half_updates, memory_limit=limit)(*args)
    jax.tree.map(np.testing.assert_array_equal, found, want)


class BodiesTest(parameterized.TestCase):
  @parameterized.parameters(*_STEPS)
  def test_a_limit_is_met_by_blocks_within(self, step):
    args = _arguments()
    plan = jaxmem.plan(step, *args)
    limit = plan.total_bytes - int(0.25 * plan.temp_bytes)
    limited = jaxmem.jit(step, memory_limit=limit)
    memory = limited.lower(*args).compile().memory_analysis()
    fixed = plan.total_bytes - plan.temp_bytes
    self.assertLessEqual(memory.temp_size_in_bytes, limit - fixed)
    jax.tree.map(
      np.testing.assert_array_equal, limited(*args), jax.jit(step)(*args)
    )

  @parameterized.parameters(*_STEPS)
  def test_blocks_are_found(self, step):
    blocks = BlockStep(jax.jit(step).trace(*_arguments()).jaxpr).blocks
    self.assertGreaterEqual(blocks.number, 5)

  def test_the_other_branch_stays(self):
    weights, x = _arguments()
    negative = x.at[0, 0].set(-1000.0)
    plan = jaxmem.plan(_in_branch, weights, negative)
    limit = plan.total_bytes - int(0.25 * plan.temp_bytes)
    found = jaxmem.jit(_in_branch, memory_limit=limit)(weights, negative)
    jax.tree.map(np.testing.assert_array_equal, found, weights)


if __name__ == "__main__":
  absltest.main()
