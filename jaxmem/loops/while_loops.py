"""`while` loops whose body runs several rounds, and no round too many."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxmem.jaxpr.flatten import Atom, flatten
from jaxmem.loops.carries import Carries, Move

# Scopes of the new loops, with the rounds of a body: the loop that takes them
# by several, and the one that takes the rest.
ROUNDS = "jaxmem_rounds_"
REST = "jaxmem_rest_"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
  """What a loop counts: it goes on as long as a carry is below a bound.

  Attributes:
    carry: The carry that counts.
    step: What each round adds, positive.
    bound: A literal, or the position among the operands of the loop.
  """

  carry: int
  step: int
  bound: core.Literal | int


def find_counter(eqn: core.JaxprEqn, carries: Carries) -> Counter | None:
  """Returns what a `while` loop counts; None if it does not, or not only."""
  cond = flatten(eqn.params["cond_jaxpr"])
  num_consts = eqn.params["cond_nconsts"]
  if len(cond.eqns) != 1 or cond.eqns[0].primitive.name != "lt":
    return None
  if cond.outvars[0] is not cond.eqns[0].outvars[0]:
    return None
  position = {var: index for index, var in enumerate(cond.invars)}
  index, bound = cond.eqns[0].invars
  if not isinstance(index, core.Var) or index not in position:
    return None
  carry = position[index] - num_consts
  dtype = getattr(index.aval, "dtype", None)
  if carry < 0 or dtype is None or not jnp.issubdtype(dtype, jnp.integer):
    return None
  step = _step(carries, carry)
  limit = _bound(bound, position, eqn, carries)
  if step is None or limit is None:
    return None
  return Counter(carry=carry, step=step, bound=limit)


def _step(carries: Carries, carry: int) -> int | None:
  """Returns what a round adds to a carry, if that is a positive number."""
  old, new = carries.invars[carry], carries.jaxpr.outvars[carry]
  for eqn in carries.jaxpr.eqns:
    if new in eqn.outvars and eqn.primitive.name == "add":
      added = [a for a in eqn.invars if a is not old]
      if len(added) == 1 and isinstance(added[0], core.Literal):
        step = int(added[0].val)
        return step if step > 0 else None
  return None


def _bound(
  bound: Atom,
  position: dict[core.Var, int],
  eqn: core.JaxprEqn,
  carries: Carries,
) -> core.Literal | int | None:
  if isinstance(bound, core.Literal):
    return bound
  if bound not in position:
    return None
  index = position[bound]
  num_consts = eqn.params["cond_nconsts"]
  if index < num_consts:
    return index
  carry = index - num_consts
  if carries.moves[carry] != Move(carry):
    return None
  return index + eqn.params["body_nconsts"]


def in_rounds(
  eqn: core.JaxprEqn, num_rounds: int, counter: Counter | None
) -> core.JaxprEqn:
  """Returns an equal equation, a call, whose loop runs rounds by several.

  Args:
    eqn: A `while` loop. Its body ends with a barrier for all carries, which
      keeps the rounds apart.
    num_rounds: Rounds in a body.
    counter: What the loop counts; if None, its condition is checked before
      each round, by a branch within the body.
  """
  loop = _Loop(eqn)

  def conditional(*operands):
    consts, carry = loop.split(operands)
    with jax.named_scope(f"{ROUNDS}{num_rounds}"):
      return loop.run(consts, carry, num_rounds)

  def counted(*operands):
    consts, carry = loop.split(operands)
    assert counter is not None
    bound = counter.bound
    limit = operands[bound] if isinstance(bound, int) else bound.val
    count = carry[counter.carry]
    # The difference may wrap around where there are no rounds to run.
    left = jnp.where(count < limit, (limit - count - 1) // counter.step + 1, 0)

    def body(state):
      carry, times = state
      for _ in range(num_rounds):
        carry = loop.body(consts, carry)
      return carry, times - 1

    times = left.astype(count.dtype) // num_rounds
    with jax.named_scope(f"{ROUNDS}{num_rounds}"):
      carry, _ = jax.lax.while_loop(lambda s: s[1] > 0, body, (carry, times))
    with jax.named_scope(f"{REST}{num_rounds}"):
      return loop.run(consts, carry, 1)

  fun = conditional if counter is None else counted
  jaxpr = jax.make_jaxpr(jax.jit(fun))(*(_shape(a.aval) for a in eqn.invars))
  (call,) = jaxpr.eqns
  return call.replace(
    invars=[*eqn.invars],
    outvars=[*eqn.outvars],
    source_info=eqn.source_info,
  )


class _Loop:
  """The parts of a `while` equation, as functions."""

  def __init__(self, eqn: core.JaxprEqn):
    self._num_cond = eqn.params["cond_nconsts"]
    self._num_body = eqn.params["body_nconsts"]
    self._cond = core.jaxpr_as_fun(eqn.params["cond_jaxpr"])
    self._body = core.jaxpr_as_fun(eqn.params["body_jaxpr"])

  def split(self, operands: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    num_consts = self._num_cond + self._num_body
    consts = operands[: self._num_cond], operands[self._num_cond : num_consts]
    return consts, [*operands[num_consts:]]

  def cond(self, consts: Any, carry: list[Any]) -> Any:
    return self._cond(*consts[0], *carry)[0]

  def body(self, consts: Any, carry: list[Any]) -> list[Any]:
    return self._body(*consts[1], *carry)

  def run(self, consts: Any, carry: list[Any], num_rounds: int) -> list[Any]:
    def body(carry):
      carry = self.body(consts, carry)
      for _ in range(num_rounds - 1):
        carry = jax.lax.cond(
          self.cond(consts, carry),
          lambda carry: self.body(consts, carry),
          lambda carry: carry,
          carry,
        )
      return carry

    return jax.lax.while_loop(lambda c: self.cond(consts, c), body, carry)


def _shape(aval: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
