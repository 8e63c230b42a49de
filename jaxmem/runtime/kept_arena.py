"""The arena of a compiled XLA:CPU function, kept allocated between calls.

XLA:CPU allocates temporaries anew at each call. Where that takes fresh pages
from the kernel, these cost more time than many of the step's own operations.
The live ranges and offsets are in the executable, and so is every use of them:
so temporaries can also be placed anew, without compiling again.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxmem_hlo.cpu_executable import (
  ALIGNMENT_BYTES,
  PlacementItem,
  UnsupportedExecutableError,
  load_with_arena,
)

from jaxmem.placement import (
  Buffer,
  Gap,
  Problem,
  late_reuse,
  place,
  validate,
)


class KeptArena:
  """A compiled CPU function whose temporaries stay allocated between calls.

  Is called like the `jax.stages.Compiled` it was made from, has its attributes,
  and returns the same bits. Calls from several threads take an arena each.

  Attributes:
    compiled: The function it was made from.
    arena_bytes: Bytes of an arena.
  """

  def __init__(
    self,
    compiled: jax.stages.Compiled,
    flat: jax.stages.Compiled,
    arena_bytes: int,
  ):
    self.compiled = compiled
    self.arena_bytes = arena_bytes
    self._flat = flat
    self._in_tree = compiled.in_tree
    self._out_tree = compiled.out_tree
    self._free: list[jax.Array] = []

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Runs the function."""
    leaves, in_tree = jax.tree.flatten((args, kwargs))
    if in_tree != self._in_tree:
      # Says what is wrong with the arguments.
      return self.compiled(*args, **kwargs)
    arena = self._take()
    try:
      *results, returned = self._flat(*leaves, arena)
    except BaseException:
      if not arena.is_deleted():
        self._free.append(arena)
      raise
    self._free.append(returned)
    return self._out_tree.unflatten(results)

  def release(self) -> None:
    """Frees what is kept; the next call allocates it again."""
    self._free.clear()

  def memory_analysis(self) -> Any:
    """As of any compiled function; the arena counts as a donated argument."""
    return self._flat.memory_analysis()

  def __getattr__(self, name: str) -> Any:
    return getattr(self.compiled, name)

  def _take(self) -> jax.Array:
    try:
      return self._free.pop()
    except IndexError:
      *_, device = jax.tree.leaves(self._flat.input_shardings)
      # The user's guard is for the user's transfers.
      with jax.transfer_guard("allow"):
        return jnp.zeros(self.arena_bytes, jnp.uint8, device=device)


def keep(
  compiled: jax.stages.Compiled,
  *,
  data: bytes | None = None,
  strict: bool = False,
) -> KeptArena | jax.stages.Compiled:
  """Returns the same function with its temporaries placed, and kept allocated.

  Runs nothing and compiles nothing but a function of one array. The machine
  code is the same, so are the numbers it computes, bit for bit. Temporaries are
  placed no higher than by XLA. Memory is taken at the first call; it is given
  back when the returned function is deleted or its `release` is called.

  Args:
    compiled: From `jax.jit(...).lower(...).compile()`, for XLA:CPU. Without
      `data` it must be fresh: what has been loaded from a cache cannot be
      written back, and neither can a sort that has run.
    data: Its executable, serialized when it was compiled.
    strict: Whether to raise, rather than warn, where that is not possible.

  Returns:
    A function that is called like `compiled`, with the same donation;
    `compiled` itself if it is not understood.

  Raises:
    UnsupportedExecutableError: If `strict`, and the executable or this version
      of jax is not understood.
  """
  try:
    flat, arena_bytes = load_with_arena(compiled, _place_late, data)
  except UnsupportedExecutableError as error:
    if strict:
      raise
    warnings.warn(
      f"keep lets XLA allocate the temporaries: {error}",
      RuntimeWarning,
      stacklevel=2,
    )
    return compiled
  return KeptArena(compiled, flat, arena_bytes)


def placement_problem(items: Sequence[PlacementItem]) -> Problem:
  """Returns an arena as a placement problem, with XLA's offsets as hints.

  Where only some parts of an item are live, the bytes from the first to the
  last of them are taken.

  Args:
    items: What may be moved in the arena; at least one.
  """
  return Problem(tuple(_buffer(i, item) for i, item in enumerate(items)))


def _place_late(items: Sequence[PlacementItem]) -> tuple[list[int], int]:
  """Places items no higher than XLA does, and takes memory over late."""
  problem = placement_problem(items)
  solution = late_reuse(problem, place(problem), xla_bytes(items))
  validate(problem, solution)
  return list(solution.offsets), solution.height_bytes


def xla_bytes(items: Sequence[PlacementItem]) -> int:
  """Returns the height of an arena as XLA placed its items."""
  return max(item.offset_bytes + item.size_bytes for item in items)


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
