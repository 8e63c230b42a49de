"""Why no placement fits: few buffers that do not fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jaxmem.placement import decision
from jaxmem.placement.problem import (
  Buffer,
  InfeasiblePlacementError,
  Problem,
)
from jaxmem.placement.table import Table

# Deterministic time to prove that a part does not fit, what each proof counts
# at least, so that the proofs end, and what they may take together.
_WORK_PER_PROOF = 0.05
_LEAST_WORK = 0.0005
_WORK_FOR_ALL = 1.0
# How many buffers a message names.
_MAX_NAMED = 8


def check_bounds(table: Table, capacity: int | None) -> None:
  """Checks what can be said without a search.

  Args:
    table: The problem.
    capacity: Bytes of the arena; None if unlimited.

  Raises:
    InfeasiblePlacementError: If two fixed buffers overlap, or more bytes are
      live at once than the capacity.
  """
  buffers = table.problem.buffers
  pair = _fixed_overlap(table)
  if pair:
    names = tuple(buffers[i].name for i in pair)
    raise InfeasiblePlacementError(
      f"{names[0]!r} and {names[1]!r} are fixed at offsets where they share"
      " bytes while both are live.",
      conflict=names,
      is_irreducible=True,
      lower_bound_bytes=table.max_live_bytes,
    )
  if capacity is None or table.max_live_bytes <= capacity:
    return
  tops = table.sizes_bytes + np.maximum(table.fixed, 0) * table.unit
  if tops.max() > capacity:
    worst = buffers[int(tops.argmax())]
    where = f" at {worst.offset_bytes}" if worst.offset_bytes else ""
    raise _error([worst], f"{worst.size_bytes} bytes{where}", capacity, table)
  kept = _fullest(table, capacity)
  raise _error(
    kept, f"{table.max_live_bytes} bytes are live at once", capacity, table
  )


def explain(table: Table, capacity: int) -> InfeasiblePlacementError:
  """Returns the error for a problem that was proven not to fit.

  Leaves out buffers, many at first, as long as CP-SAT proves quickly that the
  rest does not fit either.

  Args:
    table: The problem; it is not feasible.
    capacity: Bytes of the arena.
  """
  work = _WORK_FOR_ALL

  def is_infeasible(rest: Sequence[Buffer]) -> bool | None:
    nonlocal work
    if work <= 0:
      return None
    part = Table(Problem(tuple(rest)))
    answer = decision.decide(part, capacity, _WORK_PER_PROOF)
    work -= max(answer.work, _LEAST_WORK)
    known = {"infeasible": True, "unknown": None}
    return known.get(answer.status, False)

  kept, is_irreducible = _reduced(list(table.problem.buffers), is_infeasible)
  return _error(kept, "proven by search", capacity, table, is_irreducible)


def _reduced(
  buffers: list[Buffer],
  is_infeasible: Callable[[Sequence[Buffer]], bool | None],
) -> tuple[list[Buffer], bool]:
  """Deletes chunks of halving size; returns the rest, and if it is least."""
  chunk = max(len(buffers) // 2, 1)
  while True:
    is_certain = True
    position = 0
    while position < len(buffers):
      rest = buffers[:position] + buffers[position + chunk :]
      answer = is_infeasible(rest) if rest else False
      if answer:
        buffers = rest
      else:
        is_certain &= answer is not None
        position += chunk
    if chunk == 1:
      return buffers, is_certain
    chunk //= 2


def _fixed_overlap(table: Table) -> tuple[int, int] | None:
  base = table.fixed[table.owners]
  lows, highs, owners = base + table.lows, base + table.highs, table.owners
  for i in np.flatnonzero(base >= 0).tolist():
    owner = int(owners[i])
    meets = table.meets(i) & (owners != owner) & (base >= 0)
    meets &= (lows < highs[i]) & (highs > lows[i])
    if meets.any():
      return owner, int(owners[meets][0])
  return None


def _fullest(table: Table, capacity: int) -> list[Buffer]:
  """Returns buffers of the fullest section, as few as exceed the capacity."""
  section = int(table.live.argmax())
  pieces = np.flatnonzero(table.live_in(section))
  sizes = (table.highs - table.lows)[pieces] * table.unit
  slacks = table.slack_bytes[pieces]
  kept = np.ones(len(pieces), bool)
  for i in np.argsort(sizes, kind="stable").tolist():
    kept[i] = False
    if sizes[kept].sum() - slacks[kept].max(initial=0) <= capacity:
      kept[i] = True
  return [table.problem.buffers[i] for i in table.owners[pieces[kept]].tolist()]


def _error(
  buffers: Sequence[Buffer],
  reason: str,
  capacity: int,
  table: Table,
  is_irreducible: bool = True,
) -> InfeasiblePlacementError:
  names = tuple(b.name for b in buffers)
  shown = ", ".join(names[:_MAX_NAMED])
  shown += ", ..." if len(names) > _MAX_NAMED else ""
  bound = max(table.max_live_bytes, capacity + 1)
  return InfeasiblePlacementError(
    f"No placement fits {capacity} bytes ({reason}); these do not fit together:"
    f" {shown}. At least {bound} bytes are needed.",
    conflict=names,
    is_irreducible=is_irreducible,
    lower_bound_bytes=bound,
  )
