"""What a loop carries: which values can stay in their places, by hand."""

import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxmem.experimental import loops

N = 4


def _carries(body, num_carry):
  """Analyzes a body that carries vectors."""
  jaxpr = jax.make_jaxpr(body)(*(jnp.zeros(N) for _ in range(num_carry)))
  return loops.analyze(jaxpr, 0, num_carry)


def _copied(body, num_carry, max_rounds=6):
  carries = _carries(body, num_carry)
  return [
    len(loops.predict(carries, rounds).copied)
    for rounds in range(1, max_rounds + 1)
  ]


def _neighbours(x):
  return jnp.concatenate([x[1:], x[:1]])


def test_what_is_updated_pointwise_stays():
  assert _copied(lambda a: (a * 2 + 1,), 1, 2) == [0, 0]


def test_what_is_passed_on_stays():
  assert _copied(lambda a, b: (a, b + a), 2, 2) == [0, 0]


def test_a_swap_is_back_after_two_rounds():
  copied = _copied(lambda a, b: (b, a), 2)
  assert copied == [2, 0, 2, 0, 2, 0]


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_a_rotation_is_back_after_its_length(length):
  copied = _copied(lambda *c: (*c[1:], c[0]), length)
  assert [c == 0 for c in copied] == [k % length == 0 for k in range(1, 7)]


def test_permutations_need_the_least_common_multiple_of_their_cycles():
  # (0 1)(2 3 4): six rounds.
  def body(a, b, c, d, e):
    return b, a, d, e, c

  copied = _copied(body, 5)
  # After two rounds the pair is in place, after three the triple.
  assert copied == [5, 3, 2, 3, 5, 0]
  rounds, _ = loops.choose_rounds(
    _carries(body, 5), None, max_rounds=8, min_bytes=1
  )
  assert rounds == 6


def test_random_permutations_by_their_order():
  rng = random.Random(0)
  for _ in range(20):
    permutation = rng.sample(range(5), 5)
    copied = _copied(lambda *c, p=permutation: tuple(c[i] for i in p), 5)
    for rounds, count in enumerate(copied, 1):
      moved = range(5)
      for _ in range(rounds):
        moved = [moved[i] for i in permutation]
      assert count == sum(a != b for a, b in enumerate(moved))


def test_a_recurrence_of_two_terms_needs_two_rounds():
  # The document's y = conv(x): x is read where y is not written.
  assert _copied(lambda x: (_neighbours(x) + 1,), 1, 3) == [1, 0, 0]
  assert _copied(lambda a, b: (b, _neighbours(b) - a), 2, 4) == [2, 0, 0, 0]


def test_a_recurrence_of_three_terms_needs_three():
  def body(a, b, c):
    return b, c, jnp.sin(a) + b

  assert _copied(body, 3) == [3, 3, 0, 0, 0, 0]


def test_a_product_is_no_part_of_what_reads_it():
  def body(w, x):
    return w, jnp.tanh(w @ x)

  jaxpr = jax.make_jaxpr(body)(jnp.zeros((N, N)), jnp.zeros(N))
  assert not loops.predict(loops.analyze(jaxpr, 0, 2), 1).copied


def _inner(*carry):
  """A loop that rewrites all that it carries."""

  def body(values, _):
    return tuple(jnp.sin(x) + values[-1] for x in values), None

  return jax.lax.scan(body, carry, length=4)[0]


def test_an_inner_loop_leaves_values_where_it_got_them():
  # Its results are where its operands were: nothing is copied, nothing waits.
  prediction = loops.predict(_carries(_inner, 2), 1)
  assert not prediction.copied
  assert not prediction.before
  # Swapped, they would have to be where the others were: as in a swap, though
  # no carry is passed on.
  assert _copied(lambda a, b: _inner(a, b)[::-1], 2, 2) == [2, 0]


def test_a_value_in_two_places_is_copied():
  def body(a, b):
    del b
    new = a + 1
    return new, new

  # Computed twice, both can be in place, the second one first.
  assert _copied(body, 2, 2) == [1, 1]
  assert _copied(lambda a, b: (a + 1, a + 1), 2, 1) == [0]


