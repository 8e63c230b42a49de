"""Loops written anew: the same bits, and fewer copies in what XLA compiled.

while_loops_test has the loops that count and those that check.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop_steps import (
  ARGS,
  OPTIONS,
  SIZE,
  N,
  bits,
  laplacian,
  scan,
  wave,
  wave_until,
)

import jaxmem
from jaxmem import targets
from jaxmem.experimental import loops


def heavy_ball(x, old):
  return x - 0.01 * (x @ x.T) @ x / N + 0.9 * (x - old), x


def _nested(a, b):
  def outer(carry, _):
    u, v = jax.lax.scan(lambda c, _: (wave(*c), None), carry, length=4)[0]
    return (v, u + 0.1 * laplacian(v)), None

  return jax.lax.scan(outer, (a, b), length=6)[0]


def _until_converged(a, b):
  def cond(carry):
    x, _, count = carry
    return (count < 9) & (jnp.sum(jnp.abs(x)) < 1e30)

  def body(carry):
    x, b, count = carry
    return b + 0.2 * laplacian(x), b, count + 1

  return jax.lax.while_loop(cond, body, (a, b, 0))[0]


def _with_inputs(a, b):
  def body(carry, x):
    u, v = carry
    u, v = v, 2 * v - u + x * laplacian(v)
    return (u, v), u.sum()

  scales = jnp.linspace(0, 0.1, 13)
  return jax.lax.scan(body, (a, b), scales, reverse=True)


# Function -> the copies in its loops, before and after, and the rounds chosen.
CASES = {
  "swap": (scan(lambda a, b: (b, a * 0.5 + b)), 3, 0, 2),
  "wave": (scan(wave), 3, 0, 2),
  "odd length": (scan(wave, 13), 3, 0, 2),
  "jacobi": (scan(lambda x, b: (b + 0.2 * laplacian(x), b)), 1, 0, 2),
  "heavy ball": (scan(heavy_ball), 3, 0, 2),
  "three terms": (
    scan(lambda a, b, c: (b, c, jnp.sin(a) + b), num_extra=1),
    6,
    0,
    3,
  ),
  "order": (
    scan(lambda a, b: (jnp.sin(a), b + jnp.tanh(laplacian(a)))),
    1,
    0,
    1,
  ),
  "nested": (_nested, 6, 0, 2),
  "until converged": (_until_converged, 1, 0, 2),
  "wave until": (wave_until, 3, 0, 2),
  "scanned": (_with_inputs, 3, 0, 2),
}


def _while_in_scan(a, b):
  def outer(carry, _):
    u, v = jax.lax.fori_loop(0, 4, lambda _, c: wave(*c), carry)
    return (v, u + 0.1 * laplacian(v)), None

  return jax.lax.scan(outer, (a, b), length=6)[0]


def _scan_in_while(a, b):
  def inner(carry):
    return jax.lax.scan(lambda c, _: (wave(*c), None), carry, length=4)[0]

  def body(state):
    count, u, v = state
    u, v = inner((u, v))
    return count + 1, v, u + 0.1 * laplacian(v)

  return jax.lax.while_loop(lambda s: s[0] < 6, body, (jnp.int32(0), a, b))[1:]


def _three_deep(a, b):
  def outer(carry, _):
    u, v = _nested(*carry)
    return (v, u), None

  return jax.lax.scan(outer, (a, b), length=4)[0]


@pytest.mark.parametrize("name", CASES)
def test_removes_the_copies_and_keeps_the_bits(name):
  function, before, after, rounds = CASES[name]
  plan = loops.remove_copies(function, *ARGS, options=OPTIONS)
  assert len(plan.before.copies) == before
  assert len(plan.after.copies) == after
  assert plan.is_changed
  assert {change.rounds for change in plan.changes} == {rounds}
  assert plan.after.moved_bytes < plan.before.moved_bytes
  assert plan.after.temp_bytes <= plan.before.temp_bytes * 1.01
  assert bits(plan.function, *ARGS) == bits(function, *ARGS)


@pytest.mark.parametrize(
  ("function", "depth"),
  [(_while_in_scan, 2), (_scan_in_while, 2), (_three_deep, 3)],
)
def test_removes_the_copies_of_loops_in_loops(function, depth):
  plan = loops.remove_copies(function, *ARGS, options=OPTIONS)
  # Something is copied at each level: as often as that level runs.
  assert len({copy.times for copy in plan.before.copies}) == depth
  # A loop that counts has the rest of its rounds, here none, in a loop of its
  # own, which does copy.
  rest = [c for c in plan.after.copies if c.times > 1]
  assert not rest
  assert [change.rounds for change in plan.changes] == [2] * depth
  assert plan.after.moved_bytes < plan.before.moved_bytes
  assert bits(plan.function, *ARGS) == bits(function, *ARGS)


@pytest.mark.skipif(
  not targets.is_available("h200"), reason="cannot compile for GPUs here"
)
def test_removes_the_copies_that_gpus_make():
  function = CASES["wave"][0]
  plan = loops.remove_copies(function, *ARGS, target="h200", options=OPTIONS)
  assert len(plan.before.copies) == 2
  assert not plan.after.copies
  # Two states are copied, that is read and written, and so four of the at
  # most eight passes over a state that a round took before are gone.
  per_round = [
    found.moved_bytes / 12 / SIZE for found in (plan.before, plan.after)
  ]
  assert per_round[0] == pytest.approx(per_round[1] + 4, abs=0.2)


def test_counts_bytes_as_often_as_a_loop_runs():
  plan = loops.remove_copies(CASES["wave"][0], *ARGS, options=OPTIONS)
  # Each of 12 rounds copies both carries, and one of them once more.
  assert plan.before.copied_bytes == 3 * 12 * SIZE
  assert {c.times for c in plan.before.copies} == {12.0}
  assert plan.after.copied_bytes == 0
  reasons = sorted(copy.reason for copy in plan.before.copies)
  assert reasons == ["moved", "overwritten", "overwritten"]
  # What is saved is read and written no more.
  saved = plan.before.moved_bytes - plan.after.moved_bytes
  assert saved >= 2 * plan.before.copied_bytes
  assert "copies in loops            3 ->          0" in str(plan)
  nested = loops.remove_copies(_nested, *ARGS, options=OPTIONS)
  assert {c.times for c in nested.before.copies} == {6.0, 24.0}


def test_keeps_what_copies_nothing():
  function = scan(lambda a, b: (jnp.tanh(a @ b), b))
  plan = loops.remove_copies(function, *ARGS, options=OPTIONS)
  assert not plan.is_changed
  assert plan.function is function
  assert plan.before == plan.after
  assert "kept as it was" in str(plan)


def test_keeps_what_would_need_more_memory():
  function = CASES["until converged"][0]
  plan = loops.remove_copies(
    function, *ARGS, options=OPTIONS, max_temp_growth=-0.9
  )
  assert not plan.is_changed
  assert plan.function is function


def test_runs_under_jaxmem_jit_and_donates():
  function = CASES["wave"][0]
  plan = loops.remove_copies(
    function, *ARGS, jit_kwargs={"donate_argnums": (0, 1)}, options=OPTIONS
  )
  expected = bits(function, *ARGS)
  step = jaxmem.jit(plan.function, donate_argnums=(0, 1))
  results = step(*(jnp.array(a) for a in ARGS))
  assert [np.asarray(r).tobytes() for r in results] == expected


def test_gradients_may_be_taken_inside():
  def function(a, b):
    def loss(a):
      return jnp.sum(CASES["wave"][0](a, b)[1] ** 2)

    return jax.value_and_grad(loss)(a)

  plan = loops.remove_copies(function, *ARGS, options=OPTIONS)
  assert bits(plan.function, *ARGS) == bits(function, *ARGS)


def test_keeps_types_trees_and_keyword_arguments():
  def function(tree, *, key):
    def body(carry):
      tree, key, weak, flag = carry
      key, drawn = jax.random.split(key)
      noise = jax.random.normal(drawn, (3,))
      tree = {"a": tree["b"], "b": tree["a"] + noise.astype(jnp.bfloat16)}
      return tree, key, weak + 1, ~flag

    carry = (tree, key, 1.0, jnp.bool_(True))
    return jax.lax.fori_loop(0, 7, lambda _, c: body(c), carry)

  tree = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.zeros(3, jnp.bfloat16)}
  rewritten = loops.without_copies(function, loops.RewriteOptions(min_bytes=1))
  key = jax.random.key(3)
  expected = jax.jit(function)(tree, key=key)
  results = jax.jit(rewritten)(tree, key=key)
  assert jax.tree.structure(results) == jax.tree.structure(expected)
  for one, other in zip(
    jax.tree.leaves(results), jax.tree.leaves(expected), strict=True
  ):
    assert one.dtype == other.dtype
    if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
      one, other = jax.random.key_data(one), jax.random.key_data(other)
    assert one.weak_type == other.weak_type
    assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_leaves_effects_and_chosen_unrollings_alone():
  def printing(a, b):
    def body(carry, _):
      jax.debug.print("{}", carry[0][0, 0])
      return (carry[1], carry[0]), None

    return jax.lax.scan(body, (a, b), length=4)[0]

  def unrolled(a, b):
    return jax.lax.scan(
      lambda c, _: ((c[1], c[0]), None), (a, b), length=12, unroll=3
    )[0]

  for function in (printing, unrolled):
    jaxpr = jax.make_jaxpr(function)(*ARGS)
    assert loops.rewrite(jaxpr, OPTIONS)[1] == ()


def test_rewrites_loops_within_branches():
  def function(a, b):
    swap = CASES["swap"][0]
    return jax.lax.cond(a[0, 0] > 0, swap, lambda a, b: (a, b), a, b)

  plan = loops.remove_copies(function, *ARGS, options=OPTIONS)
  assert plan.is_changed
  assert plan.after.copied_bytes == 0
  for a in (ARGS[0], -ARGS[0]):
    assert bits(plan.function, a, ARGS[1]) == bits(function, a, ARGS[1])


def test_rejects_no_rounds():
  with pytest.raises(ValueError, match="must be positive"):
    loops.RewriteOptions(max_rounds=0)


def _random_body(rng, num_carry):
  """A body that moves and mixes its carries."""
  kinds = rng.integers(0, 3, num_carry).tolist()
  which = rng.integers(0, num_carry, (num_carry, 2)).tolist()

  def body(*carry):
    results = []
    for kind, (first, second) in zip(kinds, which, strict=True):
      value = carry[first]
      if kind:
        other = carry[second]
        other = laplacian(other) if kind == 2 else other * 0.5
        value = jnp.sin(value) + other
      results.append(value)
    return tuple(results)

  return body


def _loop(body, length, num_carry, is_scan):
  def function(a, b):
    carry = (a, b, a + b)[:num_carry]
    if is_scan:
      return jax.lax.scan(lambda c, _: (body(*c), None), carry, length=length)[
        0
      ]
    bound = length + jnp.int32(a[0, 0] * 0)
    return jax.lax.fori_loop(0, bound, lambda _, c: body(*c), carry)

  return function


@pytest.mark.slow
def test_random_bodies_keep_their_bits():
  """Carries that move, mix and wait, in scans and in loops that count."""
  rng = np.random.default_rng(7)
  options = loops.RewriteOptions(min_bytes=SIZE, max_rounds=3)
  num_changed = 0
  for number in range(8):
    num_carry = int(rng.integers(2, 4))
    body, length = _random_body(rng, num_carry), int(rng.integers(4, 9))
    function = _loop(body, length, num_carry, number % 2)
    rewritten = loops.without_copies(function, options)
    jaxpr = jax.make_jaxpr(function)(*ARGS)
    num_changed += any(c.is_changed for c in loops.rewrite(jaxpr, options)[1])
    assert bits(rewritten, *ARGS) == bits(function, *ARGS)
  assert num_changed > 4
