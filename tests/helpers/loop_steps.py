"""Loops that copy what they carry, and the bits that they compute."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmem.experimental import loops

N = 64
SIZE = 4 * N * N
OPTIONS = loops.RewriteOptions(min_bytes=SIZE)


def _normal(seed, *shape):
  return jnp.asarray(
    np.random.default_rng(seed).standard_normal(shape), jnp.float32
  )


ARGS = (_normal(0, N, N), _normal(1, N, N))


def laplacian(u):
  rows = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0)
  return rows + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u


def scan(body, length=12, num_extra=0):
  def function(a, b):
    carry = (a, b, a + b, a - b)[: 2 + num_extra]
    return jax.lax.scan(lambda c, _: (body(*c), None), carry, length=length)[0]

  return function


def wave(u, v):
  return v, 2 * v - u + 0.1 * laplacian(v)


def wave_until(a, b):
  def cond(carry):
    return (carry[2] < 9) & (jnp.sum(jnp.abs(carry[0])) < 1e30)

  def body(carry):
    return *wave(*carry[:2]), carry[2] + 1

  return jax.lax.while_loop(cond, body, (a, b, 0))


def bits(function, *args):
  results = jax.tree.leaves(jax.jit(function)(*args))
  return [np.asarray(r).tobytes() for r in results]
