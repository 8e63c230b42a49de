"""While loops in rounds: those that count, and those that check."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core
from loop_steps import ARGS, OPTIONS, SIZE, bits, wave, wave_until

from jaxmem.experimental import loops
from jaxmem.experimental.loops import while_loops
from jaxmem.experimental.loops.carries import while_carries


def _fori(a, b, num_rounds=11):
  return jax.lax.fori_loop(0, num_rounds, lambda _, c: wave(*c), (a, b))


@pytest.mark.parametrize("num_rounds", [*range(8), 1000003])
def test_a_counted_loop_runs_every_round_once(num_rounds):
  """Also where the last body would run too many, and at the type's limits."""

  def function(start, bound, x):
    def body(carry):
      index, x, y = carry
      return index + 3, y, x * 31 + index

    return jax.lax.while_loop(
      lambda carry: carry[0] < bound, body, (start, x, x + 1)
    )

  small = loops.RewriteOptions(min_bytes=1)
  rewritten = loops.without_copies(function, small)
  jaxpr = jax.make_jaxpr(function)(*map(jnp.int32, (0, 1, 5)))
  (change,) = loops.rewrite(jaxpr, small)[1]
  assert change.rounds == 2
  limits = jnp.iinfo(jnp.int32)
  starts = (0, -7, limits.min, limits.max - 3 * 8)
  for start, late in itertools.product(starts, (0, 1, 2)):
    if num_rounds > 8 and start > 0:
      continue
    bound = start + max(3 * num_rounds - late, 0)
    args = [*map(jnp.int32, (start, bound, 5))]
    assert bits(rewritten, *args) == bits(function, *args), (start, bound)
  # No round at all, although the difference of the two wraps around.
  args = [*map(jnp.int32, (limits.max, limits.min, 5))]
  assert bits(rewritten, *args) == bits(function, *args)


def _while(cond, body, *carry):
  jaxpr = jax.make_jaxpr(lambda c: jax.lax.while_loop(cond, body, c))(carry)
  (eqn,) = jaxpr.eqns
  return while_loops.find_counter(eqn, while_carries(eqn))


def test_finds_what_a_loop_counts():
  x = jnp.zeros(3)
  counter = _while(lambda c: c[1] < 7, lambda c: (c[0] * 2, c[1] + 2), x, 0)
  assert counter is not None
  assert (counter.carry, counter.step) == (1, 2)
  assert isinstance(counter.bound, core.Literal)
  counter = _while(lambda c: c[0] < c[1], lambda c: (1 + c[0], c[1]), 0, 9)
  assert counter is not None
  assert (counter.carry, counter.step, counter.bound) == (0, 1, 1)


NO_COUNTERS = {
  "down": (lambda c: c[0] < 7, lambda c: (c[0] - 1, c[1])),
  "not always": (lambda c: c[0] < 7, lambda c: (c[0] + c[1], c[1])),
  "moving bound": (lambda c: c[0] < c[1], lambda c: (c[0] + 2, c[1] + 1)),
  "other test": (lambda c: c[0] != 7, lambda c: (c[0] + 1, c[1])),
  "two tests": (lambda c: (c[0] < 7) & (c[1] < 5), lambda c: (c[0] + 1, c[1])),
  "bound first": (lambda c: jax.lax.lt(7, c[0]), lambda c: (c[0] + 1, c[1])),
}


@pytest.mark.parametrize("name", NO_COUNTERS)
def test_takes_nothing_else_for_a_counter(name):
  assert _while(*NO_COUNTERS[name], 0, 1) is None


def test_does_not_count_in_floats():
  found = _while(lambda c: c[0] < 7.0, lambda c: (c[0] + 1.0, c[1]), 0.0, 1)
  assert found is None


# Bodies of carries that move: (rounds, body).
MOVING = {
  "two": (2, lambda a, b, c: (b, a * 3 + c, c + 1)),
  "three": (3, lambda a, b, c, d: (b, d, a - b, c * 2 + a)),
  "other type": (2, lambda a, b, c: (b, b * 2, c + a.astype(jnp.int32))),
  "twice": (2, lambda a, b, c: (b, b, a * 5 + c)),
}


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("bound", range(7))
def test_a_loop_that_checks_runs_no_round_too_many(name, bound):
  """Rounds that are skipped leave no trace, wherever the loop ends."""
  rounds, body = MOVING[name]
  num_carry = body.__code__.co_argcount

  def function(x):
    def cond(carry):
      return (carry[0] < 10**6) & (carry[-1] != bound)

    return jax.lax.while_loop(
      cond,
      lambda carry: (*body(*carry[:-1]), carry[-1] + 1),
      (*(x * k + k for k in range(num_carry)), 0),
    )

  options = loops.RewriteOptions(min_bytes=1)
  x = jnp.int32(2)
  jaxpr = jax.make_jaxpr(function)(x)
  (eqn,) = (e for e in jaxpr.eqns if e.primitive.name == "while")
  for num_rounds in (rounds, 4):
    call = while_loops.in_rounds(eqn, while_carries(eqn), num_rounds, None)
    rewritten = core.jaxpr_as_fun(
      jaxpr.replace(eqns=[call if e is eqn else e for e in jaxpr.eqns])
    )
    assert bits(rewritten, x) == bits(function, x)
  assert bits(loops.without_copies(function, options), x) == bits(function, x)


def test_rounds_with_branches_can_be_forbidden():
  jaxpr = jax.make_jaxpr(wave_until)(*ARGS)
  for is_allowed, rounds in ((True, 2), (False, 1)):
    options = loops.RewriteOptions(min_bytes=1, conditional_rounds=is_allowed)
    (change,) = loops.rewrite(jaxpr, options)[1]
    assert change.rounds == rounds


def test_dynamic_bounds_leave_copies_to_the_last_rounds():
  def function(a, b, num_rounds):
    return _fori(a, b, num_rounds)

  args = (*ARGS, jnp.int32(11))
  plan = loops.remove_copies(function, *args, options=OPTIONS)
  assert plan.is_changed
  # A thousand rounds are assumed, of which one is left to the second loop.
  assert plan.before.copied_bytes == 3 * 1000 * SIZE
  assert plan.after.copied_bytes <= 3 * SIZE
  for num_rounds in (0, 1, 2, 11):
    args = (*ARGS, jnp.int32(num_rounds))
    assert bits(plan.function, *args) == bits(function, *args)
