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
from jaxmem.versions.blocks.recipe import Group, Recipe
from jaxmem.versions.equation_cost import equation_seconds, is_heavy_eqn
from jaxmem.versions.knapsack import Chooser, Drop, DropProblem, Need, Work
from jaxmem.versions.values import num_bytes, operands, walk

# Blocks are alike, so that proofs that a choice is the best can take long.
_MAX_DETERMINISTIC_TIME = 0.5


def choose_kept(
  groups: Sequence[Group], keep_bytes: int, rates: Rates, chooser: Chooser
) -> frozenset[core.Var]:
  """Chooses what stays: at most so many bytes, as if all were live together."""
  if keep_bytes <= 0:
    return frozenset()
  candidates = [v for g in groups for v in g.needs if _is_heavy(g, v)]
  problem = _problem(groups, candidates, rates)
  save_bytes = sum(drop.size_bytes for drop in problem.drops) - keep_bytes
  dropped = chooser.drops(problem, save_bytes, _MAX_DETERMINISTIC_TIME)
  return frozenset(candidates) - {candidates[drop] for drop in dropped}


def again_seconds(recipes: Iterable[Recipe], rates: Rates) -> float:
  """Estimates the seconds of the heavy equations that run again."""
  eqns = [r.group.values.eqns[index] for r in recipes for index in r.eqns]
  return sum(equation_seconds(e, rates) for e in eqns if is_heavy_eqn(e))


def _problem(
  groups: Sequence[Group], candidates: Sequence[core.Var], rates: Rates
) -> DropProblem:
  """States the choice; what is not needed at all is dropped for nothing."""
  number = {v: index for index, v in enumerate(candidates)}
  works: list[Work] = []
  needs: list[Need] = []
  for group in groups:
    eqns = group.values.eqns
    needed = _reached(group, group.residuals)
    work_of: dict[int, int] = {}
    for var in (v for v in group.needs if v in number):
      index = group.needs[var]
      if index not in work_of:
        work_of[index] = len(works)
        works.append(Work(equation_seconds(eqns[index], rates)))
      if var in needed:
        needs.append(Need(True, number[var], (), (work_of[index],)))
    for index, work in work_of.items():
      for var in _reached(group, operands(eqns[index])):
        other = work_of[group.needs[var]]
        needs.append(Need(False, work, (number[var],), (other,)))
  drops = tuple(Drop(num_bytes(v)) for v in candidates)
  return DropProblem(drops, tuple(works), tuple(needs))


def _reached(group: Group, wanted: Iterable[core.Var]) -> list[core.Var]:
  """Returns the heavy values that others are made of, or that they are."""
  found = walk(
    [v for v in wanted if v in group.needs],
    lambda v: () if _is_heavy(group, v) else group.sources(v),
  )
  return [v for v in found if _is_heavy(group, v)]


def _is_heavy(group: Group, var: core.Var) -> bool:
  return is_heavy_eqn(group.values.eqns[group.needs[var]])
