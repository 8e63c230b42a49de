"""The numbers that planning was tuned with, and what they were measured by.

They steer how much is tried, never whether a plan is right: every order is
checked, and every plan priced by the assignment model. Whoever changes one
compares the rows of the benchmark that is named with it, before and after.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderTuning:
  """How the order of a module is chosen: `benchmarks.order_benchmark`.

  Attributes:
    alike_ratio: Orders whose bytes are no more than this many times the
      fewest count as equally good. Of those the one closest to XLA's order is
      taken, which is the least likely to cost time.
    max_priced: How many orders are priced with the assignment model at most.
    quick_flows: How many minimum cuts the quick bound of an order computes.
    callee_flows: The same where a called computation's own order is not proven.
    max_callee_trials: How often orders of called computations are tried on the
      whole module at most.
  """

  alike_ratio: float = 1.002
  max_priced: int = 8
  quick_flows: int = 20
  callee_flows: int = 150
  max_callee_trials: int = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverlapTuning:
  """How transfers are hidden: the rows of docs/host.md and docs/devices.md.

  XLA's packing adds some bytes to those that are live, so orders are made for
  lower and lower limits of live bytes until one fits.

  Attributes:
    num_limits: How many limits are tried.
    least_lowering: The least share of a limit by which the next is lower.
    tight_shares: Shares of the live bytes of the order that is walked; the
      limits that are tried where time is given, and bytes are to be few.
    lead: A transfer begins so many times its own seconds before it is needed.
    num_looked_at: How many kernels, and how many transfers, are looked at to
      find one that need not wait.
    num_passed_over: How many transfers of a link are passed over that have to
      wait for kernels, or for memory.
    num_pulled: How many kernels may run earlier so that a transfer can begin.
    num_filled: How many waits are filled with kernels that ran before.
  """

  num_limits: int = 8
  least_lowering: float = 0.02
  tight_shares: tuple[float, ...] = (0.8, 0.85, 0.9, 0.95, 1.0)
  lead: float = 1.5
  num_looked_at: int = 32
  num_passed_over: int = 4
  num_pulled: int = 4
  num_filled: int = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitTuning:
  """How a module is made to fit: `benchmarks.budget_benchmark`.

  The room is the number of bytes that temporaries may take. A sketch is a plan
  that little time was spent on. See docs/budget-choice.md, "Temporaries".

  Attributes:
    first_live_share: The first limit of live bytes, as a share of the room.
      XLA packs most orders so tightly; whether a higher limit does is seen when
      a sketch is refined.
    dropped_sketch_ratio: A sketch that costs so many times what the cheapest
      does is not followed any longer.
    other_order_ratio: An estimate on XLA's order has to be below this many
      times the cheapest sketch on the planned order to be followed.
    negligible_step_share: Edits that cost no more than this share of the step
      are not looked for on XLA's order.
    sketched_share: At least this share of the cost of a sketch is left when it
      is refined.
    few_steps: The most instructions of an order in which packing is a matter of
      luck: more than one sketch is refined there.
    most_refined_sketches: So many at most. With one, U-Net at 40 % of
      `budget_benchmark` cost 1.5 % of the step more; a third changed no plan.
    refined_sketch_ratio: Of these, one that costs more than so many times the
      cheapest is not.
    hiding_room_shares: Shares of the room that edits are chosen for where
      collectives are to be hidden in the rest: `benchmarks.devices_benchmark`.
    shrinking_share: The share of the smallest plan's bytes that the next sketch
      is asked for; measured by `benchmarks.limit_sweep_benchmark`, which plans
      for the smallest bytes that an error names.
  """

  first_live_share: float = 0.99
  dropped_sketch_ratio: float = 1.1
  other_order_ratio: float = 0.99
  negligible_step_share: float = 0.001
  sketched_share: float = 0.75
  few_steps: int = 400
  most_refined_sketches: int = 2
  refined_sketch_ratio: float = 1.3
  hiding_room_shares: tuple[float, ...] = (1.0, 0.97, 0.94, 0.9, 0.85)
  shrinking_share: float = 0.98


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromiseTuning:
  """For how many temporaries plans are made: docs/budget.md, "Executed".

  Attributes:
    estimated_live_share: The limit of live bytes of an estimate, as a share of
      the room. An estimate had better be too low: temporaries that move into
      the memory of arguments may make up for more.
    lower_room_shares: Shares of the temporaries without edits that plans are
      made for although there is room for more, where mapping those takes longer
      than edits do: `benchmarks.executed_time_benchmark`.
    least_gain_share: Of a step's seconds: where mapping may take no more less,
      plans for fewer temporaries are not looked at.
    least_leap: The least share of such a room that a plan is made for which
      needs no mapping.
    sure_mapping_share: The share of `Device.mapping_s` that mapping takes by
      itself (`benchmarks.kernel_time_benchmark`); the rest is what programs of
      few temporaries save otherwise.
  """

  estimated_live_share: float = 1.04
  lower_room_shares: tuple[float, ...] = (0.875, 0.75, 0.625, 0.5, 0.375, 0.25)
  least_gain_share: float = 0.01
  least_leap: float = 0.4
  sure_mapping_share: float = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionTuning:
  """Which versions of a step are compiled: `benchmarks.budget_benchmark`.

  See docs/blocks.md, which has the table that the weights were fitted to.

  Attributes:
    fused_weight: What is fused anew counts as this share of its estimate, which
      made estimates of blocks agree with their schedules.
    hopeful_share: A version that recomputes takes at least this share of its
      estimated seconds.
    doubt_share: A version whose blocks keep something may take this share of
      the step less than that. On GPUs XLA fuses what products read into them,
      so that next to nothing is made again, or writes it all the same. On CPUs
      to keep what products make spares more than the products: executed, plans
      took 2 to 12 % less for it (`benchmarks.executed_time_benchmark`).
    refined_share: At least this share of the estimated cost of edits is left
      when they are refined.
    usual_share: At least this share of the cost of a sketch is left, in most
      cases: what would need more is not refined to rule a compile out.
    least_joined_share: Where blocks at most save this share of the bytes of the
      version that recomputes each on its own by being joined, the smallest
      program is not looked for there.
    max_divisions: How often blocks are joined to larger ones.
    max_updated: How many versions are tried with updates in loops, and as
      often with more of them.
    quick_gain_share: With effort "fast", another version is compiled where it
      is estimated to be faster by this share of the step, or nothing fits.
    usual_dropped_share: Of the bytes that blocks drop in the jaxpr, a program
      mostly takes this share less.
    moved_share: Of what goes to the host and back in a step, this share surely
      leaves before most is live: blocks may keep as much more.
  """

  fused_weight: float = 0.75
  hopeful_share: float = 0.93
  doubt_share: float = 0.06
  refined_share: float = 0.85
  usual_share: float = 0.9
  least_joined_share: float = 0.02
  max_divisions: int = 3
  max_updated: int = 2
  quick_gain_share: float = 0.05
  usual_dropped_share: float = 0.5
  moved_share: float = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopTuning:
  """How much less loops stack: `benchmarks.budget_benchmark`.

  Attributes:
    stacked_shares: Shares of what loops stack that are tried whatever the limit
      is: to stack less can save time, and what a limit allows, a larger one
      must find, too.
    spare_share: Where what is dropped leaves more than this share of what that
      saves to spare, less is tried.
    all_share: On GPUs, what makes all again that loops would stack is tried
      where it is estimated to take at most this share of the step longer
      than the fastest that fits.
    but_products_share: Likewise, of what makes all again but products. XLA was
      found to take up to this share of the step less for it than estimated.
  """

  stacked_shares: tuple[float, ...] = (0.5, 0.75, 0.875)
  spare_share: float = 0.1
  all_share: float = 0.01
  but_products_share: float = 0.06


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
  """All of them.

  Attributes:
    order: For `planning.reorder`.
    overlap: For `planning.overlap`.
    fit: For `planning.fit`.
    promise: For `planning.promise`.
    versions: For `versions.tried_versions` and what searches with it.
    loops: Likewise.
  """

  order: OrderTuning = OrderTuning()
  overlap: OverlapTuning = OverlapTuning()
  fit: FitTuning = FitTuning()
  promise: PromiseTuning = PromiseTuning()
  versions: VersionTuning = VersionTuning()
  loops: LoopTuning = LoopTuning()


TUNING = Tuning()
