"""The numbers that the search for edits of an ordered module was tuned by."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SketchTuning:
  """How the limit of live bytes falls until a sketch fits.

  Attributes:
    most_limits: A sketch that does not fit after so many limits is given up.
    most_missed: In views that count fewer bytes, so many limits are tried that
      sketches do not keep: VGG-16 at 36 % of `budget_benchmark` needs three.
    first_lowering: The least and the most that the first sketch that does not
      fit lowers the limit by, as fractions of it. Both double each time.
    least_lowering: After a plan that does not fit, the next limit is at most
      this fraction of its live bytes.
    sure_miss: Where what is found takes more than so many times the room,
      further views are not searched.
    alike_share: A view in which a plan found in vain takes at most this share
      less than in the view it was found in is not searched for that room.
    modules_between_collections: The garbage collector is run after so many
      edited modules.
  """

  most_limits: int = 10
  most_missed: int = 4
  first_lowering: tuple[float, float] = (0.005, 0.04)
  least_lowering: float = 0.995
  sure_miss: float = 1.03
  alike_share: float = 0.001
  modules_between_collections: int = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefineTuning:
  """Which limits of live bytes are tried for a cheaper plan than a sketch.

  Attributes:
    lowest: While nothing is found, limits go down to this fraction of the
      sketch's live bytes. ViT-B/16 on a CPU at 30 % of `budget_benchmark` costs
      11.5 % by that instead of 13.0.
    num_limits: How many limits are tried: with more nothing was found
      (docs/budget-choice.md, "Temporaries").
    greedy_scale: How many times as many greedy runs as usual are made for
      short orders. What more runs cost and gain is in the same place.
    few_steps: The most steps of a short order.
    packing_luck: By which fraction of the room a plan may be packed more
      tightly than any that was seen.
    least_saving: A search that could save no more than this fraction of what
      the edits cost is not made.
    least_step_share: The same as a fraction of the step's seconds; estimates
      are off by more.
    least_distance: Limits closer than this fraction of the upper one are not
      told apart.
  """

  lowest: float = 0.94
  num_limits: int = 4
  greedy_scale: int = 2
  few_steps: int = 500
  packing_luck: float = 0.005
  least_saving: float = 0.002
  least_step_share: float = 0.002
  least_distance: float = 0.003


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTuning:
  """How limits of live bytes are moved until predicted temporaries fit.

  A field that names no source was set by hand when its search was written. It
  has been held since against the rows of `benchmarks/budget_benchmark.py`
  (docs/budget.md) and the random steps of `benchmarks/limit_sweep_benchmark.py`
  together with all others; no sweep of that field alone is on record.

  Attributes:
    sketch: Of the first plans.
    refine: Of the searches for cheaper ones.
  """

  sketch: SketchTuning = SketchTuning()
  refine: RefineTuning = RefineTuning()


TUNING = CandidateTuning()
