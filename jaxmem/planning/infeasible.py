"""The error where no plan of a step fits its limit."""

from __future__ import annotations

from typing import NoReturn

from jaxmem import units
from jaxmem.errors import InfeasibleError, name_buffers
from jaxmem.planning.ordered_module import Fit, OrderedModule

# How many of the buffers that are needed at once an error names.
_NUM_NAMED = 8


def raise_infeasible(
  name: str, best: Fit, least: OrderedModule, room: int
) -> NoReturn:
  """Raises an error that says why nothing fits, and what could be done.

  Args:
    name: Of the step.
    best: The smallest that was found.
    least: The order whose edits may take the fewest bytes.
    room: Bytes that the limit leaves for temporaries.

  Raises:
    InfeasibleError: Always.
  """
  base, bound = best.base, least.bound
  smallest = base.fixed_bytes + best.temp_bytes
  lowest = base.fixed_bytes + min(bound.num_bytes, best.temp_bytes)
  fixed = units.format_bytes(base.fixed_bytes)
  buffers = tuple(least.needed(bound.values[:_NUM_NAMED])) if room > 0 else ()
  why = (
    f"of which arguments and outputs are {fixed}, and no edits of these orders"
    f" take less than {units.format_bytes(lowest)}. Needed at once, whatever is"
    f" chosen: {name_buffers(buffers)}. Donate arguments, shrink the batch, or"
    " compute the largest in parts."
  )
  if room <= 0:
    why = (
      f"and its arguments and outputs alone take {fixed}, which no plan"
      " changes. Donate arguments, or make them smaller."
    )
  raise InfeasibleError(
    f"No plan of {name} fits memory_limit"
    f" {units.format_bytes(base.fixed_bytes + room)}: the smallest found takes"
    f" {units.format_bytes(smallest)} ({smallest} bytes), {why}",
    smallest_bytes=smallest,
    lower_bound_bytes=lowest,
    buffers=buffers,
  )
