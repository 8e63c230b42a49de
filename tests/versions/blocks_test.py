"""Blocks that are recomputed: what is found, what is kept, and the numbers."""

import functools
import itertools

import blocks_cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scan_cases
from absl.testing import absltest, parameterized
from rewritten import rewritten

import jaxmem
from benchmarks.zoo import language, training
from jaxmem import cost
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.planning.request import Request
from jaxmem.versions import blocks, pick, scan
from jaxmem.versions.blocks.find import find_blocks
from jaxmem.versions.blocks.fused import fused_seconds
from jaxmem.versions.blocks.keep import choose_kept
from jaxmem.versions.blocks.recipe import make_groups, make_recipe
from jaxmem.versions.equation_cost import equation_seconds, is_heavy_eqn
from jaxmem.versions.knapsack import Chooser
from jaxmem.versions.values import num_bytes, operands
from jaxmem.versions.version import Version, stacking_less

_RATES = cost.for_target("h200")
_NUM_STEPS = 3


def _run(step, args):
  params, state, batch = args
  losses = []
  for _ in range(_NUM_STEPS):
    params, state, loss = step(params, state, batch)
    losses.append(loss)
  return jax.tree.leaves((params, state, losses))


def _recomputing(step, num_groups, keep_bytes=0, seen=None):
  choice = blocks.BlockChoice(num_groups=num_groups, keep_bytes=keep_bytes)

  def recompute(jaxpr):
    recomputed = blocks.BlockStep(jaxpr).recompute(choice, _RATES)
    if seen is not None:
      seen.append(recomputed)
    return recomputed.closed_jaxpr

  return rewritten(step, recompute)


def _temp_bytes(step, args):
  memory = jax.jit(step).lower(*args).compile().memory_analysis()
  assert memory is not None
  return memory.temp_size_in_bytes


class ParityTest(parameterized.TestCase):
  @parameterized.parameters(
    *((name, 99) for name in blocks_cases.CASES),
    *((name, 2) for name in ("custom derivative", "mask of all")),
  )
  def test_results_are_bit_equal(self, name, num_groups):
    step, args = blocks_cases.CASES[name]()
    seen = []
    changed = _recomputing(step, num_groups, seen=seen)
    expected = _run(jax.jit(step), args)
    donating = jax.jit(changed, donate_argnums=(0, 1))
    found = _run(donating, jax.tree.map(jnp.array, args))
    self.assertGreater(seen[0].num_dropped, 0)
    for one, other in zip(found, expected, strict=True):
      np.testing.assert_array_equal(one, other)

  @parameterized.parameters("chain", "dropout", "custom derivative")
  def test_arguments_that_are_read_anew(self, name):
    step, args = blocks_cases.CASES[name]()
    choice = blocks.BlockChoice(num_groups=99, reads_again=True)

    def recompute(jaxpr):
      return blocks.BlockStep(jaxpr).recompute(choice, _RATES).closed_jaxpr

    expected = _run(jax.jit(step), args)
    found = _run(jax.jit(rewritten(step, recompute)), args)
    for one, other in zip(found, expected, strict=True):
      np.testing.assert_array_equal(one, other)

  def test_a_transformer_is_equal_up_to_rounding(self):
    # XLA fuses the second run of softmax and GELU in another way.
    shape = language.TINY
    module = language.Gpt2(shape, scanned=False)
    step = training.make_step(
      "gpt2_small",
      module,
      [shape.tokens(2)] * 2,
      num_classes=shape.vocabulary,
      optimizer=optax.sgd(1.0),
    )
    args = training.concrete(step)
    expected = jax.jit(step.function)(*args)
    found = jax.jit(_recomputing(step.function, 99))(*args)
    for before, one, other in zip(
      *(jax.tree.leaves(tree[0]) for tree in (args, found, expected)),
      strict=True,
    ):
      gradient = np.asarray(before) - other
      tolerance = 1e-5 * np.max(np.abs(gradient)) + 1e-7
      np.testing.assert_allclose(one, other, rtol=1e-6, atol=tolerance)
    np.testing.assert_allclose(found[-1], expected[-1], rtol=1e-6)

  def test_callbacks_run_once(self):
    calls = []

    def loss(params, x):
      for p in params:
        hidden = jnp.tanh(x @ p["w"])
        jax.debug.callback(lambda _: calls.append(1), jnp.sum(hidden))
        x = x + hidden @ p["v"]
      return jnp.mean(x**2)

    step, args = scan_cases.train(
      loss, blocks_cases.weights(), blocks_cases.batch()
    )
    jax.block_until_ready(jax.jit(_recomputing(step, 99))(*args))
    jax.effects_barrier()
    self.assertLen(calls, blocks_cases.NUM_BLOCKS)


