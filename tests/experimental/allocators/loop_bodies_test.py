"""Loops as sub-graphs."""

import jax
import jax.numpy as jnp

from jaxmem.experimental import allocators, jaxpr_order
from jaxmem.experimental.allocators.loop_bodies import with_planned_loops


def _program(function, *shapes):
  return jaxpr_order.from_function(function, *(jnp.zeros(s) for s in shapes))


def test_a_loop_takes_what_its_body_is_given():
  def body(x, _):
    y = jnp.concatenate([x, x])
    z = jnp.concatenate([y, y])
    return jnp.sin(z[: x.shape[0]]), None

  program = _program(
    lambda x: jax.lax.scan(body, x, length=3)[0].sum(), (1024,)
  )
  (loop,) = (
    n for n, callees in enumerate(program.callees) if len(callees) == 1
  )
  exact = allocators.Static(method="jaxmem")
  before = program.graph.nodes[loop].extra_bytes
  assert with_planned_loops(program, exact).nodes[loop].extra_bytes == before
  # Without any sharing, the body needs all its values at once: x, y, z, the
  # slice and the new x, instead of y and z.
  none = allocators.Mxnet(in_place=False, sharing=False)
  extra_bytes = with_planned_loops(program, none).nodes[loop].extra_bytes
  assert extra_bytes - before == 4096 * ((1 + 2 + 4 + 1 + 1) - (2 + 4))


def test_loops_within_loops_add_up():
  def inner(x, _):
    return jnp.sin(jnp.concatenate([x, x])[1:1025]), None

  def outer(x, _):
    return jax.lax.scan(inner, x, length=2)[0], None

  flat = _program(lambda x: jax.lax.scan(inner, x, length=2)[0], (1024,))
  nested = _program(lambda x: jax.lax.scan(outer, x, length=2)[0], (1024,))
  none = allocators.Mxnet(in_place=False, sharing=False)

  def excess_bytes(program):
    graph = with_planned_loops(program, none)
    return sum(n.extra_bytes for n in graph.nodes) - sum(
      n.extra_bytes for n in program.graph.nodes
    )

  assert excess_bytes(flat) > 0
  assert excess_bytes(nested) >= excess_bytes(flat)
