"""Placement: an offset in one arena for buffers of known live ranges.

    solution = place(problem, capacity)

runs the placers below, cheap ones first. Each takes `(problem, capacity=None)`
and returns a `Solution`, which `validate` checks independently.

    solution = fill_pools(problem, capacities)

chooses what goes into pools of limited capacity.
"""

from jaxmem.placement.best_fit import greedy_by_size
from jaxmem.placement.cp_sat import cp_sat
from jaxmem.placement.csv_format import from_csv, places_from_csv, to_csv
from jaxmem.placement.fullest_first import fullest_first
from jaxmem.placement.iterated import iterated
from jaxmem.placement.large_first import large_first
from jaxmem.placement.late_reuse import late_reuse
from jaxmem.placement.lowest_floor import lowest_floor
from jaxmem.placement.pools import (
  Place,
  PoolSolution,
  fill_pools,
  greedy_pools,
  outside_cost,
  validate_pools,
)
from jaxmem.placement.portfolio import place
from jaxmem.placement.problem import (
  Buffer,
  Gap,
  InfeasiblePlacementError,
  Problem,
  Solution,
)
from jaxmem.placement.pyramid import nested, pyramid
from jaxmem.placement.table import Table
from jaxmem.placement.validate import validate
from jaxmem.placement.xla import xla_heap

__all__ = [
  "Buffer",
  "Gap",
  "InfeasiblePlacementError",
  "Place",
  "PoolSolution",
  "Problem",
  "Solution",
  "Table",
  "cp_sat",
  "fill_pools",
  "from_csv",
  "fullest_first",
  "greedy_by_size",
  "greedy_pools",
  "iterated",
  "large_first",
  "late_reuse",
  "lowest_floor",
  "nested",
  "outside_cost",
  "place",
  "places_from_csv",
  "pyramid",
  "to_csv",
  "validate",
  "validate_pools",
  "xla_heap",
]
