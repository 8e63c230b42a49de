"""What a set of drops of `versions.knapsack` saves and takes, by hand."""

from collections.abc import Collection

from jaxmem.versions.knapsack import DropProblem


def closure(problem: DropProblem, drops: Collection[int]) -> set[int] | None:
  """Returns the work that drops take, or None if they are impossible."""
  works: set[int] = set()
  while True:
    added = set(works)
    for need in problem.needs:
      active = need.trigger in (drops if need.is_drop else works)
      if active and all(stay in drops for stay in need.stays):
        if need.work is None:
          return None
        added.add(need.work)
    if added == works:
      return works
    works = added


def saving(
  problem: DropProblem, drops: Collection[int]
) -> tuple[int, float] | None:
  """Returns the bytes that drops save and their seconds, if they can be."""
  works = closure(problem, drops)
  if works is None:
    return None
  saved = sum(problem.drops[drop].size_bytes for drop in drops)
  saved -= sum(problem.works[work].size_bytes for work in works)
  seconds = sum(problem.works[work].seconds for work in works)
  return saved, seconds - sum(problem.drops[drop].relief_s for drop in drops)
