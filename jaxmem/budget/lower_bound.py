"""A lower bound: bytes that no plan of a problem goes below."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from jaxmem.budget.problem import BudgetProblem


@dataclasses.dataclass(frozen=True, slots=True)
class ByteBound:
  """Bytes that no plan goes below, and what forces them.

  Attributes:
    num_bytes: The bound.
    step: Where.
    values: Those that have to be there then, largest first.
  """

  num_bytes: int
  step: int
  values: tuple[int, ...]


def unavoidable_bytes(
  problem: BudgetProblem, with_host: bool = False
) -> ByteBound:
  """Returns the most bytes that some step needs in every plan.

  These are its operands and outputs, its extra bytes, and values on their way
  from an earlier to a later step that neither can be made again nor, if there
  is a host, can wait there. What may run again may also run only later, since
  what nobody reads is dropped: of what is on its way the least counts, from the
  step up to where it must have run.

  Args:
    problem: The problem.
    with_host: Whether values may go to the host and come back.
  """
  sizes = problem.sizes
  passing = np.zeros(problem.num_steps + 1, np.int64)
  spans: dict[int, list[tuple[int, int]]] = {}
  for value, start, stop in _forced_spans(problem, with_host):
    spans.setdefault(value, []).append((start, stop))
    passing[start] += sizes[value]
    passing[stop] -= sizes[value]
  passing = np.cumsum(passing)
  best_bytes, best_step = 0, 0
  best_own: frozenset[int] = frozenset()
  for step, stop, own in _needs(problem):
    own_bytes = _own_bytes(problem, step, own)
    # What of it passes by as well comes off: it cannot be more.
    if own_bytes + int(passing[step:stop].min()) <= best_bytes:
      continue
    changes = np.zeros(stop - step + 1, np.int64)
    for value in own:
      for first, end in spans.get(value, ()):
        if first < stop and end > step:
          changes[max(0, first - step)] -= sizes[value]
          changes[min(end, stop) - step] += sizes[value]
    others = passing[step:stop] + changes[:-1].cumsum()
    num_bytes = own_bytes + int(others.min())
    if num_bytes > best_bytes:
      best_bytes, best_step = num_bytes, step + int(others.argmin())
      best_own = own
  on_way = {
    v for v, s in spans.items() if any(a <= best_step < b for a, b in s)
  }
  values = sorted(best_own | on_way, key=lambda v: (-sizes[v], v))
  return ByteBound(best_bytes, best_step, tuple(values))


def _forced_spans(
  problem: BudgetProblem, with_host: bool
) -> Iterator[tuple[int, int, int]]:
  """Yields (value, start, stop): it is there at steps [start, stop)."""
  for value, stored in enumerate(problem.values):
    if not stored.size_bytes or (with_host and stored.moves_as is not None):
      continue
    first = -1 if stored.producer is None else stored.producer
    unit = problem.unit_of[value]
    # A run as late as it may be closes a gap up to there.
    made_until = 0 if unit < 0 else problem.latest_run[unit]
    points = [first, *stored.uses, *[problem.num_steps] * stored.is_result]
    for earlier, later in itertools.pairwise(points):
      start = max(earlier + 1, made_until)
      if start < later:
        yield value, start, later


def _needs(
  problem: BudgetProblem,
) -> Iterator[tuple[int, int, frozenset[int]]]:
  """Yields what is needed at once, operands and outputs.

  Yields:
    (step, stop, values): all these are there, together with what is on its way
    at one of the steps [step, stop).
  """
  whole: list[set[int]] = [set() for _ in problem.steps]
  for value, stored in enumerate(problem.values):
    for step in (stored.producer, *stored.uses):
      if step is not None:
        whole[step].add(value)
  latest = _latest_first_run(problem)
  made_again = set()
  for unit, made in enumerate(problem.units):
    made_again.add(made.step)
    own = frozenset((*made.inputs, *made.outputs))
    yield made.step, max(made.step + 1, latest[unit]), own
  for step, values in enumerate(whole):
    if step not in made_again:
      yield step, step + 1, frozenset(values)


def _latest_first_run(problem: BudgetProblem) -> list[int]:
  """For each unit, the step before which, or at which, it must have run.

  Until its first reader has run, which may run later itself.
  """
  readers: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
  for unit, made in enumerate(problem.units):
    for value in made.inputs:
      readers[made.step, value].append(unit)
  latest = [0] * len(problem.units)
  for unit in reversed(range(len(problem.units))):
    made = problem.units[unit]
    ends = [
      latest[reader] if reader >= 0 else use
      for value in made.outputs
      for use in problem.values[value].uses
      for reader in readers.get((use, value), [-1])
    ]
    last = problem.latest_run[unit]
    latest[unit] = min([*ends, last]) if ends else made.step
  return latest


def _own_bytes(
  problem: BudgetProblem, step: int, values: frozenset[int]
) -> int:
  """Returns what a step needs for itself if it reads and writes values.

  In any plan an output shares with one operand at most.
  """
  shared: dict[int, int] = {}
  for operand, output in problem.steps[step].shares:
    if operand in values and output in values:
      size = min(problem.sizes[operand], problem.sizes[output])
      shared[output] = max(shared.get(output, 0), size)
  total = sum(problem.sizes[v] for v in values)
  return total + problem.steps[step].extra_bytes - sum(shared.values())
