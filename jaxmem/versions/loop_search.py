"""Which versions whose loops stack less are compiled for a byte limit."""

from __future__ import annotations

import math
from collections.abc import Collection

from jaxmem.planning import TUNING
from jaxmem.versions.compared import ComparedVersion
from jaxmem.versions.drop_amounts import amounts_to_drop, less_to_drop
from jaxmem.versions.scan import SaveBytes
from jaxmem.versions.tried_versions import TriedVersions
from jaxmem.versions.update_versions import updated_versions
from jaxmem.versions.version import stacking_less


def stack_less(versions: TriedVersions, stacked_bytes: int) -> None:
  """Tries a few amounts that loops do not stack, in ascending order.

  The cheapest drops come first: once what fits takes longer than with less
  dropped, all that drops more does so as well, but for what drops all.

  Args:
    versions: What was tried; more is added.
    stacked_bytes: What could be dropped.
  """
  base = versions.base
  least_bytes = base.planner.least_bytes
  excess_bytes = max(0, base.excess_bytes)
  # Edits may find the other half elsewhere.
  may_halve = least_bytes - excess_bytes // 2 <= versions.limit_bytes
  amounts = amounts_to_drop(
    excess_bytes, stacked_bytes, may_halve, leaves_little=versions.is_fast
  )
  # What was dropped, and what that takes by the jaxpr.
  seen: dict[tuple[str, ...], float] = {}
  fastest: ComparedVersion | None = None
  less: list[SaveBytes] = []
  while amounts:
    amount = amounts.pop(0)
    version = stacking_less(base.version, amount, versions.device)
    if version.dropped in seen:
      continue
    seen[version.dropped] = version.extra_s
    tried = versions.compile(version)
    if tried is not None and tried.fits:
      if versions.is_fast:
        return
      if fastest is None:
        spare_bytes = versions.limit_bytes - tried.planner.total_bytes
        less = less_to_drop(amount, excess_bytes, spare_bytes)
        amounts[:0] = less
      elif tried.planner.step_s >= fastest.planner.step_s:
        if amount in less:
          # To drop more than the fastest does may still be faster.
          continue
        break
      fastest = tried
  if fastest is not None:
    _try_others(versions, seen, seen[fastest.version.dropped])


def _try_others(
  versions: TriedVersions, seen: Collection[tuple[str, ...]], fastest_s: float
) -> None:
  """Tries what may take less than the jaxpr says, or be smaller.

  There is a kernel for each stack on a GPU, where XLA fuses and lays out
  otherwise what makes it. Products are what takes time to make again, and on a
  CPU what else is dropped by bytes is more than what that saves is worth.

  Args:
    versions: What was tried; more is added.
    seen: What was dropped in these.
    fastest_s: What the fastest that fits takes longer, by the jaxpr.
  """
  base = versions.base
  most_saved = 1.0 + TUNING.loops.spare_share
  others: list[tuple[SaveBytes, float]] = [
    ("all", TUNING.loops.all_share),
    ("but products", TUNING.loops.but_products_share),
  ]
  if versions.device.platform == "cpu":
    del others[0]
  for other, share in others:
    version = stacking_less(base.version, other, versions.device)
    more_s = version.extra_s - fastest_s
    if (
      version.dropped not in seen
      and more_s <= share * base.planner.step_s
      and base.excess_bytes <= most_saved * version.saved_bytes
    ):
      versions.compile(version)


def update_in_loops(versions: TriedVersions) -> None:
  """Lets loops update what some versions are too large by.

  Args:
    versions: What was tried; more is added.
  """
  fitting = [t.schedule_s for t in versions.compiled if t.fits]
  best_s = min(fitting, default=math.inf)
  most = TUNING.versions.max_updated
  waiting = updated_versions(versions.compiled, versions.device)[:most]
  for each in waiting:
    if each.schedule_s >= best_s:
      continue
    if versions.is_fast and not versions.is_much_faster(each.schedule_s):
      continue
    tried = versions.compile(each.version)
    if tried is None:
      continue
    if tried.fits:
      best_s = min(best_s, tried.schedule_s)
    elif each.fits:
      # An iteration holds what it is about to write.
      missing_bytes = versions.device.num_devices * tried.excess_bytes
      more = each.with_more(missing_bytes, versions.device)
      is_last = len(waiting) >= 2 * most
      if more is not None and more.fits and not is_last:
        waiting.append(more)
