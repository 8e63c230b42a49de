"""Planners that know all live ranges beforehand, as allocators.

Inference runtimes place by falling size, XLA by size and by duration, and
jaxmem searches: `jaxmem.placement` has the algorithms.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxmem import placement
from jaxmem.experimental.allocators.in_place import chains, hand_overs
from jaxmem.experimental.allocators.trace import Result, Trace, arena_result
from jaxmem.experimental.place_by import place_by

Method = Literal["tflite", "xla", "jaxmem"]

_NAMES = {
  "tflite": "tflite greedy by size",
  "xla": "xla heap",
  "jaxmem": "jaxmem placement",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static:
  """One arena, placed in advance.

  Attributes:
    method: "tflite" places by falling size into the smallest gap (Pisarchyk
      and Lee, 2020); "xla" does what XLA's heap does; "jaxmem" is
      `placement.place`.
    in_place: Whether outputs may be written over operands, all of which then
      lie at one address, in a block of the size of the first.
    alignment_bytes: Of every offset.
    use_solver: Whether "jaxmem" ends with CP-SAT where the heuristics have not
      met the bound, which takes seconds.
  """

  method: Method
  in_place: bool = True
  alignment_bytes: int = 1
  use_solver: bool = True

  def __post_init__(self):
    if self.method not in _NAMES:
      raise ValueError(
        f"method must be one of {sorted(_NAMES)}, got {self.method!r}."
      )

  @property
  def name(self) -> str:
    """For example "xla heap, in-place"."""
    return _NAMES[self.method] + (", in-place" if self.in_place else "")

  def run(self, trace: Trace) -> Result:
    """Serves a trace; see `Allocator`."""
    over = hand_overs(trace) if self.in_place else {}
    groups = chains(trace, over)
    if not groups:
      return arena_result(trace, self.name, {})
    steps = trace.live_steps
    problem = placement.Problem(
      tuple(
        placement.Buffer(
          name=f"{group[0]} {trace.buffers[group[0]].name}",
          size_bytes=trace.buffers[group[0]].size_bytes,
          lower=int(steps[group[0], 0]),
          upper=int(steps[group[-1], 1]),
          alignment_bytes=self.alignment_bytes,
        )
        for group in groups
      )
    )
    solution = self._place(problem)
    offsets = {
      buffer: offset
      for group, offset in zip(groups, solution.offsets, strict=True)
      for buffer in group
    }
    return arena_result(trace, self.name, offsets)

  def _place(self, problem: placement.Problem) -> placement.Solution:
    if self.method == "tflite":
      return place_by(problem, placement.try_by_size)
    if self.method == "xla":
      return place_by(problem, placement.try_xla_heap)
    return placement.place(
      problem, max_deterministic_time=None if self.use_solver else 0
    )
