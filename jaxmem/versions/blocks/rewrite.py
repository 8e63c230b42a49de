"""Writes a step anew in which blocks recompute residuals in the backward pass.

The equations that make the residuals are repeated before the backward pass
first reads one, or the gradient that is read with it. What they read passes an
optimization barrier, or XLA would merge them with the originals; together with
that gradient, or it would run them early. So does `jax.checkpoint`.

Other equations of the backward pass that read the same, up to the next
barrier, read it behind the barrier, too: XLA makes one kernel of sums that read
one array. Products do not, unless asked to: XLA joins those that have an
operand in common, and spends kernels on putting the others together.
"""

import dataclasses
from collections.abc import Collection, Mapping

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, Inliner, flatten, internals
from jaxmem.versions.blocks.recipe import Recipe
from jaxmem.versions.equation_cost import is_heavy_eqn
from jaxmem.versions.rules import RECOMPUTE_SCOPE, run_again
from jaxmem.versions.values import Values, num_bytes, reading, variables


@dataclasses.dataclass(frozen=True)
class _Again:
  """Equations that run once more.

  Attributes:
    eqns: A barrier and the equations.
    made: What stands for values from then on.
    guarded: What stands for what the equations read, up to the next barrier.
  """

  eqns: list[core.JaxprEqn]
  made: dict[core.Var, core.Var]
  guarded: dict[core.Var, core.Var]


def rewrite(
  values: Values,
  recipes: Collection[Recipe],
  *,
  reads_again: bool = False,
  num_devices: int = 1,
) -> core.Jaxpr:
  """Returns an equal jaxpr in which the equations of recipes run again.

  Args:
    values: Of the jaxpr.
    recipes: What runs again.
    reads_again: Whether products of the backward pass, too, read what they
      share with the forward pass anew, so that XLA does not keep what it made
      of it.
    num_devices: If there are several, it may have gathered arguments: so they
      are read anew, too.
  """
  eqns: list[core.JaxprEqn] = []
  by_start: dict[int, list[Recipe]] = {}
  for recipe in recipes:
    by_start.setdefault(recipe.before, []).append(recipe)
  gathers_again = reads_again and num_devices > 1
  # What stands for values for products, and for all others.
  now: dict[core.Var, core.Var] = {}
  near: dict[core.Var, core.Var] = {}
  for position, eqn in enumerate(values.eqns):
    guarded: dict[core.Var, core.Var] = {}
    for recipe in by_start.get(position, ()):
      shared = _shared_arguments(recipe) if gathers_again else []
      again = _again(recipe, now, shared)
      eqns += again.eqns
      now |= again.made
      guarded |= again.guarded
    if position in by_start:
      near = now | guarded
    known = now if is_heavy_eqn(eqn) and not reads_again else near
    eqns.append(reading(eqn, known))
  return flatten(values.jaxpr.replace(eqns=eqns), keep=CUSTOM_DERIVATIVES)


def _again(
  recipe: Recipe,
  now: Mapping[core.Var, core.Var],
  shared: Collection[core.Var],
) -> _Again:
  """Lets equations run once more."""
  values = recipe.group.values
  stack = internals.empty_name_stack().extend(RECOMPUTE_SCOPE)
  like = internals.with_name_stack(values.eqns[recipe.before], stack)
  guarded = [v for v in recipe.operands if num_bytes(v)]
  trigger = [] if recipe.trigger is None else [recipe.trigger]
  sums = _waiting_sums(values, recipe.before)
  passed = [*dict.fromkeys((*guarded, *sums, *trigger, *shared))]
  barrier = internals.barrier(like, [now.get(v, v) for v in passed])
  fresh = dict(zip(passed, barrier.outvars, strict=True))
  # Others read the trigger as it was: XLA may go on fusing them with it.
  known = {v: now.get(v, v) for v in recipe.operands}
  known |= {v: fresh[v] for v in guarded}
  # What stays is read, also where an equation makes it once more.
  eqns = [
    eqn.replace(
      outvars=[core.Var(v.aval) if v in known else v for v in eqn.outvars]
    )
    for eqn in (values.eqns[index] for index in recipe.eqns)
  ]
  inliner = Inliner(CUSTOM_DERIVATIVES)
  part = values.jaxpr.replace(eqns=eqns, constvars=[], consts=[])
  made = variables(run_again(inliner, part, known, recipe.dropped))
  later = {v: fresh[v] for v in (*sums, *shared)}
  later |= zip(recipe.dropped, made, strict=True)
  return _Again(
    [barrier, *inliner.eqns],
    later,
    {v: fresh[v] for v in guarded if values.is_of_backward_pass(v) is False},
  )


def _shared_arguments(recipe: Recipe) -> list[core.Var]:
  """Returns arguments that a group reads, and its backward pass as well."""
  group, readers = recipe.group, recipe.group.values.readers
  return [
    var
    for var in group.values.jaxpr.invars
    if num_bytes(var)
    and any(group.start <= r < group.stop for r in readers.get(var, ()))
    and any(recipe.before <= r for r in readers.get(var, ()))
  ]


def _waiting_sums(values: Values, before: int) -> list[core.Var]:
  """Returns the sums of gradients that the backward pass reads from then on.

  Such is the gradient of what blocks add to. Where it passes no barrier XLA may
  fuse it into each of the sums that follow, which then all read what the first
  one did: so much memory stays live for long, and is read over and over. What a
  `shard_map` of the backward pass returns may be such a sum.
  """
  return [
    var
    for var, definer in values.definers.items()
    if definer < before
    and _may_be_sum(values, definer)
    and num_bytes(var)
    and any(
      before <= reader < len(values.eqns) and values.is_backward[reader]
      for reader in values.readers.get(var, ())
    )
  ]


def _may_be_sum(values: Values, index: int) -> bool:
  name = values.eqns[index].primitive.name
  is_mapped = name == "shard_map" and values.is_backward[index]
  return name == "add_any" or is_mapped
