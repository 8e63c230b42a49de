"""When a scheduled program computes, and when it waits for what goes on beside.

Kernels run one after the other. Beside them run collectives, one at a time, and
copies to and from the host, one at a time in each direction. Each begins at its
start, once those before it on its link are done; at its done the device waits
for it. A collective whose done follows its start at once hides nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxmem_hlo.module import (
  Instruction,
  Module,
  collective_of,
  collective_start,
)

from jaxmem.cost.collectives import collective_seconds
from jaxmem.cost.copies import copied_bytes, copy_seconds, direction
from jaxmem.cost.rates import Rates
from jaxmem.cost.roofline import instruction_seconds
from jaxmem.cost.traffic import is_free, trip_count

Link = Literal["to host", "from host", "collectives"]
_CALLERS = ("call", "conditional", "while")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
  """Estimates for one run of a scheduled program.

  Attributes:
    seconds: From its first instruction to its last.
    waiting_s: Of these, while nothing ran but copies to or from the host.
    to_host_bytes: Copied to the host.
    from_host_bytes: Copied from there.
    collective_s: What collectives take, hidden or not.
    exposed_s: Of `seconds`, while nothing ran but collectives.
    num_asynchronous: Collectives that run beside kernels.
    num_synchronous: Those that do not.
  """

  seconds: float = 0.0
  waiting_s: float = 0.0
  to_host_bytes: int = 0
  from_host_bytes: int = 0
  collective_s: float = 0.0
  exposed_s: float = 0.0
  num_asynchronous: int = 0
  num_synchronous: int = 0

  def plus(self, other: StepTime, times: int = 1) -> StepTime:
    """Returns the estimates of this and, after it, another program.

    Args:
      other: The other one.
      times: How often that runs.
    """
    return StepTime(
      **{
        field.name: getattr(self, field.name)
        + times * getattr(other, field.name)
        for field in dataclasses.fields(self)
      }
    )


def step_time(module: Module, rates: Rates) -> StepTime:
  """Estimates when a scheduled module runs and waits.

  Loops and calls that exchange anything run and wait by their own schedules,
  and begin and end with idle links.

  Args:
    module: A scheduled module.
    rates: Of the device. Copies over a link whose rate is 0 take no time.
  """
  return _Simulation(module, rates).of(module.entry.id)


def transfer(
  module: Module, start: Instruction, rates: Rates
) -> tuple[Link, float] | None:
  """Returns the link that an instruction uses beside kernels, and how long.

  Args:
    module: A scheduled module.
    start: Any instruction.
    rates: Of the device.

  Returns:
    None unless it starts a copy to or from the host, or a collective.
  """
  to_host = direction(start)
  if to_host is not None:
    seconds = copy_seconds(copied_bytes(start), to_host, rates)
    return ("to host" if to_host else "from host"), seconds
  collective = collective_start(module, start)
  if collective is None or rates.links is None:
    return None
  return "collectives", collective_seconds(collective, rates.links)


def has_transfers(module: Module) -> bool:
  """Whether the entry copies to or from the host, or starts collectives."""
  return any(
    direction(i) is not None or collective_start(module, i) is not None
    for i in module.entry.instructions
  )


class _Simulation:
  def __init__(self, module: Module, rates: Rates):
    self._module = module
    self._rates = rates
    self._seconds = instruction_seconds(module, rates)

  def of(self, computation_id: int) -> StepTime:
    """Runs a computation on idle links."""
    return _Run(self, self._module, self._rates, self._seconds).through(
      computation_id
    )

  def called(self, instruction: Instruction) -> StepTime | None:
    """Returns the time of a caller by its callees' schedules.

    None if they exchange nothing: then the sum of their instructions will do.
    """
    if instruction.opcode not in _CALLERS:
      return None
    runs = [self.of(callee) for callee in instruction.callees]
    if not any(
      run.collective_s or run.to_host_bytes or run.from_host_bytes
      for run in runs
    ):
      return None
    if instruction.opcode == "conditional":
      return max(runs, key=lambda run: run.seconds)
    times = trip_count(instruction) if instruction.opcode == "while" else 1
    total = StepTime()
    for run in runs:
      total = total.plus(run, times)
    return total


class _Run:
  """One run of one computation."""

  def __init__(
    self,
    simulation: _Simulation,
    module: Module,
    rates: Rates,
    seconds: dict[int, float],
  ):
    self._simulation = simulation
    self._module = module
    self._rates = rates
    self._seconds = seconds
    self._total = StepTime()
    self._free_at: dict[Link, float] = {}
    # By the id of its start: the link of what is under way, and when it ends.
    self._under_way: dict[int, tuple[Link, float]] = {}
    # Collectives beside which nothing has run yet.
    self._alone: set[int] = set()

  def through(self, computation_id: int) -> StepTime:
    """Runs the schedule of a computation."""
    for instruction in self._module.schedule(computation_id):
      begun = transfer(self._module, instruction, self._rates)
      if begun is not None:
        self._start(instruction, *begun)
      elif instruction.opcode.endswith("-done"):
        self._wait(instruction)
      elif not is_free(instruction):
        self._alone.clear()
        self._compute(instruction)
    return self._total

  def _add(self, **more: float) -> None:
    self._total = self._total.plus(StepTime(**more))  # pyright: ignore

  def _start(self, start: Instruction, link: Link, seconds: float) -> None:
    begin = max(self._total.seconds, self._free_at.get(link, 0.0))
    self._free_at[link] = begin + seconds
    self._under_way[start.id] = link, begin + seconds
    if link == "collectives":
      self._alone.add(start.id)
      self._add(collective_s=seconds)
    elif link == "to host":
      self._add(to_host_bytes=copied_bytes(start))
    else:
      self._add(from_host_bytes=copied_bytes(start))
    self._add(seconds=self._seconds[start.id])

  def _wait(self, done: Instruction) -> None:
    start_id = done.operands[0]
    if start_id not in self._under_way:
      return
    link, done_at = self._under_way.pop(start_id)
    waits_s = max(0.0, done_at - self._total.seconds)
    self._add(seconds=waits_s)
    if link != "collectives":
      self._add(waiting_s=waits_s)
    elif start_id in self._alone:
      self._add(exposed_s=waits_s, num_synchronous=1)
    else:
      self._add(exposed_s=waits_s, num_asynchronous=1)

  def _compute(self, instruction: Instruction) -> None:
    called = self._simulation.called(instruction)
    if called is not None:
      self._total = self._total.plus(called)
      return
    seconds = self._seconds[instruction.id]
    self._add(seconds=seconds)
    collective = collective_of(self._module, instruction)
    if collective is not None and self._rates.links is not None:
      self._add(collective_s=seconds, exposed_s=seconds, num_synchronous=1)
