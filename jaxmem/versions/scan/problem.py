"""States which residuals of a step could be dropped, and what that takes."""

from collections.abc import Mapping

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.versions.equation_cost import (
  equation_seconds,
  is_heavy_eqn,
  is_lone_product,
  is_reduction,
)
from jaxmem.versions.knapsack import Drop, DropProblem, Need, Work
from jaxmem.versions.scan.levels import Level
from jaxmem.versions.scan.pairs import Pair
from jaxmem.versions.values import num_bytes, operands, results


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
    # XLA may fuse a product with an addition, or lay it out otherwise, where
    # nothing else reads it: a stack of it could change bits.
    stacks = _further_stacks(pair, within, rates) if is_fused else {}
    _add_needs(
      pair, within.num_shards, len(drops), seconds, stacks, works, needs
    )
    drops += _drops(pair, within, rates, is_fused=is_fused)
  return DropProblem(tuple(drops), tuple(works), tuple(needs))


def _drops(
  pair: Pair, level: Level, rates: Rates, *, is_fused: bool
) -> list[Drop]:
  """Returns what a pair can drop: its residuals, then its broadcasts."""
  shards = level.num_shards
  launches = _launches(pair) if is_fused else [0] * len(pair.residuals)
  launch_s = _launches_s(pair, level, rates)
  lone = filter(is_lone_product, pair.body.eqns)
  products = {var for eqn in lone for var in results(eqn)}
  drops = [
    Drop(
      shards * r.size_bytes,
      number * launch_s + _moving_s(2.0 * r.size_bytes, level, rates),
      r.name,
      is_product=any(map(products.__contains__, r.needed)),
    )
    for r, number in zip(pair.residuals, launches, strict=True)
  ]
  for hoisted in pair.hoisted:
    # It is written once and read in every iteration of both loops. A
    # broadcast within an iteration takes nothing if it is fused with what
    # reads it, and otherwise about as much.
    num_bytes = (1.0 + 2.0 * pair.length) * hoisted.size_bytes
    seconds = _moving_s(num_bytes, level, rates) if is_fused else 0.0
    drops.append(Drop(shards * hoisted.size_bytes, seconds, hoisted.name))
  return drops


def _moving_s(num_bytes: float, level: Level, rates: Rates) -> float:
  """Returns what it takes to read or write so much whenever a level runs."""
  seconds = rates.seconds({}, 0.0, num_bytes) - rates.launch_s
  return level.num_shards * level.num_runs * seconds


def _launches(pair: Pair) -> list[int]:
  """Returns how many kernels each residual's stack costs the forward loop.

  One copies a slice into the stack. A norm or softmax is one kernel, if nothing
  else reads what is between its reduction and its result; a stack does.
  """
  reduced: set[core.Var] = set()
  for eqn in pair.body.eqns:
    is_between = not is_heavy_eqn(eqn) and not reduced.isdisjoint(operands(eqn))
    if is_reduction(eqn) or is_between:
      reduced.update(results(eqn))
  return [1 + any(v in reduced for v in r.needed) for r in pair.residuals]


def _launches_s(pair: Pair, level: Level, rates: Rates) -> float:
  """Returns what it takes to launch a kernel in each iteration of a pair."""
  return level.num_shards * level.num_runs * pair.length * rates.launch_s


def _further_stacks(
  pair: Pair, level: Level, rates: Rates
) -> dict[core.Var, Work]:
  """Returns what the forward loop could stack in place of what it drops.

  Autodiff stacks what derivatives are made of, and not what both a value and
  its derivative are made of. Only results of products and other heavy
  equations are worth a stack; the rest is as well made again. Their kernels
  write to memory of their own, from which slices are copied into the stack.
  """
  found: dict[core.Var, Work] = {}
  launch_s = _launches_s(pair, level, rates)
  for eqn in filter(is_heavy_eqn, pair.body.eqns):
    for var in results(eqn):
      size_bytes = pair.length * num_bytes(var)
      if size_bytes:
        found[var] = Work(
          launch_s + _moving_s(3.0 * size_bytes, level, rates),
          level.num_shards * size_bytes,
          pair.stack_name(var),
        )
  return found


def _add_needs(
  pair: Pair,
  num_shards: int,
  first: int,
  seconds: Mapping[int, float],
  further_stacks: Mapping[core.Var, Work],
  works: list[Work],
  needs: list[Need],
) -> None:
  """Adds what the residuals of a pair need, and the works that serve it.

  The first residual is the drop `first`; `seconds` says what equations of the
  forward body take in one step, `further_stacks` what could be stacked besides.
  """
  stays: dict[core.Var, tuple[int, ...]] = {}
  for drop, residual in enumerate(pair.residuals, first):
    for var in residual.readable:
      stays[var] = (*stays.get(var, ()), drop)
  # By an input or equation of the body, or a further stack, the work for it.
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
      needs.append(Need(is_drop, trigger, stays.get(var, ()), ()))
      return
    if index is None and not pair.input_bytes.get(var):
      return  # A constant of the body, or an operand that is there anyway.
    if key not in work_of:
      work_of[key] = len(works)
      if index is None:
        works.append(Work(0.0, num_shards * pair.input_bytes[var]))
      else:
        is_product = is_lone_product(pair.body.eqns[index])
        works.append(Work(seconds[index], is_product=is_product))
        pending.append(index)
    served = [work_of[key]]
    if var in further_stacks and var not in stays:
      if var not in work_of:
        work_of[var] = len(works)
        works.append(further_stacks[var])
      served.append(work_of[var])
    needs.append(Need(is_drop, trigger, stays.get(var, ()), tuple(served)))

  for drop, residual in enumerate(pair.residuals, first):
    for var in residual.needed:
      need(True, drop, var)
  while pending:
    index = pending.pop()
    for var in operands(pair.body.eqns[index]):
      need(False, work_of[index], var)
