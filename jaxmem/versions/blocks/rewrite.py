"""Writes a step anew in which blocks recompute residuals in the backward pass.

The equations that make the residuals are repeated just before the backward
pass first reads one. What they read passes an optimization barrier, or XLA
would merge them with the originals; together with a value of the backward pass,
or it would run them early. So does `jax.checkpoint`.
"""

from collections.abc import Iterable

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, flatten, internals
from jaxmem.versions.blocks.recipe import Recipe
from jaxmem.versions.rules import RECOMPUTE_SCOPE
from jaxmem.versions.values import Values, num_bytes, operands


def rewrite(values: Values, recipes: Iterable[Recipe]) -> core.Jaxpr:
  """Returns an equal jaxpr.

  Args:
    values: Of a flat jaxpr.
    recipes: What runs again.
  """
  jaxpr = values.jaxpr
  inserted: dict[int, list[Recipe]] = {}
  for recipe in recipes:
    inserted.setdefault(recipe.before, []).append(recipe)
  writer = _Writer(values)
  for position, eqn in enumerate(jaxpr.eqns):
    for recipe in inserted.get(position, ()):
      writer.recompute(recipe)
    writer.append(eqn)
  changed = jaxpr.replace(eqns=writer.eqns)
  return flatten(changed, keep=CUSTOM_DERIVATIVES)


class _Writer:
  """Collects equations, with values that stand for others from some point."""

  def __init__(self, values: Values):
    self._values = values
    self._now: dict[core.Var, core.Var] = {}
    self.eqns: list[core.JaxprEqn] = []

  def append(self, eqn: core.JaxprEqn) -> None:
    """Appends an equation of the jaxpr."""
    invars = [
      self._current(v) if isinstance(v, core.Var) else v for v in eqn.invars
    ]
    self.eqns.append(eqn.replace(invars=invars))

  def recompute(self, recipe: Recipe) -> None:
    """Appends equations once more; what they make stands for the first."""
    eqns = self._values.jaxpr.eqns
    stack = internals.empty_name_stack().extend(RECOMPUTE_SCOPE)
    trigger = self._trigger(recipe)
    guarded = [v for v in recipe.operands if _has_barrier(v)]
    like = internals.with_name_stack(eqns[recipe.before], stack)
    barrier = internals.barrier(
      like, [self._current(v) for v in (*guarded, *trigger)]
    )
    self.eqns.append(barrier)
    # Others read the trigger as it was: XLA may go on fusing them with it.
    known = dict(zip(guarded, barrier.outvars, strict=False))
    for index in recipe.eqns:
      eqn = eqns[index]
      outvars = [
        v if isinstance(v, core.DropVar) else core.Var(v.aval)
        for v in eqn.outvars
      ]
      invars = [
        known.get(v, self._current(v)) if isinstance(v, core.Var) else v
        for v in eqn.invars
      ]
      inner = stack + internals.name_stack(eqn)
      self.eqns.append(
        internals.with_name_stack(eqn, inner).replace(
          invars=invars, outvars=outvars
        )
      )
      for var, new in zip(eqn.outvars, outvars, strict=True):
        known.setdefault(var, new)
    self._now.update({v: known[v] for v in recipe.dropped})

  def _current(self, var: core.Var) -> core.Var:
    return self._now.get(var, var)

  def _trigger(self, recipe: Recipe) -> list[core.Var]:
    """Returns a value of the backward pass that is there by then, if any."""
    eqns = self._values.jaxpr.eqns
    definers = self._values.definers
    first = internals.is_transposed
    for position in range(recipe.before, -1, -1):
      if not first(eqns[position]):
        return []
      found = [
        v
        for v in operands(eqns[position])
        if v in definers and first(eqns[definers[v]]) and _has_barrier(v)
      ]
      if found:
        return [max(found, key=num_bytes)]
    return []


def _has_barrier(var: core.Var) -> bool:
  return num_bytes(var) > 0
