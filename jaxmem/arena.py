"""Packs the temporaries of a compiled XLA:CPU function more tightly.

XLA places temporaries greedily, and is usually within a few per cent of the
bytes that are live at once. What is left can be had without compiling again:
the live ranges and offsets are in the executable, and so is every use of them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxmem_hlo import executable
from jaxmem_hlo.arena import ALIGNMENT_BYTES, PlacementItem

from jaxmem.placement import Buffer, Gap, Problem, place, validate

if TYPE_CHECKING:
  import jax


class _NoGainError(Exception):
  """XLA's placement stays."""


def repack(
  compiled: jax.stages.Compiled, *, strict: bool = False
) -> jax.stages.Compiled:
  """Returns the same function with its temporaries placed by jaxmem.

  Runs nothing and compiles nothing. The machine code is the same, so are the
  numbers it computes, bit for bit.

  Args:
    compiled: From `jax.jit(...).lower(...).compile()`, for XLA:CPU. It must be
      fresh: what has been loaded from a cache cannot be written back, and
      neither can a sort that has run.
    strict: Whether to raise, rather than warn, where that is not possible.

  Returns:
    A function that is called like `compiled`, with the same donation, and whose
    `memory_analysis().temp_size_in_bytes` is at least 64 bytes lower;
    `compiled` itself if there is nothing to gain, or if it is not understood.

  Raises:
    UnsupportedExecutableError: If `strict`, and the executable or this version
      of jax is not understood.
    ValueError: If `strict`, and the placement was refused: a fault of jaxmem's.
  """
  try:
    return executable.load(compiled, _place)
  except _NoGainError:
    return compiled
  except (executable.UnsupportedExecutableError, ValueError) as error:
    if strict:
      raise
    warnings.warn(
      f"jaxmem.arena.repack keeps XLA's placement: {error}",
      RuntimeWarning,
      stacklevel=2,
    )
    return compiled


def placement_problem(items: Sequence[PlacementItem]) -> Problem:
  """Returns an arena as a placement problem, with XLA's offsets as hints.

  Where only some parts of an item are live, the bytes from the first to the
  last of them are taken.

  Args:
    items: From `jaxmem_hlo.executable.placement_problem`; at least one.
  """
  return Problem(tuple(_buffer(i, item) for i, item in enumerate(items)))


def _place(items: Sequence[PlacementItem]) -> tuple[list[int], int]:
  problem = placement_problem(items)
  solution = place(problem)
  validate(problem, solution)
  xla_bytes = max(item.offset_bytes + item.size_bytes for item in items)
  if solution.height_bytes > xla_bytes - ALIGNMENT_BYTES:
    raise _NoGainError
  return list(solution.offsets), solution.height_bytes


def _buffer(index: int, item: PlacementItem) -> Buffer:
  return Buffer(
    # Two items may be named after the same instruction.
    name=f"{index} {item.name}",
    size_bytes=item.size_bytes,
    lower=item.live_ranges[0][0],
    upper=item.live_ranges[-1][1],
    alignment_bytes=ALIGNMENT_BYTES,
    gaps=tuple(_gaps(item)),
    hint_bytes=item.offset_bytes,
  )


def _gaps(item: PlacementItem) -> list[Gap]:
  """Returns when an item takes less than all of its bytes."""
  times = sorted(
    {time for part in item.parts for span in part.live_ranges for time in span}
  )
  gaps = []
  for lower, upper in itertools.pairwise(times):
    live = [
      part
      for part in item.parts
      if any(start <= lower < end for start, end in part.live_ranges)
    ]
    if not live:
      gaps.append(Gap(lower, upper))
      continue
    low = min(part.offset_bytes for part in live)
    high = max(part.offset_bytes + part.size_bytes for part in live)
    if (low, high) != (0, item.size_bytes):
      gaps.append(Gap(lower, upper, (low - low % ALIGNMENT_BYTES, high)))
  return gaps
