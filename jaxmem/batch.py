"""The largest batch that fits a device, without running anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxmem import targets, units
from jaxmem.entry import MemoryLimit
from jaxmem.errors import InfeasibleError
from jaxmem.options import Options
from jaxmem.planning import Request
from jaxmem.report import LimitShare, Plan, Progress, batch_fragment
from jaxmem.step_planner import StepPlanner

# (step, args) or (step, args, jit_kwargs).
Step = tuple[Any, ...]

# After so many batches the largest that fits so far is taken.
_MAX_COMPILES = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
  """The largest batch that was found to fit, and its plan.

  Attributes:
    batch: The batch size.
    plan: For that batch, measured.
    smallest_bytes: Batch -> bytes of the smallest program found for it, for
      every batch that was compiled on the way.
  """

  batch: int
  plan: Plan
  smallest_bytes: Mapping[int, int]

  def __str__(self) -> str:
    tried = ", ".join(
      f"{batch}: {units.format_bytes(size)}"
      for batch, size in sorted(self.smallest_bytes.items())
    )
    return (
      f"largest batch {self.batch} (smallest programs {tried})\n{self.plan}"
    )

  def _repr_html_(self) -> str:
    return batch_fragment(self.batch, self.plan, self.smallest_bytes)


def max_batch(
  step_factory: Callable[[int], Step],
  *,
  target: targets.TargetLike = None,
  limit: int | float | str | None = None,
  start: int | None = None,
  multiple_of: int = 1,
  options: Options | None = None,
) -> BatchPlan:
  """Finds the largest batch whose step fits, planned for the fewest bytes.

  Steps are compiled up to their schedule, for a device that need not be here;
  the bytes of the smallest plan of two batches tell where to look next.

  Args:
    step_factory: Takes a batch size; returns `(step, args)` or
      `(step, args, jit_kwargs)`, with arrays or `jax.ShapeDtypeStruct`s.
    target: As in `jaxmem.plan`.
    limit: Most bytes of the whole program, as `memory_limit` in `jaxmem.plan`;
      None for 90 % of jax's pool on the target.
    start: A batch to begin with, a multiple of `multiple_of`; None for that.
    multiple_of: Batches are multiples of this.
    options: Planning options.

  Raises:
    InfeasibleError: If not even the smallest batch fits.
    ValueError: On bad arguments.
    RuntimeError: If the target cannot be compiled for here.
  """
  if start is None:
    start = multiple_of
  if multiple_of < 1 or start < 1 or start % multiple_of:
    raise ValueError(
      "start must be a positive multiple of multiple_of, got"
      f" start={start}, multiple_of={multiple_of}."
    )
  first = _made(step_factory, start)
  device, group = targets.planned_on(target, first[1])
  written = MemoryLimit.of("90%" if limit is None else limit, name="limit")
  request = Request(options=Options.of(options), target=device, group=group)
  limit_bytes, share = written.planned_for(request.described)
  request = dataclasses.replace(request, limit_bytes=limit_bytes)
  search = _BatchSearch(step_factory, request, share, multiple_of)
  search.made[start] = first
  batch = search.run(start)
  planner, args = search.planner(batch)
  plan = planner.plan(args, {})
  return BatchPlan(batch=batch, plan=plan, smallest_bytes=search.smallest)


class _BatchSearch:
  """Batches that were tried."""

  def __init__(
    self,
    step_factory: Callable[[int], Step],
    request: Request,
    share: LimitShare | None,
    multiple_of: int,
  ):
    assert request.limit_bytes is not None
    self._factory = step_factory
    self._request = request
    self._share = share
    self._limit_bytes = request.limit_bytes
    self._unit = multiple_of
    self._progress = Progress()
    self.smallest: dict[int, int] = {}
    # What the factory made and nothing was planned with yet.
    self.made: dict[int, tuple[Any, ...]] = {}

  def run(self, start: int) -> int:
    """Returns the largest batch that fits."""
    low, high = 0, None
    batch = start
    try:
      while len(self.smallest) < _MAX_COMPILES:
        if self._fits(batch):
          low = batch
        else:
          high = batch
        if high is not None and high - low <= self._unit:
          break
        batch = self._next(low, high)
    finally:
      self._progress.close()
    if not low:
      raise self._infeasible(min(self.smallest))
    return low

  def _fits(self, batch: int) -> bool:
    self._progress.show(f"compiling and planning batch {batch}")
    if batch not in self.smallest:
      planner, args = self.planner(batch)
      self.smallest[batch] = planner.smallest_bytes(args)
    return self.smallest[batch] <= self._limit_bytes

  def _next(self, low: int, high: int | None) -> int:
    """Where a line through two batches meets the limit, between the bounds."""
    known = sorted(self.smallest.items())
    aim = 2 * low
    if len(known) > 1:
      (b1, s1), (b2, s2) = self._around(known)
      if s2 > s1:
        aim = b1 + int((self._limit_bytes - s1) * (b2 - b1) / (s2 - s1))
    aim = aim // self._unit * self._unit
    if high is None:
      return max(low + self._unit, aim)
    return min(max(aim, low + self._unit), high - self._unit)

  def _around(
    self, known: list[tuple[int, int]]
  ) -> tuple[tuple[int, int], tuple[int, int]]:
    """The neighbours on both sides of the limit, or the two nearest to it."""
    above = [i for i, (_, size) in enumerate(known) if size > self._limit_bytes]
    last = above[0] if above else len(known) - 1
    last = max(1, last)
    return known[last - 1], known[last]

  def _infeasible(self, batch: int) -> InfeasibleError:
    smallest = self.smallest[batch]
    return InfeasibleError(
      f"Not even batch {batch} fits {units.format_bytes(self._limit_bytes)}:"
      f" the smallest program found takes {units.format_bytes(smallest)}.",
      smallest_bytes=smallest,
      lower_bound_bytes=0,
    )

  def planner(self, batch: int) -> tuple[StepPlanner, tuple[Any, ...]]:
    """Returns what plans a batch's step, and the step's arguments."""
    made = self.made.pop(batch, None) or _made(self._factory, batch)
    jit_kwargs = dict(made[2]) if len(made) == 3 else {}
    planner = StepPlanner(made[0], jit_kwargs, self._request, self._share)
    return planner, tuple(made[1])


def _made(factory: Callable[[int], Step], batch: int) -> tuple[Any, ...]:
  """Returns a batch's step, its arguments, and keywords of jax.jit if any."""
  made = tuple(factory(batch))
  if len(made) not in (2, 3) or not callable(made[0]):
    raise ValueError(
      "step_factory must return (step, args) or (step, args, jit_kwargs),"
      f" got {made!r}."
    )
  return made
