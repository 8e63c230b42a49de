"""Removes the copies of loops, and proves it on what XLA compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxmem import targets, units
from jaxmem.experimental.loops.measure import LoopCopies, measure
from jaxmem.experimental.loops.rewrite import (
  LoopChange,
  RewriteOptions,
  rewrite,
  without_copies,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopPlan:
  """What became of a function's loops.

  Attributes:
    function: The function to use: rewritten, or the one that was given. Not
      jitted.
    is_changed: Which of the two.
    changes: What was decided for each loop.
    before: XLA's copies of the function that was given.
    after: XLA's copies of the rewritten one; the same if nothing was rewritten.
    min_bytes: Smaller copies were not counted.
  """

  function: Callable[..., Any]
  is_changed: bool
  changes: tuple[LoopChange, ...]
  before: LoopCopies
  after: LoopCopies
  min_bytes: int

  def __str__(self) -> str:
    rows = [
      ("copies in loops", len(self.before.copies), len(self.after.copies)),
      *(
        (what, units.format_bytes(one), units.format_bytes(other))
        for what, one, other in (
          ("copied", self.before.copied_bytes, self.after.copied_bytes),
          ("read and written", self.before.moved_bytes, self.after.moved_bytes),
          ("temporaries", self.before.temp_bytes, self.after.temp_bytes),
        )
      ),
    ]
    lines = [f"{what:17} {one:>10} -> {other:>10}" for what, one, other in rows]
    for change in self.changes:
      if change.is_changed:
        ordered = f", {change.num_ordered} carries wait" * bool(
          change.num_ordered
        )
        lines.append(
          f"{change.name}: {change.rounds} rounds in a body{ordered}"
          f"  {change.source}"
        )
    if not self.is_changed:
      lines.append("kept as it was")
    return "\n".join(lines)


def remove_copies(
  fun: Callable[..., Any],
  *args: Any,
  jit_kwargs: Mapping[str, Any] | None = None,
  target: targets.Target | str | None = None,
  options: RewriteOptions | None = None,
  max_temp_growth: float = 0.01,
  unknown_rounds: int = 1000,
) -> LoopPlan:
  """Rewrites the loops of a function if that makes XLA copy less.

  Compiles the function twice, as it is and rewritten; runs neither.

  Args:
    fun: The function, not jitted.
    *args: Its arguments: arrays or `jax.ShapeDtypeStruct`.
    jit_kwargs: What `jax.jit` is to be told, such as `donate_argnums`.
    target: What to compile for; see `jaxmem.report.plan`.
    options: How far to go.
    max_temp_growth: The rewritten function may need that much more temporary
      memory, as a share of what it needs now.
    unknown_rounds: How many rounds to assume where XLA does not know.

  Returns:
    The rewritten function if XLA copies fewer bytes in its loops, and reads and
    writes no more in all; else the one that was given.
  """
  options = options or RewriteOptions()
  jit_kwargs = dict(jit_kwargs or {})
  device = targets.get(target)

  def compiled_copies(function: Callable[..., Any]) -> LoopCopies:
    lowered = targets.lower(jax.jit(function, **jit_kwargs), args, {}, device)
    compiled = lowered.compile(compiler_options=targets.compile_options(device))
    return measure(
      compiled,
      min_bytes=options.min_bytes,
      unknown_rounds=unknown_rounds,
    )

  traced = jax.jit(fun, **jit_kwargs).trace(*args)
  _, changes = rewrite(traced.jaxpr, options)
  before = after = compiled_copies(fun)
  rewritten = fun
  if before.copies and any(change.is_changed for change in changes):
    rewritten = without_copies(fun, options)
    after = compiled_copies(rewritten)
  is_better = (
    after.copied_bytes < before.copied_bytes
    and after.moved_bytes <= before.moved_bytes
    and after.temp_bytes <= before.temp_bytes * (1 + max_temp_growth)
  )
  return LoopPlan(
    function=rewritten if is_better else fun,
    is_changed=is_better,
    changes=changes,
    before=before,
    after=after,
    min_bytes=options.min_bytes,
  )
