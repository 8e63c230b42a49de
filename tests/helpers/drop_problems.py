"""What a set of drops of `versions.knapsack` saves and takes, by hand."""

from collections.abc import Collection

from jaxmem.versions.knapsack import DropProblem


def closure(problem: DropProblem, chosen: Collection[int]) -> set[int] | None:
  """Returns the work that a choice takes, or None if it is impossible."""
  number = len(problem.drops)
  drops = {index for index in chosen if index < number}
  works = {index - number for index in chosen if index >= number}
  while True:
    added = set(works)
    for need in problem.needs:
      active = need.trigger in (drops if need.is_drop else works)
      is_served = not drops.issuperset(need.stays)
      if active and not is_served and added.isdisjoint(need.works):
        unnamed = [w for w in need.works if not problem.works[w].name]
        if not unnamed:
          return None
        added.update(unnamed)
    if added == works:
      return works
    works = added


def saving(
  problem: DropProblem, chosen: Collection[int]
) -> tuple[int, float] | None:
  """Returns the bytes that a choice saves and its seconds, if it can be."""
  works = closure(problem, chosen)
  if works is None:
    return None
  drops = [index for index in chosen if index < len(problem.drops)]
  saved = sum(problem.drops[drop].size_bytes for drop in drops)
  saved -= sum(problem.works[work].size_bytes for work in works)
  seconds = sum(problem.works[work].seconds for work in works)
  return saved, seconds - sum(problem.drops[drop].relief_s for drop in drops)
