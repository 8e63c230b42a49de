"""Chooses what recomputed blocks keep: what saves most time for its bytes.

Only results of products, convolutions, loops and the like are worth keeping.
XLA fuses everything else with what reads it; a value kept from the middle of
such a fusion would cost more than it saves. What remains is the choice that
loops have among the arrays they stack (`versions.knapsack`): each such result
that the backward pass needs is kept, or made again, for which others are
needed.
"""

from collections.abc import Iterable, Sequence

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.jaxpr import CUSTOM_DERIVATIVES
from jaxmem.versions.blocks.recipe import Group, Recipe
from jaxmem.versions.equation_cost import equation_seconds, product_flops
from jaxmem.versions.knapsack import Chooser, DropProblem, Need, Work
from jaxmem.versions.values import Values, num_bytes, operands

# Blocks are alike, so that proofs that a choice is the best can take long.
_MAX_DETERMINISTIC_TIME = 0.5
_HEAVY = frozenset(
  """
  cholesky cond cumlogsumexp cummax cummin cumprod cumsum eigh fft lu qr
  random_bits scan sort threefry2x32 top_k triangular_solve
  """.split()
)


def choose_kept(
  values: Values,
  groups: Sequence[Group],
  keep_bytes: int,
  rates: Rates,
  chooser: Chooser,
) -> frozenset[core.Var]:
  """Chooses the values that stay from the forward pass.

  Args:
    values: Of the jaxpr.
    groups: What is recomputed.
    keep_bytes: Most bytes to keep, as if all were live together.
    rates: Of the device that will run the step.
    chooser: Chooses, or knows what was chosen.
  """
  if keep_bytes <= 0:
    return frozenset()
  candidates = [v for g in groups for v in g.needs if _is_heavy(values, v)]
  problem = _problem(values, groups, candidates, rates)
  save_bytes = sum(problem.saved_bytes) - keep_bytes
  dropped = {*chooser.drops(problem, save_bytes, _MAX_DETERMINISTIC_TIME)}
  return frozenset(
    v for index, v in enumerate(candidates) if index not in dropped
  )


def again_seconds(
  values: Values, recipes: Iterable[Recipe], rates: Rates
) -> float:
  """Estimates the seconds of the heavy equations that run again.

  Args:
    values: Of the jaxpr.
    recipes: What runs again.
    rates: Of the device that will run the step.
  """
  eqns = [values.jaxpr.eqns[e] for recipe in recipes for e in recipe.eqns]
  return sum(equation_seconds(e, rates) for e in eqns if is_heavy_eqn(e))


def _problem(
  values: Values,
  groups: Sequence[Group],
  candidates: Sequence[core.Var],
  rates: Rates,
) -> DropProblem:
  """States the choice; what is not needed at all is dropped for nothing."""
  number = {v: index for index, v in enumerate(candidates)}
  works: list[Work] = []
  needs: list[Need] = []
  for group in groups:
    needed = _reached(values, group, group.residuals)
    work_of: dict[int, int] = {}
    for var in (v for v in group.needs if v in number):
      if group.needs[var] not in work_of:
        work_of[group.needs[var]] = len(works)
        eqn = values.jaxpr.eqns[group.needs[var]]
        works.append(Work(equation_seconds(eqn, rates), 0))
      if var in needed:
        needs.append(Need(True, number[var], (), work_of[group.needs[var]]))
    for index, work in work_of.items():
      for var in _reached(values, group, operands(values.jaxpr.eqns[index])):
        other = work_of[group.needs[var]]
        needs.append(Need(False, work, (number[var],), other))
  return DropProblem(
    saved_bytes=tuple(num_bytes(v) for v in candidates),
    works=tuple(works),
    needs=tuple(needs),
  )


def _reached(
  values: Values, group: Group, atoms: Iterable[core.Var]
) -> list[core.Var]:
  """Returns the heavy values that others are made of, or that they are."""
  found = []
  pending = [v for v in atoms if v in group.needs]
  seen = {*pending}
  while pending:
    var = pending.pop()
    if _is_heavy(values, var):
      found.append(var)
      continue
    for operand in operands(values.jaxpr.eqns[group.needs[var]]):
      if operand in group.needs and operand not in seen:
        seen.add(operand)
        pending.append(operand)
  return found


def _is_heavy(values: Values, var: core.Var) -> bool:
  return is_heavy_eqn(values.jaxpr.eqns[values.definers[var]])


def is_heavy_eqn(eqn: core.JaxprEqn) -> bool:
  """Whether an equation is a kernel of its own, whose results may be kept."""
  if eqn.primitive.name in CUSTOM_DERIVATIVES:
    bodies = core.jaxprs_in_params(eqn.params)
    return any(is_heavy_eqn(inner) for body in bodies for inner in body.eqns)
  return eqn.primitive.name in _HEAVY or product_flops(eqn) > 0
