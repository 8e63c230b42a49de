"""Checks edits by running the edited program on versions of values.

Knows the problem and the edits, and nothing of how they were chosen: it lays
out all operations one after another, remembers who made what every reader
sees, and adds up bytes in the plainest way.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxmem.budget.problem import BudgetProblem
from jaxmem.rewrite import Edits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
  """What happened when the edited program was run.

  Attributes:
    faults: Reads of what is not there or was written over, edits that name
      nothing or come too early; empty if all is well.
    live_bytes: At each step and second run, int64.
    peak_bytes: The most of these.
    seconds: What the second runs and the moves cost.
  """

  faults: tuple[str, ...]
  live_bytes: np.ndarray
  peak_bytes: int
  seconds: float


@dataclasses.dataclass(slots=True)
class _Version:
  """One copy of a value in device memory, from `first` to `last`."""

  value: int
  first: int
  last: int
  is_read: bool = False
  is_original: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Operation:
  """A step (unit is None), a second run, or one end of a copy.

  `before` is the step that it is, or comes before.
  """

  kind: str
  before: int
  unit: int = -1
  value: int = -1
  copy: int = -1


def check(
  problem: BudgetProblem, edits: Edits, limit_bytes: int | None = None
) -> Simulation:
  """Runs the edited program.

  Args:
    problem: The problem.
    edits: What was chosen for it.
    limit_bytes: Most bytes of temporaries; None for any number.

  Returns:
    What happened. More bytes than the limit are a fault, too.
  """
  return _Run(problem, edits).run(limit_bytes)


class _Run:
  def __init__(self, problem: BudgetProblem, edits: Edits):
    self._problem = problem
    self._edits = edits
    self._faults: list[str] = []
    self._operations = self._lay_out(edits)
    self._versions: list[_Version] = []
    self._latest: dict[int, _Version] = {}
    # Versions under way: what a copy reads, and what it writes.
    self._storing: dict[int, _Version] = {}
    self._fetching: dict[int, _Version] = {}
    self._made_at: list[dict[int, _Version]] = [{} for _ in self._operations]
    self._read_at: list[dict[int, _Version]] = [{} for _ in self._operations]

  def run(self, limit_bytes: int | None) -> Simulation:
    """See `check`."""
    for value, stored in enumerate(self._problem.values):
      if stored.producer is None:
        self._make(-1, value)
    for time, operation in enumerate(self._operations):
      getattr(self, f"_{operation.kind}")(time, operation)
    for value, stored in enumerate(self._problem.values):
      if stored.is_result:
        self._read(len(self._operations), value)
    live = self._live_bytes()
    peak = int(live.max(initial=0)) - self._problem.slot_bytes
    if limit_bytes is not None and peak > limit_bytes:
      self._faults.append(f"{peak} bytes are live, the limit is {limit_bytes}.")
    runs = [o.unit for o in self._operations if o.kind == "repeat"]
    return Simulation(
      faults=tuple(self._faults),
      live_bytes=live,
      peak_bytes=peak,
      seconds=sum(self._problem.units[u].seconds for u in runs)
      + self._problem.move_seconds * len(self._edits.offloads),
    )

  def _lay_out(self, edits: Edits) -> list[_Operation]:
    problem = self._problem
    step_of = {s.instruction: n for n, s in enumerate(problem.steps)}
    unit_of = {u.value: n for n, u in enumerate(problem.units)}
    moved = {v.moves_as: n for n, v in enumerate(problem.values) if v.moves_as}
    before: list[list[_Operation]] = [[] for _ in problem.steps]
    for copy, move in enumerate(edits.offloads):
      times = (move.store_done, move.fetch_start, move.fetch_done)
      if move.value not in moved or not all(t in step_of for t in times):
        self._faults.append(f"{move} names nothing.")
        continue
      kinds = ("end_store", "start_fetch", "end_fetch")
      for kind, time in zip(kinds, times, strict=True):
        step = step_of[time]
        operation = _Operation(kind, step, -1, moved[move.value], copy)
        before[step].append(operation)
    for again in edits.recomputes:
      if again.value not in unit_of or again.before not in step_of:
        self._faults.append(f"{again} names nothing.")
        continue
      step = step_of[again.before]
      before[step].append(_Operation("repeat", step, unit_of[again.value]))
    operations = []
    for step in range(problem.num_steps):
      operations += [*before[step], _Operation("step", step)]
    return operations

  # Operations.

  def _step(self, time: int, operation: _Operation) -> None:
    step = operation.before
    for value, stored in enumerate(self._problem.values):
      if step in stored.uses:
        self._read(time, value)
    for value, stored in enumerate(self._problem.values):
      if stored.producer == step:
        self._make(time, value).is_original = True

  def _repeat(self, time: int, operation: _Operation) -> None:
    unit = self._problem.units[operation.unit]
    for value in unit.inputs:
      self._read(time, value)
    for value in unit.outputs:
      if value not in self._latest:
        self._faults.append(
          f"{self._name(value)} is made again at operation {time}, before it"
          " is made."
        )
      self._check_place(time, value, "made again")
      self._make(time, value)

  def _end_store(self, time: int, operation: _Operation) -> None:
    value = operation.value
    originals = [
      v for v in self._versions if v.value == value and v.is_original
    ]
    if not originals:
      self._faults.append(f"{self._name(value)} is stored before it is made.")
      return
    self._check_place(time, value, "still being stored")
    originals[0].last = max(originals[0].last, time)
    originals[0].is_read = True
    self._storing[operation.copy] = originals[0]

  def _start_fetch(self, time: int, operation: _Operation) -> None:
    if operation.copy not in self._storing:
      self._faults.append(
        f"{self._name(operation.value)} is fetched before it is stored."
      )
    version = _Version(operation.value, time, time)
    self._versions.append(version)
    self._fetching[operation.copy] = version

  def _end_fetch(self, time: int, operation: _Operation) -> None:
    version = self._fetching.get(operation.copy)
    if version is None:
      self._faults.append(
        f"{self._name(operation.value)} has come back before it was fetched."
      )
      return
    self._check_place(time, operation.value, "brought back")
    version.last = time
    self._latest[operation.value] = version

  def _make(self, time: int, value: int) -> _Version:
    version = _Version(value, max(time, 0), max(time, 0))
    self._versions.append(version)
    self._latest[value] = version
    if time >= 0:
      self._made_at[time][value] = version
    return version

  def _read(self, time: int, value: int) -> None:
    version = self._latest.get(value)
    if version is None:
      self._faults.append(
        f"{self._name(value)} is read at operation {time}, before it is made."
      )
      return
    if time < len(self._operations):
      self._check_place(time, value, "read")
      self._read_at[time][value] = version
    version.last = max(version.last, time)
    version.is_read = True

  def _check_place(self, time: int, value: int, what: str) -> None:
    """Notes a fault if the value's buffer holds something else by now."""
    over = self._problem.values[value].overwritten_at
    if over is not None and self._operations[time].before > over:
      self._faults.append(
        f"{self._name(value)} is {what} at operation {time}, after"
        f" {self._problem.steps[over].name or f'step {over}'} wrote over it."
      )

  def _name(self, value: int) -> str:
    return self._problem.values[value].name

  # Bytes.

  def _live_bytes(self) -> np.ndarray:
    problem = self._problem
    live = np.zeros(len(self._operations), np.int64)
    for version in self._versions:
      stored = problem.values[version.value]
      is_left_out = not version.is_read and (
        stored.producer is None or (version.is_original and stored.is_droppable)
      )
      if not is_left_out:
        live[version.first : version.last + 1] += stored.size_bytes
    for time, operation in enumerate(self._operations):
      if operation.kind == "step":
        step = problem.steps[operation.before]
        live[time] += step.extra_bytes
        live[time] -= self._shared(time, step.shares)
      elif operation.kind == "repeat":
        unit = problem.units[operation.unit]
        live[time] -= self._shared(time, unit.shares)
    is_real = [o.kind in ("step", "repeat") for o in self._operations]
    return live[np.array(is_real, bool)]

  def _shared(self, time: int, pairs: tuple[tuple[int, int], ...]) -> int:
    """Bytes of outputs that lie on operands which die at an operation."""
    shared, used = 0, set()
    for operand, output in pairs:
      read = self._read_at[time].get(operand)
      made = self._made_at[time].get(output)
      stored = self._problem.values[output]
      if read is None or made is None or read.last != time:
        continue
      if made.is_original and stored.is_droppable and not made.is_read:
        continue
      if operand not in used and output not in used:
        used |= {operand, output}
        sizes = (self._problem.values[v].size_bytes for v in (operand, output))
        shared += min(sizes)
    return shared
