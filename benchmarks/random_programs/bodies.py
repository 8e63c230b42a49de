"""Kinds of operations that hold others: calls, branches, loops, derivatives."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.random_programs import sharding
from benchmarks.random_programs.kinds import bounded, cast, fit, is_float
from benchmarks.random_programs.sharding import agreed

Scope = dict[int, jax.Array]
# Runs a body in a scope, on what it is given.
Run = Callable[[Scope, jax.Array], jax.Array]
Body = Callable[[Run, Scope, jax.Array, jax.Array, int], jax.Array]


def _call(run, scope, x, y, choice):
  del y
  inline = choice % 4 == 0
  return jax.jit(lambda x: run(scope, x), inline=inline)(x)


def _checkpoint(run, scope, x, y, choice):
  del y
  policies = (None, jax.checkpoint_policies.dots_saveable)
  return jax.checkpoint(lambda x: run(scope, x), policy=policies[choice % 2])(x)


def _carry(run: Run, scope: Scope, x: jax.Array) -> jax.Array:
  """Runs a body that gives what it is given, in shape, type and size."""
  return bounded(fit(run(scope, x), x.shape, x.dtype))


def _branch(run, scope, x, y, choice):
  decides = agreed(jnp.sum(cast(y, jnp.float32))) > 0
  others = (bounded, lambda x: x, lambda x: bounded(fit(y, x.shape, x.dtype)))
  other = others[choice % 3]
  return jax.lax.cond(decides, lambda x: _carry(run, scope, x), other, x)


def _switch(run, scope, x, y, choice):
  index = agreed(jnp.sum(cast(y, jnp.int32))) % 3
  branches = [lambda x: _carry(run, scope, x), bounded, lambda x: x]
  first = choice % 3
  return jax.lax.switch(index, branches[first:] + branches[:first], x)


def _while(run, scope, x, y, choice):
  # Without a derivative, so that it may be within what is differentiated.
  scope = jax.tree.map(jax.lax.stop_gradient, scope)
  x, y = jax.lax.stop_gradient((x, y))
  most = 1 + choice % 5

  def goes_on(state):
    count, x = state
    total = agreed(jnp.sum(cast(x, jnp.float32)))
    return (count < most) & (total < 1e6)

  def step(state):
    count, x = state
    return count + 1, _carry(run, scope, x)

  count = agreed(jnp.sum(cast(y, jnp.int32))) % 2
  return jax.lax.while_loop(goes_on, step, (count, x))[1]


def _fori(run, scope, x, y, choice):
  def step(index, state):
    x, y = state
    made = _carry(run, scope, x)
    if choice % 2:
      made = jnp.where(index % 2 == 0, made, x)
    return fit(y, x.shape, x.dtype), made

  state = x, bounded(fit(y, x.shape, x.dtype))
  return jax.lax.fori_loop(0, 1 + choice % 6, step, state)[choice // 8 % 2]


def _scan(run, scope, x, y, choice):
  length = (1, 3, 4, 7)[choice % 4]
  rows = bounded(fit(y, (length, *x.shape), x.dtype))

  def step(x, row):
    made = _carry(run, scope, x)
    made = jnp.where(row > 0, made, row) if is_float(x) else made
    return made, made

  last, stacked = jax.lax.scan(step, x, rows, reverse=bool(choice // 4 % 2))
  return stacked if choice // 8 % 2 and stacked.size < 1 << 15 else last


def _map(run, scope, x, y, choice):
  del y
  x = x if x.ndim else x[None]
  apply = jax.vmap if choice % 2 else lambda f: lambda x: jax.lax.map(f, x)
  return apply(lambda x: _carry(run, scope, x))(x) if x.shape[0] else x


def _custom(run, scope, x, y, choice):
  """A function with a derivative of its own; it sees nothing outside."""
  del scope, y, choice

  @jax.custom_vjp
  def function(x):
    return _carry(run, {}, x)

  def forward(x):
    return function(x), x

  def backward(x, change):
    if x.dtype in (jnp.bool_, jnp.int8, jnp.int32):
      return (change,)
    return (change * bounded(x),)

  function.defvjp(forward, backward)
  return function(x)


def _gradient(run, scope, x, y, choice):
  """The derivative of a part; of two values, every second time."""
  x, y = (
    each if is_float(each) else cast(each, jnp.float32) for each in (x, y)
  )

  def loss(x, y):
    made = bounded(cast(run(scope, x), jnp.float32))
    return jnp.sum(made * fit(y, made.shape, made.dtype))

  if choice % 2:
    value, (change, other) = jax.value_and_grad(loss, (0, 1))(x, y)
    change = change + fit(other, x.shape, x.dtype)
  else:
    value, change = jax.value_and_grad(loss)(x, y)
  return bounded(change - 0.1 * value.astype(x.dtype) * x)


# Bodies of these see nothing but what they are given.
CLOSED = sharding.CLOSED | {"custom_vjp"}

BODIES: dict[str, Body] = {
  "call": _call,
  "checkpoint": _checkpoint,
  "branch": _branch,
  "switch": _switch,
  "while": _while,
  "fori": _fori,
  "scan": _scan,
  "map": _map,
  "custom_vjp": _custom,
  "gradient": _gradient,
}