def test_an_old_value_waits_for_those_computed_from_it():
  def body(a, b):
    return a * 2, b + _neighbours(a)

  prediction = loops.predict(_carries(body, 2), 1)
  assert not prediction.copied
  assert prediction.before == {(1, 0)}


def test_waiting_for_one_another_is_impossible():
  def body(a, b):
    return a * 2 + b, b - _neighbours(a)

  # a's new value needs the old b, b's the old a: one of them is copied.
  assert len(loops.predict(_carries(body, 2), 1).copied) == 1
  assert not loops.predict(_carries(body, 2), 2).copied


def test_waiting_against_the_data_is_impossible():
  def body(a, b):
    new = a * 2
    return new, new + b * _neighbours(a)

  assert loops.predict(_carries(body, 2), 1).copied == {0}


def test_chooses_the_fewest_rounds_of_the_best():
  carries = _carries(lambda a, b: (b, a), 2)

  def rounds(length, max_rounds=8, min_bytes=1):
    return loops.choose_rounds(
      carries, length, max_rounds=max_rounds, min_bytes=min_bytes
    )[0]

  assert rounds(None) == 2
  # There are always two bodies.
  assert rounds(4) == 2
  assert rounds(3) == 1
  assert rounds(8, max_rounds=1) == 1
  assert rounds(8, min_bytes=1000) == 1


def test_prediction_against_execution_in_place():
  """Runs bodies with one memory per carry, and looks what is overwritten.

  New values are written where the last of a body is to lie, all others into
  fresh memory; whatever order within a round is allowed, what `predict` says
  needs no copy must come out right.
  """
  rng = random.Random(1)
  num_free = 0
  for _ in range(300):
    num_carry = rng.choice((2, 3))
    spec = []
    for _ in range(num_carry):
      if rng.random() < 0.5:
        spec.append(("move", rng.randrange(num_carry)))
      else:
        spec.append(
          ("make", tuple(c for c in range(num_carry) if rng.random() < 0.5))
        )
    carries = _carries(lambda *c, s=tuple(spec): _apply(s, c), num_carry)
    for rounds in (1, 2, 3):
      prediction = loops.predict(carries, rounds)
      if prediction.copied:
        continue
      num_free += 1
      _check_in_place(spec, rounds, prediction.before)
  assert num_free > 50


def _apply(spec, carry):
  results = []
  for number, (kind, which) in enumerate(spec):
    if kind == "move":
      results.append(carry[which])
    else:
      total = jnp.full(N, float(number))
      for c in which:
        total = total + carry[c] * (number + 2)
      results.append(total)
  return tuple(results)


def _check_in_place(spec, rounds, before):
  """Values are terms; memories 0... are the carries', others are fresh."""
  num_carry = len(spec)
  # Where each last value comes from: a round and a carry, or no round.
  made = {}
  for carry in range(num_carry):
    at = carry
    for when in reversed(range(rounds)):
      kind, which = spec[at]
      if kind == "make":
        made[when, at] = carry
        break
      at = which
  makers = [c for c in range(num_carry) if spec[c][0] == "make"]
  orders = [
    order
    for order in itertools.permutations(makers)
    if all(
      order.index(a) < order.index(b)
      for a, b in before
      if a in order and b in order
    )
  ]
  assert orders
  for order in orders:
    memory: dict[Any, Any] = {c: ("first", c) for c in range(num_carry)}
    place: list[Any] = list(range(num_carry))
    truth: list[Any] = [("first", c) for c in range(num_carry)]
    for when in range(rounds):
      new_place, new_truth = [*place], [*truth]
      for carry in order:
        reads = spec[carry][1]
        # Each element is read before it is written, so this is in place too.
        assert all(memory[place[c]] == truth[c] for c in reads)
        value = ("made", when, carry)
        target = made.get((when, carry), ("fresh", when, carry))
        memory[target] = value
        new_place[carry], new_truth[carry] = target, value
      for carry, (kind, which) in enumerate(spec):
        if kind == "move":
          new_place[carry], new_truth[carry] = place[which], truth[which]
      place, truth = new_place, new_truth
    assert place == list(range(num_carry))
    assert [memory[c] for c in range(num_carry)] == truth
