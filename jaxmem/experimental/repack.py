"""Temporaries of compiled XLA:CPU functions, packed more tightly than by XLA.

XLA places temporaries greedily, and is usually within a few per cent of the
bytes that are live at once. What is left can be had without compiling again:
the live ranges and offsets are in the executable, and so is every use of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import jax
from jaxmem_hlo.cpu_executable import (
  ALIGNMENT_BYTES,
  PlacementItem,
  UnsupportedExecutableError,
  load_placed,
)

from jaxmem.placement import late_reuse, place, validate
from jaxmem.runtime import kept_arena


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
    return load_placed(compiled, _place_lower)
  except _NoGainError:
    return compiled
  except (UnsupportedExecutableError, ValueError) as error:
    if strict:
      raise
    warnings.warn(
      f"repack keeps XLA's placement: {error}", RuntimeWarning, stacklevel=2
    )
    return compiled


def _place_lower(items: Sequence[PlacementItem]) -> tuple[list[int], int]:
  """Places items at least one unit of alignment below XLA's height."""
  problem = kept_arena.placement_problem(items)
  solution = place(problem)
  if solution.height_bytes > kept_arena.xla_bytes(items) - ALIGNMENT_BYTES:
    raise _NoGainError
  solution = late_reuse(problem, solution)
  validate(problem, solution)
  return list(solution.offsets), solution.height_bytes
