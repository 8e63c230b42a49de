"""Which of a step's versions fits under a limit, and is the fastest."""

from __future__ import annotations

import math

from jaxmem.errors import InfeasibleError
from jaxmem.planning import LimitPlan, Wanted
from jaxmem.versions.compared import ComparedVersion
from jaxmem.versions.tried_versions import TriedVersions
from jaxmem.versions.version import small_versions


def best_version(
  versions: TriedVersions,
) -> tuple[ComparedVersion, LimitPlan | InfeasibleError]:
  """Returns the cheapest version that fits, or else the smallest.

  With it comes its plan, or why there is none. Whole schedules are compared:
  less to store also saves time, and so do originals that need not run any
  more.

  Args:
    versions: What was tried; where nothing fits, more is added.
  """
  found = _cheapest(versions, False) or _cheapest(versions, True)
  return found or _nearest(versions)


def _cheapest(
  versions: TriedVersions, is_any: bool
) -> tuple[ComparedVersion, LimitPlan] | None:
  """Returns the cheapest version that fits, and its plan.

  Args:
    versions: What was tried.
    is_any: See `Wanted`. What takes long is left until no version fits
      without.
  """
  if versions.is_fast and not versions.written.planner.hides:
    return _first(versions, is_any)
  best_s = versions.found.best_s
  sketched: list[tuple[float, ComparedVersion]] = []
  for tried in sorted(
    # What needs no edits comes first, and may make the rest needless.
    versions.compiled,
    key=lambda t: (not t.fits, t.schedule_s, t.hopeful_s),
  ):
    if versions.found.hopeful_s(tried) <= best_s:
      wanted = Wanted(worse_s=best_s, is_any=is_any)
      seconds = versions.found.sketched_s(tried, wanted)
      if seconds is not None:
        sketched.append((seconds, tried))
        best_s = min(best_s, seconds)
  best: tuple[ComparedVersion, LimitPlan] | None = None
  for _, tried in sorted(sketched, key=lambda found: found[0]):
    worse_s = best[1].schedule_s if best else math.inf
    plan = versions.found.find(tried, Wanted(worse_s=worse_s, is_any=is_any))
    if plan and (best is None or plan.schedule_s < best[1].schedule_s):
      best = tried, plan
  return best


def _first(
  versions: TriedVersions, is_any: bool
) -> tuple[ComparedVersion, LimitPlan] | None:
  """Returns the first version that fits, the fastest by estimates first."""
  wanted = Wanted(is_any=is_any)
  for tried in sorted(versions.compiled, key=lambda t: t.schedule_s):
    plan = versions.found.find(tried, wanted)
    if plan is not None:
      return tried, plan
  return None


def _nearest(
  versions: TriedVersions,
) -> tuple[ComparedVersion, LimitPlan | InfeasibleError]:
  """Returns the smallest version, and its plan or why there is none.

  Of versions that are there whatever the limit: else the smallest program
  that an error names would not be found for its own bytes.
  """
  best: tuple[ComparedVersion, LimitPlan] | None = None
  nearest: tuple[ComparedVersion, InfeasibleError] | None = None
  for tried in sorted(_small(versions), key=lambda t: t.planner.total_bytes):
    useful = nearest[1].smallest_bytes if nearest else None
    if useful is not None and tried.planner.least_bytes >= useful:
      continue
    try:
      plan = tried.planner.fit(versions.limit_bytes, useful).decision
    except InfeasibleError as error:
      if nearest is None or error.smallest_bytes < nearest[1].smallest_bytes:
        nearest = tried, error
      continue
    if best is None or plan.schedule_s < best[1].schedule_s:
      best = tried, plan
  found = best or nearest
  assert found is not None
  return found


def _small(versions: TriedVersions) -> list[ComparedVersion]:
  """Returns the versions that may take the fewest bytes."""
  found: list[ComparedVersion] = []
  totals: list[int] = []
  for version in small_versions(
    *(versions.base.version, versions.written.version),
    *(versions.schedules, versions.request, totals),
  ):
    tried = versions.compile(version)
    if tried is None:
      continue
    totals.append(tried.planner.total_bytes)
    found.append(tried)
  return found
