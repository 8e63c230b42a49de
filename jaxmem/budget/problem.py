"""What the choice of recomputes works on: a fixed order and its values.

Plain, frozen data that checks itself. Nothing here knows HLO or a solver;
`from_module` builds it from a scheduled module.

Steps are the positions of the given order. A value is one array that a step
makes, or that is there at the start. A unit is something that can be run a
second time: an instruction, or of a fusion with several outputs the part that
makes one of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from jaxmem.rewrite import edits


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredValue:
  """One array.

  Attributes:
    name: What to call it in messages.
    size_bytes: Of its buffer; 0 where its memory is no temporary.
    producer: The step that makes it; None if it is there at the start.
    uses: Steps that read it, ascending, all after the producer.
    is_result: Whether it has to be there after the last step.
    overwritten_at: The step that writes something else into its buffer: only
      what runs before that step may read it. None if nothing does.
    is_droppable: Whether its producer leaves it out when nobody reads it.
    moves_as: How edits name it if it may go to the host and come back.
    source: Where in the user's program it comes from.
  """

  name: str
  size_bytes: int
  producer: int | None
  uses: tuple[int, ...] = ()
  is_result: bool = False
  overwritten_at: int | None = None
  is_droppable: bool = False
  moves_as: edits.Value | None = None
  source: str = ""

  def __post_init__(self):
    if self.size_bytes < 0:
      raise ValueError(
        f"Value {self.name!r}: size_bytes must not be negative, got"
        f" {self.size_bytes}."
      )
    first = -1 if self.producer is None else self.producer
    steps = (first, *self.uses)
    if any(a >= b for a, b in zip(steps, self.uses, strict=False)):
      raise ValueError(
        f"Value {self.name!r}: uses must ascend and follow the producer"
        f" {self.producer}, got {self.uses}."
      )
    if self.overwritten_at is not None and steps[-1] > self.overwritten_at:
      raise ValueError(
        f"Value {self.name!r}: step {steps[-1]} reads it after step"
        f" {self.overwritten_at} wrote over it."
      )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
  """Something that can be run again.

  Attributes:
    step: The step whose instruction it is, or is a part of.
    outputs: Values that a run makes anew.
    inputs: Values that it reads.
    seconds: What a run costs.
    value: How edits name what it makes.
    shares: Pairs (input, output) of values, as in `Step.shares`.
  """

  step: int
  outputs: tuple[int, ...]
  inputs: tuple[int, ...]
  seconds: float
  value: edits.Value
  shares: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
  """One step of the order.

  Attributes:
    instruction: Its instruction's id.
    seconds: What it costs.
    extra_bytes: Needed only while it runs.
    shares: Pairs (a, b) of values: b may be placed on top of a if a dies here.
      min(size of a, size of b) is then counted once. Pairs are used in this
      order, each value at most once.
    name: What to call it in messages.
  """

  instruction: int
  seconds: float = 0.0
  extra_bytes: int = 0
  shares: tuple[tuple[int, int], ...] = ()
  name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetProblem:
  """A fixed order, its values, and what may be run again.

  Attributes:
    steps: In execution order.
    values: All that takes part.
    units: Sorted by step; no value is the output of two.
    slot_bytes: Bytes that the profile counts although they are no temporaries
      (donated arguments and outputs); subtract them from a peak to get
      temporaries.
    move_seconds: What it costs to start the copies of a value that goes to the
      host and back.
  """

  steps: tuple[Step, ...]
  values: tuple[StoredValue, ...]
  units: tuple[Unit, ...]
  slot_bytes: int = 0
  move_seconds: float = 0.0

  def __post_init__(self):
    num_steps, num_values = len(self.steps), len(self.values)
    for value in self.values:
      steps = (value.producer or 0, value.overwritten_at or 0, *value.uses)
      if not all(0 <= s < max(num_steps, 1) for s in steps):
        raise ValueError(
          f"Value {value.name!r}: steps must be below {num_steps}, got {steps}."
        )
    for step in self.steps:
      _check_pairs(step.name, step.shares, num_values)
    if any(a.step > b.step for a, b in itertools.pairwise(self.units)):
      raise ValueError("units must be sorted by step.")
    made: set[int] = set()
    for unit in self.units:
      self._check_unit(unit, made)

  def _check_unit(self, unit: Unit, made: set[int]) -> None:
    name = f"unit of step {unit.step}"
    _check_pairs(name, unit.shares, len(self.values))
    if not unit.seconds >= 0:
      raise ValueError(f"{name}: seconds must be >= 0, got {unit.seconds}.")
    for value in unit.outputs:
      if value in made or self.values[value].producer != unit.step:
        raise ValueError(
          f"{name}: outputs must be values of that step, each of one unit, got"
          f" {self.values[value].name!r}."
        )
      if self.values[value].is_result:
        raise ValueError(
          f"{name}: results are not made again, got"
          f" {self.values[value].name!r}."
        )
      made.add(value)
    for value in unit.inputs:
      if unit.step not in self.values[value].uses:
        raise ValueError(
          f"{name}: inputs must be read by that step, got"
          f" {self.values[value].name!r}."
        )

  @property
  def num_steps(self) -> int:
    """Length of the order."""
    return len(self.steps)

  @functools.cached_property
  def sizes(self) -> tuple[int, ...]:
    """Bytes of each value."""
    return tuple(v.size_bytes for v in self.values)

  @functools.cached_property
  def may_share(self) -> tuple[bool, ...]:
    """For each value, whether a step or a unit names it in `shares`."""
    named = {
      value
      for holder in (*self.steps, *self.units)
      for pair in holder.shares
      for value in pair
    }
    return tuple(value in named for value in range(len(self.values)))

  @functools.cached_property
  def extra_bytes(self) -> np.ndarray:
    """Transient bytes of the steps, int64 `[num_steps]`."""
    return np.array([s.extra_bytes for s in self.steps], np.int64)

  @functools.cached_property
  def unit_of(self) -> tuple[int, ...]:
    """For each value, the unit that makes it again, or -1."""
    unit_of = [-1] * len(self.values)
    for index, unit in enumerate(self.units):
      for value in unit.outputs:
        unit_of[value] = index
    return tuple(unit_of)

  @functools.cached_property
  def run_order(self) -> tuple[int, ...]:
    """The units, in the order in which they run again before one step.

    That is the order of their first runs, but for those that read nothing: they
    come where the first unit that reads them does. Until then they would lie
    there for nothing.
    """
    places = [(made.step, 1) for made in self.units]
    for made in reversed(self.units):
      for value in made.inputs:
        source = self.unit_of[value]
        if source >= 0 and not self.units[source].inputs:
          places[source] = made.step, 0
    return tuple(sorted(range(len(self.units)), key=lambda u: (places[u], u)))

  @functools.cached_property
  def rank(self) -> tuple[int, ...]:
    """For each unit, its place in `run_order`."""
    rank = [0] * len(self.units)
    for place, unit in enumerate(self.run_order):
      rank[unit] = place
    return tuple(rank)

  @functools.cached_property
  def latest_run(self) -> tuple[int, ...]:
    """For each unit, the last step before which it may run again.

    After that step one of its inputs, or the value itself, has been written
    over: what it would make belongs to an older state of that buffer.
    """
    end = self.num_steps - 1
    limits = []
    for unit in self.units:
      over = [
        self.values[v].overwritten_at for v in (*unit.inputs, *unit.outputs)
      ]
      limits.append(min((o for o in over if o is not None), default=end))
    return tuple(limits)

  def as_edits(
    self, runs: Sequence[tuple[int, int]]
  ) -> tuple[edits.Recompute, ...]:
    """Names runs by instruction ids.

    Args:
      runs: Pairs (unit, step before which it runs).
    """
    return tuple(
      edits.Recompute(
        value=self.units[unit].value, before=self.steps[before].instruction
      )
      for unit, before in sorted(runs, key=lambda r: (r[1], self.rank[r[0]]))
    )


def _check_pairs(
  name: str, pairs: Sequence[tuple[int, int]], num_values: int
) -> None:
  for pair in pairs:
    if pair[0] == pair[1] or not all(0 <= v < num_values for v in pair):
      raise ValueError(f"{name}: shares must be pairs of values, got {pair}.")
