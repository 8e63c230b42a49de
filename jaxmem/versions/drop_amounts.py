"""How much loops are asked not to stack, to meet a byte limit."""

from __future__ import annotations

from jaxmem.planning import TUNING
from jaxmem.versions.scan import SaveBytes

_TUNING = TUNING.loops


def amounts_to_drop(
  excess_bytes: int,
  stacked_bytes: int,
  may_halve: bool,
  *,
  leaves_little: bool = False,
) -> list[SaveBytes]:
  """Returns the amounts to try, in ascending order.

  Args:
    excess_bytes: What the program takes above the limit; 0 if it fits.
    stacked_bytes: What could be dropped.
    may_halve: Whether half of it may be enough.
    leaves_little: Whether the first amount had better be above what has to be
      dropped: to stack less mostly saves time.
  """
  shares = [int(share * stacked_bytes) for share in _TUNING.stacked_shares]
  above = [amount for amount in shares if amount > excess_bytes]
  if not excess_bytes:
    return [*above, "all"]
  if leaves_little and above:
    return [*above, "all"]
  halves = [excess_bytes // 2] if may_halve else []
  return [*halves, excess_bytes, *above, "all"]


def less_to_drop(
  amount: SaveBytes, excess_bytes: int, spare_bytes: int
) -> list[SaveBytes]:
  """Returns less to try where XLA saved more than the jaxpr says.

  Args:
    amount: What was dropped, by the jaxpr.
    excess_bytes: What the program took above the limit before; 0 if it fitted.
    spare_bytes: What it takes below the limit now.

  Returns:
    One amount at most: in proportion to what was saved, if that leaves more to
    spare than is worth another compile.
  """
  saved_bytes = excess_bytes + spare_bytes
  is_little = spare_bytes <= _TUNING.spare_share * saved_bytes
  if isinstance(amount, str) or not excess_bytes or is_little:
    return []
  return [amount * excess_bytes // saved_bytes]
