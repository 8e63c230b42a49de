"""When the steps of a schedule run, by estimate: what the page draws as lanes.

`cost.ScheduleTimer` says how long the device is at each instruction, and what
goes on beside; here that is laid on the flattened schedule, on which live
ranges are, too.
"""

from __future__ import annotations

import dataclasses
import math

from jaxmem_hlo.buffers import schedule
from jaxmem_hlo.module import Module

from jaxmem import cost


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Span:
  """A transfer on the schedule, from its start to its end.

  Attributes:
    name: The instruction that starts it.
    link: What it runs on: "collectives", "to host" or "from host".
    start: The step that starts it.
    end: One past the step that waits for it.
    seconds: What it takes, hidden or not; in a loop, of all iterations.
    exposed_s: How long the device waits for it, and runs nothing.
    is_synchronous: Whether nothing else runs beside it.
    source: Where in the user's program it comes from.
  """

  name: str
  link: cost.Link
  start: int
  end: int
  seconds: float
  exposed_s: float
  is_synchronous: bool
  source: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
  """When the steps of a schedule run. Seconds are estimates for the target.

  Attributes:
    seconds: How long the device is at each step, `[num_steps]`; a step that
      waits for a transfer is as long as the wait.
    spans: All transfers, in the order in which they end.
  """

  seconds: tuple[float, ...]
  spans: tuple[Span, ...]

  def check(self, num_steps: int) -> None:
    """Raises ValueError if this is no timing of so many steps."""
    if len(self.seconds) != num_steps:
      raise ValueError(
        f"a timing must have the seconds of each of {num_steps} steps, got"
        f" {len(self.seconds)}"
      )
    numbers = [*self.seconds]
    for span in self.spans:
      numbers += [span.seconds, span.exposed_s]
      if not 0 <= span.start < span.end <= num_steps:
        raise ValueError(f"span {span.name!r} is not within {num_steps} steps")
    if not all(0 <= n < math.inf for n in numbers):
      raise ValueError("seconds must be finite, and not negative")


def time_steps(module: Module, rates: cost.Rates, num_steps: int) -> Timing:
  """Estimates when the steps of a scheduled module run.

  Args:
    module: The module.
    rates: Of the device.
    num_steps: Length of the flattened schedule, as its layout counts it.
  """
  trace = cost.ScheduleTimer(module, rates).trace(module)
  times = schedule.Timeline(module).times
  seconds = [0.0] * num_steps
  for instruction_id, spent_s in trace.seconds.items():
    # The difference of two sums may be a little less than nothing.
    seconds[times[instruction_id]] = max(0.0, spent_s)
  by_id = {
    i.id: i for c in module.scheduled_ids for i in module.by_id[c].instructions
  }
  spans = []
  for transfer in trace.transfers:
    start = by_id[transfer.start]
    spans.append(
      Span(
        name=start.name,
        link=transfer.link,
        start=times[transfer.start],
        end=times[transfer.done] + 1,
        seconds=transfer.seconds,
        exposed_s=transfer.exposed_s,
        is_synchronous=transfer.is_synchronous,
        source=module.source(start),
      )
    )
  return Timing(seconds=tuple(seconds), spans=tuple(spans))