class BytesTest(parameterized.TestCase):
  @parameterized.parameters(
    "chain",
    "bfloat16",
    "custom derivative",
    "branches",
    "while loop",
    "mask of all",
    "parts of a batch",
    "inner updates",
  )
  def test_temporaries_shrink(self, name):
    step, args = blocks_cases.CASES[name]()
    before = _temp_bytes(step, args)
    self.assertLess(_temp_bytes(_recomputing(step, 99), args), 0.6 * before)

  def test_as_small_as_a_checkpoint_of_each_block(self):
    def by_hand(params, x):
      for p in params:
        x = jax.checkpoint(blocks_cases.block)(x, p)
      return jnp.mean(x**2)

    self._assert_about_as_small("chain", by_hand, optax.adamw(1e-2))

  def test_as_small_as_a_checkpoint_of_each_update(self):
    update = jax.checkpoint(blocks_cases.updated)
    by_hand = functools.partial(blocks_cases.learned, update=update)
    self._assert_about_as_small("inner updates", by_hand)

  def _assert_about_as_small(self, name, by_hand, *optimizer):
    step, args = blocks_cases.CASES[name]()
    hand, hand_args = scan_cases.train(
      by_hand, blocks_cases.weights(), blocks_cases.batch(), *optimizer
    )
    self.assertLessEqual(
      _temp_bytes(_recomputing(step, 99), args),
      1.15 * _temp_bytes(hand, hand_args),
    )

  def test_what_is_returned_stays(self):
    values = blocks_cases.values("activations returned")
    groups = make_groups(values, find_blocks(values), 99)
    needs = {var for group in groups for var in group.needs}
    self.assertTrue(needs.isdisjoint(values.jaxpr.outvars))

  def test_larger_groups_keep_fewer_ends(self):
    values = blocks_cases.values("chain")
    found = find_blocks(values)
    groups = make_groups(values, found, 2)
    self.assertEqual(
      [(g.start, g.stop) for g in groups],
      [(found[0].start, found[2].stop), (found[3].start, found[4].stop)],
    )
    # What crosses from the first block to the second is made anew.
    ends = [values.jaxpr.eqns[b.stop - 1].outvars[0] for b in found]
    self.assertIn(ends[0], groups[0].needs)
    self.assertNotIn(ends[2], {*groups[0].needs, *groups[1].needs})


