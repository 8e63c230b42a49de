"""The numbers that the choice of recomputes was tuned by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxmem.options import Effort


@dataclasses.dataclass(frozen=True, slots=True)
class SearchWork:
  """How much work an effort allows.

  Attributes:
    num_greedy_runs: Greedy runs that gather a pool.
    pool_solver_work: CP-SAT's deterministic time for a choice from a pool,
      roughly seconds.
    whole_solver_work: The same for a choice from all possible events.
    most_pool_terms: With more in the rows of its program, CP-SAT is not asked
      for a choice from a pool: with three million it took ten seconds to read
      them, and found nothing in the work that it may do
      (docs/budget-choice.md, "Exact").
  """

  num_greedy_runs: int
  pool_solver_work: float
  whole_solver_work: float
  most_pool_terms: int | None = 1_000_000


_WORK: Mapping[Effort, SearchWork] = {
  "fast": SearchWork(4, 0.1, 1.0),
  "normal": SearchWork(6, 0.1, 2.0),
  "prove": SearchWork(24, 20.0, 60.0, most_pool_terms=None),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GreedyTuning:
  """How one greedy run goes on.

  Attributes:
    again_over_kept: An input is made again if that keeps other values alive by
      less than this fraction of the input's own bytes; otherwise it is kept
      longer.
    still_best: A gap from the head of the queue is closed if its worth, found
      anew, is at least this fraction of what the next one was worth.
    most_overtaken: After each move so many gaps from the head of the queue are
      looked at, and the best of them is closed, if none is still the best: with
      many layers, many gaps are worth about the same.
    overtaken_times_candidates: With many values that may be made again, fewer
      gaps are looked at: their number times that of the values comes to this.
    fewest_overtaken: But so many are looked at in any case.
    moves_between_looks: After so many moves all gaps are looked at anew.
    moves_per_candidate: Or after so many for each value that may be made again,
      if that is more: a look takes time with their number.
    joint_gap_counts: How many gaps that keep the same input alive are closed
      at once, besides all of them.
    joint_move_tries: How many groups of gaps are tried before a joint move is
      given up.
    most_joint_moves: A run that needs more hardly ever fits.
    work_per_step: A run is given up when it has looked into so many closures,
      and inputs of these, for each step of the order. Runs that fit were seen
      to look into up to 36 closures, but for those of one step (`sam_mlp`, up
      to 115), whose smallest program is 1 % larger for it. The first look at
      all gaps may take as many besides: of long chains it takes most, and
      whether it has to be made depends on the runs before.
  """

  again_over_kept: float = 0.6
  still_best: float = 0.999
  most_overtaken: int = 128
  overtaken_times_candidates: int = 256_000
  fewest_overtaken: int = 16
  moves_between_looks: int = 100
  moves_per_candidate: float = 0.05
  joint_gap_counts: tuple[int, ...] = (2, 3, 4, 6)
  joint_move_tries: int = 6
  most_joint_moves: int = 4
  work_per_step: int = 60


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolTuning:
  """Which greedy runs gather a pool.

  Attributes:
    true_cost_depths: `Style.depth` of the runs with true costs. Deep runs
      commit themselves to long chains early: GPT-2 on a CPU at 37 % costs 6.3 %
      with a depth of 2 and 9.2 % with one of 20 (docs/budget-choice.md,
      "Greedy").
    last_depth: `Style.depth` of one more run where those do not fit.
    last_depth_miss: That run is made if they miss the limit by no more than
      this factor.
    seed: Of the random numbers of noisy runs.
    noisy_depths: A noisy run's `Style.depth` is one of these.
    noisy_exponents: A noisy run's `Style.exponent` is one of these.
    cost_noises: Standard deviations of the logarithm of what a noisy run
      multiplies costs by.
    noisy_aims: What a noisy run aims at, as a fraction of the limit.
  """

  true_cost_depths: tuple[int, ...] = (2, 8)
  last_depth: int = 12
  last_depth_miss: float = 1.25
  seed: int = 0
  noisy_depths: tuple[int, ...] = (2, 4, 8)
  noisy_exponents: tuple[float, ...] = (0.5, 1.0, 2.0)
  cost_noises: tuple[float, ...] = (0.2, 0.6, 1.2)
  noisy_aims: tuple[float, ...] = (0.9, 0.95, 1.0, 1.0, 1.05)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTuning:
  """What the searches of this package do, and how often.

  A field that names no source was set by hand when its search was written. It
  has been held since against the rows of `benchmarks/budget_benchmark.py`
  (docs/budget.md) and the random steps of `benchmarks/limit_sweep_benchmark.py`
  together with all others; no sweep of that field alone is on record.

  Attributes:
    greedy: Of each greedy run.
    pool: Of the greedy runs about a limit.
    work: What each effort allows. `whole_solver_work` keeps a step of 29
      instructions from taking 20 to 50 s (docs/budget-choice.md, "Exact").
    most_events_of_small_problem: A problem with no more possible events is
      chosen from at once.
    smallest_plan_steps: The search for the smallest plan aims at these
      fractions of the smallest peak so far, one after the other.
    num_values_moved: How many values go to the host in the variants that are
      tried.
    moving_depth: `Style.depth` of the greedy runs that compare these variants.
    least_moved_bytes: Smaller values stay on the device: their copies would be
      more launches than bytes.
    least_moved_limit_parts: Where the limit is small, values of at least one of
      so many parts of it may move as well.
  """

  greedy: GreedyTuning = GreedyTuning()
  pool: PoolTuning = PoolTuning()
  work: Mapping[Effort, SearchWork] = dataclasses.field(
    default_factory=lambda: _WORK
  )
  most_events_of_small_problem: int = 400
  smallest_plan_steps: tuple[float, ...] = (0.8, 0.93, 0.98)
  num_values_moved: tuple[int, ...] = (6, 32)
  moving_depth: int = 2
  least_moved_bytes: int = 1 << 20
  least_moved_limit_parts: int = 100


TUNING = BudgetTuning()
