"""What a user may choose about planning."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal, get_args

Effort = Literal["fast", "normal", "prove"]
# What commands say of `Options.effort`.
EFFORT_ARGUMENT: Final[dict[str, Any]] = {
  "choices": get_args(Effort),
  "default": "normal",
  "help": "how hard to search: fast takes the first plan that fits, prove"
  " spends up to minutes on bounds; default: %(default)s",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
  """Planning options; the defaults suit train steps.

  Attributes:
    effort: "fast" for a few search passes, and under a limit the first plan
      that fits, of the step as it is written unless another version is
      estimated to be faster by much; "normal", which looks for cheaper ones; or
      "prove" to spend up to minutes on proving orders optimal, and on bounding
      what a limit takes. Work is counted, never clocked.
    min_gain: Fraction of XLA's temporary bytes that a new order must save;
      otherwise XLA's own order is kept, since any change of order can cost
      time.
    max_slowdown: By what share of the estimated time of XLA's own schedule a
      plan may be slower, because collectives are hidden less behind kernels.
      By default the plan takes the fewest bytes of those that are as fast.
    offload: Whether a byte limit may move values to the host's memory and
      back; only on GPUs, and only where nobody has to wait for the copies.
    remove_copies: Whether copies of donated arguments that an order makes
      needless are removed.
    keep_arena: Whether, on CPUs, a function that was jitted keeps the memory of
      its temporaries from call to call, which saves the time that fresh memory
      takes. `jit` then returns a callable with the attributes of a jitted
      function, and no argument may be static.
    verify: Whether every plan is replayed read by read against the predicted
      buffer assignment before XLA gets it; a plan that fails is dropped.
  """

  effort: Effort = "normal"
  min_gain: float = 0.01
  max_slowdown: float = 0.0
  offload: bool = True
  remove_copies: bool = True
  keep_arena: bool = False
  verify: bool = False

  def __post_init__(self):
    if self.effort not in get_args(Effort):
      raise ValueError(
        f"effort must be 'fast', 'normal' or 'prove', got {self.effort!r}."
      )
    is_number = isinstance(self.min_gain, int | float)
    if not (is_number and 0.0 <= self.min_gain < 1.0):
      raise ValueError(
        f"min_gain must be a fraction in [0, 1), got {self.min_gain!r}."
      )

    is_number = isinstance(self.max_slowdown, int | float)
    if not (is_number and self.max_slowdown >= 0.0):
      raise ValueError(
        "max_slowdown must be a fraction of at least 0, got"
        f" {self.max_slowdown!r}."
      )

  @classmethod
  def of(cls, given: Any) -> Options:
    """Returns what a user gave as options; the defaults for None.

    Raises:
      TypeError: If they are no `Options`.
    """
    if given is None:
      return cls()
    if not isinstance(given, cls):
      raise TypeError(
        f"options must be jaxmem.Options, got {given!r}; write e.g."
        " options=jaxmem.Options(effort='fast')."
      )
    return given
