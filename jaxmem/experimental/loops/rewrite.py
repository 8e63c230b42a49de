"""Loops whose carries stay where they are: the jaxpr, written anew.

Three means, all of which keep every operation as it is:

*   Rounds: a body that runs several of them before it passes its carries on,
    until these are back in their own places. A barrier keeps the rounds apart;
    without one, a compiler would merge them and copy again.
*   Order: within a round, a new value that overwrites an old one waits, by a
    barrier, for the others that are computed from it.
*   Of a `while` loop that counts, the rounds are known beforehand: a first loop
    takes them by several, a second one the rest. Other `while` loops check
    their condition between the rounds, and skip those that are too many.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

from jaxmem.experimental.loops import while_loops
from jaxmem.experimental.loops.carries import (
  Carries,
  Prediction,
  choose_rounds,
  predict,
  scan_carries,
  variables,
  while_carries,
)
from jaxmem.experimental.loops.ordering import in_order, real_edges
from jaxmem.jaxpr import flatten, internals


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
  """How far to go.

  Attributes:
    max_rounds: The most rounds in one body.
    min_bytes: Fewer bytes copied by a body are left alone.
    conditional_rounds: Whether `while` loops that do not count may get several
      rounds, with a branch between them.
  """

  max_rounds: int = 8
  min_bytes: int = 4096
  conditional_rounds: bool = True

  def __post_init__(self):
    if self.max_rounds < 1:
      raise ValueError(f"max_rounds must be positive, got {self.max_rounds}.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopChange:
  """What was decided for a loop.

  Attributes:
    name: The loop, for example "scan.3", within others "scan.0/while.2".
    source: Where in the user's program it is.
    length: How many rounds it has; None if that is not known.
    rounds: Rounds in its new body.
    num_ordered: Carries whose new values wait for others.
    before_bytes: What one round is predicted to copy.
    after_bytes: The same in the new body, on average.
  """

  name: str
  source: str
  length: int | None
  rounds: int
  num_ordered: int
  before_bytes: int
  after_bytes: float

  @property
  def is_changed(self) -> bool:
    """Whether the loop is written anew."""
    return self.rounds > 1 or self.num_ordered > 0


def without_copies(
  fun: Callable[..., Any], options: RewriteOptions | None = None
) -> Callable[..., Any]:
  """Returns an equal function whose loops do not copy what they carry.

  As far as the jaxpr can tell; `loops.remove_copies` also compiles both
  and compares. Loops within loops are rewritten first. Loops with effects, and
  scans that were given an `unroll`, stay.

  Args:
    fun: A function; jit what is returned, with `jax.jit` or `jaxmem.jit`.
      Custom derivatives are gone: differentiate first.
    options: How far to go.
  """

  @functools.wraps(fun)
  def rewritten(*args, **kwargs):
    trace = jax.make_jaxpr(fun, return_shape=True)
    jaxpr, shapes = trace(*args, **kwargs)
    changed, _ = rewrite(jaxpr, options)
    results = core.jaxpr_as_fun(changed)(*jax.tree.leaves((args, kwargs)))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)

  return rewritten


def rewrite(
  jaxpr: core.Jaxpr, options: RewriteOptions | None = None
) -> tuple[core.Jaxpr, tuple[LoopChange, ...]]:
  """Writes the loops of a jaxpr anew.

  Returns:
    A flat jaxpr with the same inputs and outputs; what was decided for each of
    its loops, inner ones first.
  """
  changes: list[LoopChange] = []
  rewriter = _Rewriter(options or RewriteOptions(), changes)
  return rewriter.jaxpr(jaxpr, ""), tuple(changes)


class _Rewriter:
  def __init__(self, options: RewriteOptions, changes: list[LoopChange]):
    self._options = options
    self._changes = changes

  def jaxpr(self, jaxpr: core.Jaxpr, path: str) -> core.Jaxpr:
    flat = flatten(jaxpr)
    eqns = [
      self._equation(eqn, f"{path}{eqn.primitive.name}.{index}")
      for index, eqn in enumerate(flat.eqns)
    ]
    return flat.replace(eqns=eqns)

  def _equation(self, eqn: core.JaxprEqn, name: str) -> core.JaxprEqn:
    if eqn.effects:
      return eqn
    if eqn.primitive.name == "cond":
      branches = tuple(
        self.jaxpr(branch, f"{name}[{index}]/")
        for index, branch in enumerate(eqn.params["branches"])
      )
      return eqn.replace(params={**eqn.params, "branches": branches})
    if eqn.primitive.name == "scan":
      return self._scan(eqn, name)
    if eqn.primitive.name == "while":
      return self._while(eqn, name)
    return eqn

  def _scan(self, eqn: core.JaxprEqn, name: str) -> core.JaxprEqn:
    body = self.jaxpr(eqn.params["jaxpr"], f"{name}/")
    eqn = eqn.replace(params={**eqn.params, "jaxpr": body})
    if eqn.params["unroll"] != 1:
      return eqn
    carries, length = scan_carries(eqn), eqn.params["length"]
    rounds, prediction = self._choose(carries, length)
    body = self._body(eqn, name, length, carries, rounds, prediction)
    if rounds > 1:
      body = _with_barrier(body, eqn)
    return eqn.replace(params={**eqn.params, "jaxpr": body, "unroll": rounds})

  def _while(self, eqn: core.JaxprEqn, name: str) -> core.JaxprEqn:
    body = self.jaxpr(eqn.params["body_jaxpr"], f"{name}/")
    eqn = eqn.replace(params={**eqn.params, "body_jaxpr": body})
    carries = while_carries(eqn)
    counter = while_loops.find_counter(eqn, carries)
    rounds, prediction = self._choose(carries, None)
    if counter is None and not self._options.conditional_rounds:
      rounds, prediction = 1, predict(carries, 1)
    body = self._body(eqn, name, None, carries, rounds, prediction)
    eqn = eqn.replace(params={**eqn.params, "body_jaxpr": body})
    if rounds == 1:
      return eqn
    return while_loops.in_rounds(eqn, carries, rounds, counter)

  def _choose(
    self, carries: Carries, length: int | None
  ) -> tuple[int, Prediction]:
    return choose_rounds(
      carries,
      length,
      max_rounds=self._options.max_rounds,
      min_bytes=self._options.min_bytes,
    )

  def _body(
    self,
    eqn: core.JaxprEqn,
    name: str,
    length: int | None,
    carries: Carries,
    rounds: int,
    prediction: Prediction,
  ) -> core.Jaxpr:
    """Returns the body of one round, and notes what was decided."""
    edges = real_edges(carries, prediction) if rounds == 1 else {}
    big = {
      second: before
      for second, before in edges.items()
      if carries.sizes[second] >= self._options.min_bytes
    }
    # Without the order, what waits would be copied.
    waiting_bytes = sum(carries.sizes[second] for second in big)
    before = predict(carries, 1).copied_bytes(carries)
    after = prediction.copied_bytes(carries)
    self._changes.append(
      LoopChange(
        name=name,
        source=internals.source(eqn),
        length=length,
        rounds=rounds,
        num_ordered=len(big),
        before_bytes=before + waiting_bytes,
        after_bytes=after / rounds,
      )
    )
    return in_order(carries, big, eqn)


def _with_barrier(jaxpr: core.Jaxpr, like: core.JaxprEqn) -> core.Jaxpr:
  """Returns a body that is done with its outputs before the next one begins."""
  computed = [*dict.fromkeys(variables(jaxpr.outvars))]
  barrier = internals.barrier(like, computed)
  behind = dict(zip(computed, barrier.outvars, strict=True))
  outvars = [
    behind[atom] if isinstance(atom, core.Var) else atom
    for atom in jaxpr.outvars
  ]
  return jaxpr.replace(eqns=[*jaxpr.eqns, barrier], outvars=outvars)
