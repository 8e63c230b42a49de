"""States which residuals of a step could be dropped, and what that takes."""

from collections.abc import Mapping

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.versions.equation_cost import equation_seconds
from jaxmem.versions.knapsack import Drop, DropProblem, Need, Work
from jaxmem.versions.scan.levels import Level
from jaxmem.versions.scan.pairs import Pair
from jaxmem.versions.values import operands


def make_problem(level: Level, rates: Rates, *, is_fused: bool) -> DropProblem:
  """States the choice among all residuals of a level and within.

  Bytes of pairs at different places count as if they were live together.
  `is_fused` says whether what is recomputed may be fused with what reads it.
  """
  drops: list[Drop] = []
  works: list[Work] = []
  needs: list[Need] = []
  for pair, within in level.walk():
    runs = within.num_shards * within.num_runs * pair.length
    seconds = {
      index: runs * equation_seconds(eqn, rates, is_fused=is_fused)
      for index, eqn in enumerate(pair.body.eqns)
      if index not in pair.forbidden
    }
    _add_needs(pair, within.num_shards, len(drops), seconds, works, needs)
    drops += _drops(pair, within, rates, is_fused=is_fused)
  return DropProblem(tuple(drops), tuple(works), tuple(needs))


def _drops(
  pair: Pair, level: Level, rates: Rates, *, is_fused: bool
) -> list[Drop]:
  """Returns what a pair can drop: its residuals, then its broadcasts."""

  def relief_s(num_bytes: float) -> float:
    seconds = rates.seconds({}, 0.0, num_bytes) - rates.launch_s
    return shards * level.num_runs * seconds

  shards = level.num_shards
  drops = [
    Drop(shards * r.size_bytes, relief_s(2.0 * r.size_bytes), r.name)
    for r in pair.residuals
  ]
  for hoisted in pair.hoisted:
    # It is written once and read in every iteration of both loops. A
    # broadcast within an iteration takes nothing if it is fused with what
    # reads it, and otherwise about as much.
    num_bytes = (1.0 + 2.0 * pair.length) * hoisted.size_bytes
    seconds = relief_s(num_bytes) if is_fused else 0.0
    drops.append(Drop(shards * hoisted.size_bytes, seconds, hoisted.name))
  return drops


def _add_needs(
  pair: Pair,
  num_shards: int,
  first: int,
  seconds: Mapping[int, float],
  works: list[Work],
  needs: list[Need],
) -> None:
  """Adds what the residuals of a pair need, and the works that serve it.

  The first residual is the drop `first`; `seconds` says what equations of the
  forward body take in one step.
  """
  stays: dict[core.Var, tuple[int, ...]] = {}
  for drop, residual in enumerate(pair.residuals, first):
    for var in residual.readable:
      stays[var] = (*stays.get(var, ()), drop)
  # By an input or equation of the body, the work for it.
  work_of: dict[core.Var | int, int] = {}
  pending: list[int] = []

  def need(is_drop: bool, trigger: int, var: core.Var) -> None:
    """Adds what a drop or a work needs to have one of its values."""
    if var in pair.kept:
      return
    index = pair.body.definers.get(var)
    key = var if index is None else index
    # A stack of its own would only replace the one of a carry that is there.
    is_stacked = var in stays and var in pair.carries
    if index in pair.forbidden or is_stacked:
      needs.append(Need(is_drop, trigger, stays.get(var, ()), None))
      return
    if index is None and not pair.input_bytes.get(var):
      return  # A constant of the body, or an operand that is there anyway.
    if key not in work_of:
      work_of[key] = len(works)
      if index is None:
        works.append(Work(0.0, num_shards * pair.input_bytes[var]))
      else:
        works.append(Work(seconds[index]))
        pending.append(index)
    needs.append(Need(is_drop, trigger, stays.get(var, ()), work_of[key]))

  for drop, residual in enumerate(pair.residuals, first):
    for var in residual.needed:
      need(True, drop, var)
  while pending:
    index = pending.pop()
    for var in operands(pair.body.eqns[index]):
      need(False, work_of[index], var)