class KeepTest(parameterized.TestCase):
  @parameterized.parameters("chain", "dropout", "branches", "mask of all")
  def test_the_best_of_all_sets_is_kept(self, name):
    values = blocks_cases.values(name)
    groups = make_groups(values, find_blocks(values), 99)[:2]
    full = choose_kept(groups, 2**40, _RATES, Chooser())
    candidates = sorted(full, key=values.definers.__getitem__)[:8]
    self.assertNotEmpty(candidates)

    def seconds(kept):
      recipes = [make_recipe(group, kept) for group in groups]
      again = {index for r in recipes if r is not None for index in r.eqns}
      heavy = {values.definers[v] for v in full}
      return sum(
        equation_seconds(values.jaxpr.eqns[index], _RATES)
        for index in again & heavy
      )

    for share in (0.3, 0.6):
      room = int(share * sum(num_bytes(v) for v in full))
      kept = choose_kept(groups, room, _RATES, Chooser())
      self.assertLessEqual(sum(num_bytes(v) for v in kept), room)
      for number in range(len(candidates) + 1):
        for other in itertools.combinations(candidates, number):
          if sum(num_bytes(v) for v in other) <= room:
            self.assertLessEqual(seconds(kept), seconds(other) + 1e-11)

  def test_what_is_fused_is_not_kept(self):
    @jax.custom_jvp
    def smooth(x):
      return jnp.tanh(x) * x

    @jax.custom_jvp
    def product(x):
      return x @ x

    for each in (smooth, product):
      each.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    jaxpr = jax.make_jaxpr(lambda x: (smooth(x), product(x)))(jnp.ones((4, 4)))
    self.assertEqual([is_heavy_eqn(e) for e in jaxpr.eqns], [False, True])

  def test_fused_seconds(self):
    # Of x + tanh((x * scale) @ w + b) @ v both products read a value that is
    # made elementwise, in the backward pass at least: (x * scale) from x and
    # scale, which is made of x, and tanh(...) from the first product and b.
    values = blocks_cases.values("chain")
    group = make_groups(values, find_blocks(values), 99)[1]
    kept = choose_kept((group,), 2**40, _RATES, Chooser())
    recipe = make_recipe(group, kept)
    assert recipe is not None
    rows, width = blocks_cases.NUM_ROWS, blocks_cases.WIDTH
    scaled = rows * width + rows * width
    tanh = 2 * rows * width + 2 * rows * width + 2 * width
    expected = sum(_RATES.seconds({}, 0.0, 4 * n) for n in (scaled, tanh))
    self.assertAlmostEqual(fused_seconds(recipe, _RATES), expected, places=9)
    # A CPU spends more on a hyperbolic tangent and a sum for each element than
    # on reading it.
    cpu = cost.for_target("cpu")
    flops = 2 * rows * width * (1 / cpu.efficiency.transcendental + 1)
    expected = cpu.seconds({}, 0.0, 4 * scaled)
    expected += cpu.seconds({}, flops, 0.0)
    self.assertAlmostEqual(fused_seconds(recipe, cpu), expected, places=9)

  def test_ragged_products_are_kept(self):
    values = blocks_cases.values("ragged experts")
    groups = make_groups(values, find_blocks(values), 99)
    kept = choose_kept(groups, 2**40, _RATES, Chooser())
    eqns = [values.jaxpr.eqns[values.definers[v]] for v in kept]
    self.assertIn("ragged_dot_general", {e.primitive.name for e in eqns})

  def test_more_bytes_less_work(self):
    step, args = blocks_cases.CASES["chain"]()
    found = blocks.BlockStep(jax.make_jaxpr(step)(*args))
    products = [
      sum(
        eqn.primitive.name == "dot_general"
        for eqn in found.recompute(
          blocks.BlockChoice(num_groups=99, keep_bytes=size), _RATES
        ).closed_jaxpr.eqns
      )
      for size in (0, 20_000, 10**9)
    ]
    # One product of 12,288 bytes is kept, then all.
    num_blocks = blocks_cases.NUM_BLOCKS
    fewest = products[0] - num_blocks
    self.assertEqual(
      products, [fewest + n for n in (num_blocks, num_blocks - 1, 0)]
    )


