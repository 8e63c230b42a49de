"""What a module promises to take under a limit, before it is planned for it.

On a CPU a program's temporaries are mapped anew in each run, so that a plan for
fewer of them may be the faster one. Then it is also what is planned, even where
the planned order fits without edits: a larger limit must not make a step
slower. Only a limit that XLA's own plan keeps asks for nothing.
"""

from __future__ import annotations

import dataclasses
import math

from jaxmem.cost import Device
from jaxmem.planning.aim import MOST_PROMISING_VIEW
from jaxmem.planning.ordered_module import OrderedModule
from jaxmem.planning.tuning import TUNING

_TUNING = TUNING.promise


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
  """What a module promises.

  Attributes:
    room_bytes: The temporaries to plan for: those there is room for, or fewer
      where mapping those takes longer than what has to run again.
    edits_s: An estimate of the seconds that edits add; infinity if there may be
      none.
    mapping_s: Seconds until its temporaries are mapped; see `Device.mapping_s`.
  """

  room_bytes: int
  edits_s: float
  mapping_s: float

  @property
  def least_s(self) -> float:
    """The same in all, with no more for mapping than it takes at least."""
    return self.edits_s + _TUNING.sure_mapping_share * self.mapping_s


def may_gain_by_less(
  base: OrderedModule,
  device: Device,
  most_bytes: int,
  fewer_bytes: int = 0,
) -> bool:
  """Whether mapping fewer temporaries may save enough to be looked for.

  Args:
    base: The module in its planned order.
    device: The device planned for.
    most_bytes: Temporaries that are mapped otherwise.
    fewer_bytes: Those that are to be mapped.
  """
  mapped_s = device.mapping_s(most_bytes) - device.mapping_s(fewer_bytes)
  saved_s = _TUNING.sure_mapping_share * mapped_s
  return mapped_s > 0.0 and saved_s >= _TUNING.least_gain_share * base.step_s


def promise(base: OrderedModule, device: Device, room_bytes: int) -> Promise:
  """Says in little time what a module promises under a limit.

  The edits of a first sketch are priced as if temporaries took no more than
  what is live, in the view that promises the most.

  Args:
    base: The module in its planned order.
    device: The device planned for.
    room_bytes: Most bytes of temporaries.
  """
  needed_bytes = base.unedited().temp_bytes

  def promised(room: int, useless_s: float = math.inf) -> Promise:
    edits_s, live_bytes = 0.0, int(_TUNING.estimated_live_share * room)
    if needed_bytes > room:
      edits_s = base.estimate(MOST_PROMISING_VIEW, live_bytes, useless_s)
    mapping_s = device.mapping_s(min(room, needed_bytes))
    return Promise(room_bytes=room, edits_s=edits_s, mapping_s=mapping_s)

  best = promised(room_bytes)
  is_kept = base.planned.decision.baseline_bytes <= room_bytes
  if is_kept or best.edits_s == math.inf or not best.mapping_s:
    return best
  most_bytes = min(room_bytes, needed_bytes)
  least_bytes = base.bound.num_bytes
  lower = [int(share * needed_bytes) for share in _TUNING.lower_room_shares]
  # With so few none are mapped, so that it may be worth a leap.
  kept_bytes = device.most_kept_bytes
  for room in [each for each in lower if each < most_bytes]:
    if room < max(kept_bytes, least_bytes):
      break
    if not may_gain_by_less(base, device, most_bytes, room):
      continue
    found = promised(room, best.least_s)
    if found.least_s >= best.least_s:
      break
    best, most_bytes = found, room
  is_near = _TUNING.least_leap * most_bytes <= kept_bytes
  may_leap = is_near and least_bytes <= kept_bytes
  if may_leap and may_gain_by_less(base, device, most_bytes, kept_bytes):
    useless_s = best.edits_s + best.mapping_s
    leap = promised(kept_bytes, useless_s)
    # They stay in caches, too.
    if leap.edits_s < useless_s:
      return leap
  return best
