"""Loops that carry state, as solvers and recurrent networks write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Case(NamedTuple):
  """A loop.

  Attributes:
    function: To be jitted.
    args: Its arguments.
    rounds: How many rounds its loops have in all.
  """

  function: Callable[..., Any]
  args: tuple[jax.Array, ...]
  rounds: int


def _normal(seed: int, *shape: int) -> jax.Array:
  values = np.random.default_rng(seed).standard_normal(shape, np.float32)
  return jnp.asarray(values)


def _laplacian(u: jax.Array) -> jax.Array:
  rows = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0)
  return rows + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u


def _scan(body: Callable[..., Any], carry: Any, rounds: int) -> Any:
  return jax.lax.scan(lambda c, _: (body(*c), None), carry, length=rounds)[0]


def wave(size: int, rounds: int) -> Case:
  """The wave equation by leapfrog: two states, of which the older one goes."""

  def function(old, now):
    return _scan(
      lambda u, v: (v, 2 * v - u + 0.1 * _laplacian(v)), (old, now), rounds
    )

  return Case(
    function, (_normal(0, size, size), _normal(1, size, size)), rounds
  )


def jacobi(size: int, rounds: int) -> Case:
  """Poisson's equation by Jacobi's method."""

  def function(x, b):
    def body(x):
      return (0.25 * (_laplacian(x) + 4 * x - b),)

    return _scan(body, (x,), rounds)

  return Case(
    function, (_normal(0, size, size), _normal(1, size, size)), rounds
  )


def jacobi_until(size: int, rounds: int) -> Case:
  """The same, until it has converged or the rounds are over."""

  def function(x, b):
    def cond(state):
      return (state[1] < rounds) & (state[2] > 0)

    def body(state):
      x, count, _ = state
      new = 0.25 * (_laplacian(x) + 4 * x - b)
      return new, count + 1, jnp.max(jnp.abs(new - x))

    return jax.lax.while_loop(cond, body, (x, 0, jnp.float32(1)))

  return Case(
    function, (_normal(0, size, size), _normal(1, size, size)), rounds
  )


def wave_until(size: int, rounds: int) -> Case:
  """Leapfrog, until a wave has reached the border or the rounds are over."""

  def function(old, now):
    def cond(state):
      return (state[2] < rounds) & (jnp.max(jnp.abs(state[1][0])) < 1e6)

    def body(state):
      u, v, count = state
      return v, 2 * v - u + 0.1 * _laplacian(v), count + 1

    return jax.lax.while_loop(cond, body, (old, now, 0))

  args = (_normal(0, size, size), _normal(1, size, size))
  return Case(function, args, rounds)


def conjugate_gradient(size: int, rounds: int) -> Case:
  """Conjugate gradients on the same equation, shifted."""

  def function(b):
    def body(x, r, p, rr):
      ap = 5 * p - _laplacian(p)
      alpha = rr / jnp.sum(p * ap)
      x, r = x + alpha * p, r - alpha * ap
      new = jnp.sum(r * r)
      return x, r, r + (new / rr) * p, new

    return _scan(body, (jnp.zeros_like(b), b, b, jnp.sum(b * b)), rounds)[0]

  return Case(function, (_normal(0, size, size),), rounds)


def heavy_ball(size: int, rounds: int) -> Case:
  """Gradient descent with momentum, written with the last two iterates."""

  def function(x, a):
    def body(x, old):
      return x - 0.01 * (a @ x) / size + 0.9 * (x - old), x

    return _scan(body, (x, x), rounds)[0]

  return Case(
    function, (_normal(0, size, size), _normal(1, size, size)), rounds
  )


def adams_bashforth(size: int, rounds: int) -> Case:
  """Heat by the three-step Adams-Bashforth method: three old derivatives."""

  def function(u):
    def body(u, first, second, third):
      u = u + 0.01 * (23 * third - 16 * second + 5 * first) / 12
      return u, second, third, _laplacian(u)

    slope = _laplacian(u)
    return _scan(body, (u, slope, slope, slope), rounds)[0]

  return Case(function, (_normal(0, size, size),), rounds)


def skip_rnn(size: int, rounds: int) -> Case:
  """A recurrent network that reads the states of two steps ago."""

  def function(w, u, inputs):
    def body(carry, x):
      old, now = carry
      new = jnp.tanh(now @ w + old @ u + x)
      return (now, new), new.mean()

    start = jnp.zeros_like(w)
    return jax.lax.scan(body, (start, start), inputs)

  matrices = (_normal(0, size, size) / size, _normal(1, size, size) / size)
  return Case(function, (*matrices, _normal(2, rounds, size)), rounds)


def gru(size: int, rounds: int) -> Case:
  """A gated network, of which XLA copies nothing: for comparison."""

  def function(w, u, inputs):
    def body(h, x):
      gate = jax.nn.sigmoid(h @ w + x)
      h = gate * h + (1 - gate) * jnp.tanh((gate * h) @ u + x)
      return h, h.mean()

    return jax.lax.scan(body, jnp.zeros_like(w), inputs)

  matrices = (_normal(0, size, size) / size, _normal(1, size, size) / size)
  return Case(function, (*matrices, _normal(2, rounds, size)), rounds)


def nested_wave(size: int, rounds: int) -> Case:
  """Leapfrog steps in blocks, and a filter over the states of two blocks."""
  blocks = max(rounds // 8, 2)

  def function(old, now):
    def block(u, v):
      u, v = _scan(lambda u, v: (v, 2 * v - u + 0.1 * _laplacian(v)), (u, v), 8)
      return v, u + 0.01 * _laplacian(v)

    return _scan(block, (old, now), blocks)

  args = (_normal(0, size, size), _normal(1, size, size))
  return Case(function, args, blocks * 8)


CASES: dict[str, Callable[[int, int], Case]] = {
  case.__name__: case
  for case in (
    wave,
    jacobi,
    jacobi_until,
    wave_until,
    conjugate_gradient,
    heavy_ball,
    adams_bashforth,
    skip_rnn,
    gru,
    nested_wave,
  )
}
