"""When a scheduled program computes, and when it waits for what goes on beside.

Kernels run one after the other. Beside them run collectives, one at a time, and
copies to and from the host, one at a time in each direction. Each begins at its
start, once those before it on its link are done; at its done the device waits
for it. A collective whose done follows its start at once hides nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Literal

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
  """A collective, or a copy to or from the host. Seconds are estimates.

  Attributes:
    link: What it runs on.
    start: Id of the instruction that starts it.
    done: Id of the one that waits for it; `start` again where it is one kernel.
    seconds: What it takes.
    exposed_s: How long the device waits for it, and runs nothing.
    is_synchronous: Whether nothing else runs beside it.
  """

  link: Link
  start: int
  done: int
  seconds: float
  exposed_s: float
  is_synchronous: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTrace:
  """Where the time of one step goes. What loops run counts once for all of it.

  Attributes:
    seconds: Instruction id -> how long the device is at it; what an instruction
      calls is counted there. They add up to `StepTime.seconds`.
    transfers: All of them, each with the time of all iterations.
  """

  seconds: dict[int, float]
  transfers: list[Transfer]


def step_time(
  module: Module, rates: Rates, like: ScheduleTimer | None = None
) -> StepTime:
  """Estimates when a scheduled module runs and waits; see `ScheduleTimer`."""
  return ScheduleTimer(module, rates, like).time(module)


def _transfer(
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


def has_transfers(module: Module, *, in_loops: bool = False) -> bool:
  """Whether a module copies to or from the host, or starts collectives.

  Args:
    module: A scheduled module.
    in_loops: Whether what the entry calls counts, too.
  """
  ids = module.scheduled_ids if in_loops else [module.entry.id]
  return any(
    direction(i) is not None or collective_start(module, i) is not None
    for computation_id in ids
    for i in module.by_id[computation_id].instructions
  )


class LinkClock:
  """When links are idle again, of which each does one thing at a time."""

  def __init__(self):
    self._free_at: dict[Link, float] = {}

  def free_at(self, link: Link) -> float:
    """Returns when a link is done with all that it was given."""
    return self._free_at.get(link, 0.0)

  def begin(self, link: Link, now: float, seconds: float) -> float:
    """Gives a link more to do; returns when that is done."""
    self._free_at[link] = max(now, self.free_at(link)) + seconds
    return self._free_at[link]


class ScheduleTimer:
  """Estimates when schedules of a module run and wait.

  Loops and calls that exchange anything run and wait by their own schedules,
  and begin and end with idle links.

  Args:
    module: A scheduled module.
    rates: Of the device. Copies over a link whose rate is 0 take no time.
    like: For the same device and a module that this one was made from, if any.

  Attributes:
    seconds: Instruction id -> seconds, as `instruction_seconds` says.
    transfers: The id of what starts a transfer -> its link, and its seconds.
  """

  def __init__(
    self, module: Module, rates: Rates, like: ScheduleTimer | None = None
  ):
    self._module = module
    known = like and (like._module, like.seconds)
    self.seconds = instruction_seconds(module, rates, known)
    self._has_links = rates.links is not None
    self.transfers: dict[int, tuple[Link, float]] = {}
    for computation_id in module.scheduled_ids:
      for instruction in module.by_id[computation_id].instructions:
        begun = _transfer(module, instruction, rates)
        if begun is not None:
          self.transfers[instruction.id] = begun

  def time(self, module: Module, computation_id: int | None = None) -> StepTime:
    """Returns the times of one run of a computation, on links that are idle.

    Args:
      module: The module, or one that differs in order only.
      computation_id: Of what runs; None for the entry.
    """
    if computation_id is None:
      computation_id = module.entry.id
    return StepTime(**self._run(module, computation_id).total)

  def _run(self, module: Module, computation_id: int) -> _Run:
    run = _Run(self.transfers, self.seconds)
    for instruction in module.schedule(computation_id):
      if instruction.id in self.transfers:
        run.start(instruction)
      elif instruction.opcode.endswith("-done"):
        run.wait(instruction)
      elif not is_free(instruction):
        is_collective = self._has_links and (
          collective_of(module, instruction) is not None
        )
        run.compute(
          instruction, self._called(module, instruction), is_collective
        )
      run.clock_s.append(run.total["seconds"])
    return run

  def trace(self, module: Module) -> ScheduleTrace:
    """Returns where the time of a step goes; see `time`.

    Args:
      module: As for `time`.
    """
    found = ScheduleTrace(seconds={}, transfers=[])
    self._trace(module, module.entry.id, 1, found)
    return found

  def _trace(
    self, module: Module, computation_id: int, times: int, found: ScheduleTrace
  ) -> None:
    run = self._run(module, computation_id)
    clock = itertools.pairwise([0.0, *run.clock_s])
    for instruction, (begin_s, end_s) in zip(
      module.schedule(computation_id), clock, strict=True
    ):
      is_caller = instruction.opcode in _CALLERS
      seconds = 0.0 if is_caller else times * (end_s - begin_s)
      found.seconds[instruction.id] = seconds
      for callee in instruction.callees if is_caller else ():
        inner = times * self._num_runs(module, instruction, callee)
        self._trace(module, callee, inner, found)
    found.transfers.extend(
      dataclasses.replace(
        transfer,
        seconds=times * transfer.seconds,
        exposed_s=times * transfer.exposed_s,
      )
      for transfer in run.ended
    )

  def _num_runs(self, module: Module, caller: Instruction, callee: int) -> int:
    """Returns how often a caller runs a callee: of branches, the dearest."""
    if caller.opcode == "while":
      return trip_count(caller)
    if caller.opcode == "call":
      return 1
    dearest = max(caller.callees, key=lambda c: self.time(module, c).seconds)
    return int(callee == dearest)

  def _called(
    self, module: Module, instruction: Instruction
  ) -> StepTime | None:
    """Returns the time of a caller by its callees' schedules.

    None if they exchange nothing: then the sum of their instructions will do.
    """
    if instruction.opcode not in _CALLERS:
      return None
    runs = [self.time(module, callee) for callee in instruction.callees]
    if not any(
      run.collective_s or run.to_host_bytes or run.from_host_bytes
      for run in runs
    ):
      return None
    if instruction.opcode == "conditional":
      return max(runs, key=lambda run: run.seconds)
    times = trip_count(instruction) if instruction.opcode == "while" else 1
    names = [field.name for field in dataclasses.fields(StepTime)]
    return StepTime(
      **{n: times * sum(getattr(run, n) for run in runs) for n in names}
    )


class _Run:
  """One run of one computation.

  Attributes:
    total: The fields of its `StepTime` so far.
    clock_s: Seconds from the begin until each of its instructions was done.
    ended: The transfers that were waited for.
  """

  def __init__(
    self,
    transfers: Mapping[int, tuple[Link, float]],
    seconds: Mapping[int, float],
  ):
    self._transfers = transfers
    self._seconds = seconds
    self.total: dict[str, Any] = dataclasses.asdict(StepTime())
    self.clock_s: list[float] = []
    self.ended: list[Transfer] = []
    self._links = LinkClock()
    # By the id of its start: when what is under way ends.
    self._done_at: dict[int, float] = {}
    # Transfers beside which nothing has run yet.
    self._alone: set[int] = set()

  def start(self, start: Instruction) -> None:
    """Starts a transfer."""
    link, seconds = self._transfers[start.id]
    now = self.total["seconds"]
    self._done_at[start.id] = self._links.begin(link, now, seconds)
    self._alone.add(start.id)
    if link == "collectives":
      self._add(collective_s=seconds)
    elif link == "to host":
      self._add(to_host_bytes=copied_bytes(start))
    else:
      self._add(from_host_bytes=copied_bytes(start))
    self._add(seconds=self._seconds[start.id])

  def wait(self, done: Instruction) -> None:
    """Waits for a transfer, if it is one that is under way."""
    start_id = done.operands[0]
    if start_id not in self._done_at:
      return
    waits_s = max(0.0, self._done_at.pop(start_id) - self.total["seconds"])
    self._add(seconds=waits_s)
    link, seconds = self._transfers[start_id]
    is_synchronous = start_id in self._alone
    if link != "collectives":
      self._add(waiting_s=waits_s)
    elif is_synchronous:
      self._add(exposed_s=waits_s, num_synchronous=1)
    else:
      self._add(exposed_s=waits_s, num_asynchronous=1)
    self.ended.append(
      Transfer(
        link=link,
        start=start_id,
        done=done.id,
        seconds=seconds,
        exposed_s=waits_s,
        is_synchronous=is_synchronous,
      )
    )

  def compute(
    self, instruction: Instruction, called: StepTime | None, is_collective: bool
  ) -> None:
    """Runs a kernel.

    Args:
      instruction: The kernel, or what calls a computation.
      called: What that takes by its own schedule, if it exchanges anything.
      is_collective: Whether it is one that has no start.
    """
    self._alone.clear()
    if called is not None:
      self._add(**dataclasses.asdict(called))
      return
    seconds = self._seconds[instruction.id]
    self._add(seconds=seconds)
    if is_collective:
      self._add(collective_s=seconds, exposed_s=seconds, num_synchronous=1)
      self.ended.append(
        Transfer(
          link="collectives",
          start=instruction.id,
          done=instruction.id,
          seconds=seconds,
          exposed_s=seconds,
          is_synchronous=True,
        )
      )

  def _add(self, **more: float) -> None:
    for name, value in more.items():
      self.total[name] += value
