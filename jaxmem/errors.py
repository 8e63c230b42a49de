"""Errors of planning, and what they name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from jaxmem import units

_MAX_BUFFERS_NAMED = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NeededBuffer:
  """A buffer that every plan needs at the step that needs most.

  Attributes:
    name: The instruction that defines it, with its output index.
    size_bytes: Its size.
    source: Where in the user's program it comes from.
  """

  name: str
  size_bytes: int
  source: str = ""


def name_buffers(buffers: Sequence[NeededBuffer]) -> str:
  """Names the first of some buffers, with sizes and sources, for a message."""
  return "; ".join(
    f"{b.name} ({units.format_bytes(b.size_bytes)}) {b.source}".rstrip()
    for b in buffers[:_MAX_BUFFERS_NAMED]
  )


class InfeasibleError(ValueError):
  """No plan that was found fits the memory limit.

  Attributes:
    smallest_bytes: Total bytes of the smallest plan found.
    lower_bound_bytes: No plan of this program needs fewer.
    buffers: The largest of those that force the bound, if they are known.
  """

  def __init__(
    self,
    message: str,
    *,
    smallest_bytes: int,
    lower_bound_bytes: int,
    buffers: Sequence[NeededBuffer] = (),
  ):
    super().__init__(message)
    self.smallest_bytes = smallest_bytes
    self.lower_bound_bytes = lower_bound_bytes
    self.buffers = tuple(buffers)

  def __reduce__(self) -> tuple[Any, ...]:
    """Lets it pass from process to process, and be copied."""
    make = functools.partial(type(self), smallest_bytes=0, lower_bound_bytes=0)
    return make, self.args, self.__dict__


class PlanningError(RuntimeError):
  """A program with a memory limit could not be planned, and does not run.

  Without a limit XLA's own plan would; with one, that might not fit.
  """

  @classmethod
  def under_limit(cls, function: str, error: Exception) -> PlanningError:
    """Says of a function with a limit what went wrong with it."""
    why, advice = f"{type(error).__name__}: {error}", " Please report it."
    if isinstance(error, cls):  # It says what to do.
      why, advice = str(error).rstrip("."), ""
    return cls(
      f"{function} has a memory limit and could not be planned: {why}. It does"
      " not run, as it might not fit; without the limit XLA's own plan would"
      f" run.{advice}"
    )
