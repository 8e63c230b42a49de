"""What would make the peak of a program lower."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem import units
from jaxmem.report import donation
from jaxmem.report.communication import Replicated
from jaxmem.report.donation import DonationAdvice
from jaxmem.report.frontier import Frontier, Point
from jaxmem.report.peak import PeakRow

_MAX_NAMED = 3
# Smaller copies are not worth a line.
_MIN_SHARE = 0.001


def hints(
  rows: Sequence[PeakRow],
  advice: Sequence[DonationAdvice],
  found: Sequence[Replicated] = (),
  frontier: Frontier | None = None,
) -> tuple[str, ...]:
  """Returns what would shrink a program's peak, a line each.

  Args:
    rows: What its bytes are at the peak.
    advice: What could be donated.
    found: Large arguments that every device has all of.
    frontier: What limits would cost, if that was planned.
  """
  lines = [*_donate(advice), *_shard(found), *_cast(rows)]
  if frontier is not None:
    lines += _limit(sum(row.size_bytes for row in rows), frontier)
  return tuple(lines)


def _donate(advice: Sequence[DonationAdvice]) -> list[str]:
  size_bytes = donation.possible_bytes(advice)
  if not size_bytes:
    return []
  names = donation.possible_names(advice)
  how = donation.suggestion(advice) or "donate " + _named(names)
  return [f"{how}: {units.format_bytes(size_bytes)} less for outputs"]


def _shard(found: Sequence[Replicated]) -> list[str]:
  return [
    f"shard {each.path}, dimension {each.dimension} over axis {each.axis!r}:"
    f" {units.format_bytes(each.saved_bytes)} less"
    for each in found[:_MAX_NAMED]
  ]


def _cast(rows: Sequence[PeakRow]) -> list[str]:
  least = _MIN_SHARE * sum(row.size_bytes for row in rows)
  copies = [row for row in rows if row.copy_of and row.size_bytes >= least]
  lines = []
  for row in copies[:_MAX_NAMED]:
    line = f" at {row.source}" if row.source else ""
    lines.append(
      f"{row.copy_of} is there twice, as it is and in another type or layout"
      f" ({row.name}{line}): {units.format_bytes(row.size_bytes)}"
    )
  rest = copies[_MAX_NAMED:]
  if rest:
    size = units.format_bytes(sum(row.size_bytes for row in rest))
    lines.append(f"{len(rest)} more are there twice: {size}")
  return lines


def _limit(total_bytes: int, frontier: Frontier) -> list[str]:
  """Returns what the largest limit that saves costs, and the smallest."""
  lower = [
    (p.total_bytes, p)
    for p in frontier.points
    if p.total_bytes is not None and p.total_bytes < total_bytes
  ]
  if not lower:
    return []
  lower.sort(key=lambda pair: -pair[0])
  ends = [lower[0], lower[-1]] if len(lower) > 1 else lower
  return [_limit_line(total_bytes, *end, frontier) for end in ends]


def _limit_line(
  total_bytes: int, size_bytes: int, point: Point, frontier: Frontier
) -> str:
  extra = 100 * point.extra_s / frontier.step_s if frontier.step_s else 0.0
  limit = f"memory_limit={point.limit_bytes}"
  saved = units.format_bytes(total_bytes - size_bytes)
  how = [f"{point.num_recomputed} operations run twice"]
  if point.num_offloaded:
    how.append(f"{point.num_offloaded} values moved to the host")
  return (
    f"{limit}: {saved} less, for {extra:+.1f} % time by estimate"
    f" ({', '.join(how)})"
  )


def _named(names: Sequence[str]) -> str:
  rest = len(names) - _MAX_NAMED
  text = ", ".join(names[:_MAX_NAMED])
  return f"{text} and {rest} more" if rest > 0 else text
