"""`while` loops whose body runs several rounds, and no round too many."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxmem.experimental.loops.carries import Carries, Move
from jaxmem.jaxpr import Atom, flatten

# The new loops run in scopes of these names, with the rounds of a body: one
# loop takes the rounds by several, the other one the rest.
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
  eqn: core.JaxprEqn,
  carries: Carries,
  num_rounds: int,
  counter: Counter | None,
) -> core.JaxprEqn:
  """Returns an equal equation, a call, whose loop runs rounds by several.

  Barriers keep the rounds apart.

  Args:
    eqn: A `while` loop.
    carries: Its body.
    num_rounds: Rounds in a body.
    counter: What the loop counts; if None, its condition is checked before
      each round.
  """
  loop = _Loop(eqn, carries)
  scope = f"{ROUNDS}{num_rounds}"

  def checked(*operands):
    consts, carry = loop.split(operands)
    with jax.named_scope(scope):
      carry, num_skipped = loop.run_checked(consts, carry, num_rounds)
    return loop.undo(carry, num_skipped, num_rounds)

  def counted(*operands):
    consts, carry = loop.split(operands)
    assert counter is not None
    bound = counter.bound
    limit = operands[bound] if isinstance(bound, int) else bound.val
    count = carry[counter.carry]
    # The difference may wrap around where there are no rounds to run.
    left = jnp.where(count < limit, (limit - count - 1) // counter.step + 1, 0)
    times = left.astype(count.dtype) // num_rounds
    with jax.named_scope(scope):
      carry = loop.run_times(consts, carry, num_rounds, times)
    with jax.named_scope(f"{REST}{num_rounds}"):
      return loop.run(consts, carry)

  fun = checked if counter is None else counted
  jaxpr = jax.make_jaxpr(jax.jit(fun))(*(_shape(a.aval) for a in eqn.invars))
  (call,) = jaxpr.eqns
  return call.replace(
    invars=[*eqn.invars],
    outvars=[*eqn.outvars],
    source_info=eqn.source_info,
  )


class _Loop:
  """The parts of a `while` equation, as functions."""

  def __init__(self, eqn: core.JaxprEqn, carries: Carries):
    self._num_cond = eqn.params["cond_nconsts"]
    self._num_body = eqn.params["body_nconsts"]
    self._cond = core.jaxpr_as_fun(eqn.params["cond_jaxpr"])
    self._body = core.jaxpr_as_fun(eqn.params["body_jaxpr"])
    self._sources = _sources(carries)
    self._computed = [
      carry for carry, move in enumerate(carries.moves) if move is None
    ]

  def split(self, operands: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Returns the constants of condition and body, and the carries."""
    num_consts = self._num_cond + self._num_body
    consts = operands[: self._num_cond], operands[self._num_cond : num_consts]
    return consts, [*operands[num_consts:]]

  def run(self, consts: Any, carry: list[Any]) -> list[Any]:
    """Runs the loop as it was."""
    return jax.lax.while_loop(
      lambda carry: self._goes_on(consts, carry),
      lambda carry: self._round(consts, carry),
      carry,
    )

  def run_times(
    self, consts: Any, carry: list[Any], num_rounds: int, times: Any
  ) -> list[Any]:
    """Runs bodies of some rounds so many times."""

    def body(state):
      carry, times = state
      for _ in range(num_rounds):
        carry = jax.lax.optimization_barrier(self._round(consts, carry))
      return carry, times - 1

    return jax.lax.while_loop(lambda s: s[1] > 0, body, (carry, times))[0]

  def run_checked(
    self, consts: Any, carry: list[Any], num_rounds: int
  ) -> tuple[list[Any], Any]:
    """Runs bodies of some rounds, of which the last may skip some.

    Returns:
      The carries; how many rounds were skipped, in which carries moved all the
      same: see `undo`.
    """

    def body(state):
      carry, num_skipped, _ = state
      carry = jax.lax.optimization_barrier(self._round(consts, carry))
      goes_on = self._goes_on(consts, carry)
      for _ in range(num_rounds - 1):
        carry = self._round_or_none(consts, carry, goes_on)
        carry = jax.lax.optimization_barrier(carry)
        num_skipped += ~goes_on
        goes_on &= self._goes_on(consts, carry)
      return carry, num_skipped, goes_on

    start = (carry, jnp.int32(0), self._goes_on(consts, carry))
    return jax.lax.while_loop(lambda state: state[2], body, start)[:2]

  def undo(
    self, carry: list[Any], num_skipped: Any, num_rounds: int
  ) -> list[Any]:
    """Moves the carries back to where they were before skipped rounds."""
    if self._sources is None or self._sources == [*range(len(carry))]:
      return carry
    order = [*range(len(carry))]
    orders = [order]
    for _ in range(num_rounds - 1):
      order = [order[source] for source in self._sources]
      orders.append(order)
    return jax.lax.switch(
      num_skipped,
      [
        lambda carry, order=order: [
          carry[order.index(c)] for c in range(len(order))
        ]
        for order in orders
      ],
      carry,
    )

  def _goes_on(self, consts: Any, carry: list[Any]) -> Any:
    return self._cond(*consts[0], *carry)[0]

  def _round(self, consts: Any, carry: list[Any]) -> list[Any]:
    return self._body(*consts[1], *carry)

  def _round_or_none(
    self, consts: Any, carry: list[Any], goes_on: Any
  ) -> list[Any]:
    """Runs a round if the loop goes on; else only moves the carries.

    So that carries which move need no branch. In a round that is skipped, the
    values that nobody takes over go where new ones would have been.
    """
    if self._sources is None:
      return jax.lax.cond(
        goes_on,
        lambda carry: self._round(consts, carry),
        lambda carry: carry,
        carry,
      )
    moved = [carry[source] for source in self._sources]

    def compute(carry):
      results = self._round(consts, carry)
      return [results[c] for c in self._computed]

    def skip(carry):
      del carry
      return [moved[c] for c in self._computed]

    computed = jax.lax.cond(goes_on, compute, skip, carry)
    for position, value in zip(self._computed, computed, strict=True):
      moved[position] = value
    return moved


def _sources(carries: Carries) -> list[int] | None:
  """Returns, per carry, the old value that it has after a skipped round.

  That which moves there, or one that moves nowhere.

  Returns:
    A permutation; None if a value moves to several places, or there is none of
    the right type.
  """
  sources = [None if m is None else m.carry for m in carries.moves]
  left = [c for c in range(carries.num_carries) if c not in sources]
  types = [_shape(var.aval) for var in carries.invars]
  for carry, source in enumerate(sources):
    if source is None:
      fitting = [c for c in left if types[c] == types[carry]]
      if not fitting:
        return None
      chosen = carry if carry in fitting else fitting[0]
      sources[carry] = chosen
      left.remove(chosen)
  return None if left else [c for c in sources if c is not None]


def _shape(aval: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