class DevicesTest(absltest.TestCase):
  def test_what_is_gathered_for_the_forward_pass_need_not_stay(self):
    # Where products of both passes read one argument, XLA gathers it once.
    jaxpr = blocks_cases.closed_jaxpr("chain")
    shared = []
    for reads_again in (False, True):
      choice = blocks.BlockChoice(num_groups=99, reads_again=reads_again)
      step = blocks.BlockStep(jaxpr, num_devices=2)
      changed = step.recompute(choice, _RATES).closed_jaxpr
      names = [eqn.primitive.name for eqn in changed.eqns]
      barrier = names.index("optimization_barrier")
      before, after = (
        {
          var
          for eqn in part
          if eqn.primitive.name == "dot_general"
          for var in operands(eqn)
        }
        for part in (changed.eqns[:barrier], changed.eqns[barrier:])
      )
      shared.append(len(before & after & {*changed.jaxpr.invars}))
    self.assertGreater(shared[0], 0)
    self.assertEqual(shared[1], 0)

  def test_a_device_has_its_part(self):
    step, args = blocks_cases.CASES["chain"]()
    jaxpr = jax.make_jaxpr(step)(*args)
    alone = blocks.BlockStep(jaxpr)
    divided = blocks.BlockStep(jaxpr, num_devices=4)
    self.assertEqual(
      divided.blocks.crossing_bytes, alone.blocks.crossing_bytes // 4
    )
    every = blocks.BlockChoice(num_groups=2)
    whole, part = (each.recompute(every, _RATES) for each in (alone, divided))
    self.assertGreater(part.dropped_bytes, 0)
    self.assertEqual(part.dropped_bytes, whole.dropped_bytes // 4)
    self.assertAlmostEqual(part.again_s, whole.again_s / 4)
    self.assertAlmostEqual(part.fused_s, whole.fused_s / 4)
    # What there is room for on each device, there is four times in all.
    room = 20_000 // 4
    kept = divided.recompute(
      blocks.BlockChoice(num_groups=2, keep_bytes=room), _RATES
    )
    same = alone.recompute(
      blocks.BlockChoice(num_groups=2, keep_bytes=4 * room), _RATES
    )
    self.assertGreater(kept.kept_bytes, 0)
    self.assertLessEqual(kept.kept_bytes, room)
    self.assertEqual(kept.answers, same.answers)

  def test_what_loops_stack_is_divided(self):
    step, args = scan_cases.CASES["layers"]()
    written = TracedStep(jax.jit(step).trace(*args))
    half = scan.droppable_bytes(written.jaxpr) // 2
    found = [
      stacking_less(
        Version(step=written),
        half // parts,
        cost.Device(platform="cpu", rates=_RATES, num_devices=parts),
      )
      for parts in (1, 2)
    ]
    self.assertNotEmpty(found[0].dropped)
    self.assertEqual(found[1].dropped, found[0].dropped)
    self.assertEqual(found[1].saved_bytes, found[0].saved_bytes // 2)
    self.assertNotEqual(found[0].extra_s, 0.0)
    self.assertAlmostEqual(found[1].extra_s, found[0].extra_s / 2, places=12)


@functools.cache
def _unlimited():
  step, args = blocks_cases.CASES["branches"]()
  return jaxmem.plan(step, *args, options=jaxmem.Options(effort="fast"))


def _limit(fraction):
  plan = _unlimited()
  fixed_bytes = plan.total_bytes - plan.temp_bytes
  return fixed_bytes + int(fraction * plan.temp_bytes)


def _pick(limit):
  step, args = blocks_cases.CASES["branches"]()
  options = jaxmem.Options(effort="fast")
  request = Request(options=options, limit_bytes=limit)
  traced = TracedStep(jax.jit(step).trace(*args))
  with ScheduleCapture(request) as schedules:
    return pick(traced, schedules, request)[0]


class LimitTest(absltest.TestCase):
  def test_nothing_changes_where_the_step_fits(self):
    version = _pick(_limit(1.0))
    self.assertIsNone(version.choice)
    self.assertEqual(version.num_residuals, 0)

  def test_blocks_go_where_edits_cannot(self):
    # No edit of the scheduled program runs a branch again.
    limit = _limit(0.5)
    version = _pick(limit)
    self.assertIsNotNone(version.choice)
    self.assertEqual(_pick(limit), version)
    step, args = blocks_cases.CASES["branches"]()
    options = jaxmem.Options(effort="fast", verify=True)
    plan = jaxmem.plan(step, *args, memory_limit=limit, options=options)
    self.assertLessEqual(plan.total_bytes, limit)
    self.assertEqual(plan.model_error, 0)
    assert plan.budget is not None
    self.assertEqual(plan.budget.num_dropped, version.num_residuals)
    self.assertGreater(plan.budget.extra_s, 0)
    ours = jaxmem.jit(step, memory_limit=limit, options=options)
    expected = _run(jax.jit(step), args)
    for one, other in zip(_run(ours, args), expected, strict=True):
      np.testing.assert_array_equal(one, other)

  def test_a_bad_choice_is_refused(self):
    step = blocks.BlockStep(blocks_cases.closed_jaxpr("chain"))
    choice = blocks.BlockChoice(num_groups=0)
    with self.assertRaisesRegex(ValueError, "num_groups must be positive"):
      step.recompute(choice, _RATES)


if __name__ == "__main__":
  absltest.main()
