"""Placement: an offset in one arena for buffers of known live ranges.

    solution = place(problem, capacity)

tries several placers, cheap ones first. Each takes a `PlacementSearch` and
offers it placements. `validate` checks a solution independently.

    solution = fill_pools(problem, capacities)

chooses what goes into pools of limited capacity.
"""

from jaxmem.placement.check_placement import validate
from jaxmem.placement.csv_format import from_csv, places_from_csv, to_csv
from jaxmem.placement.heaps import nested, try_by_size, try_xla_heap
from jaxmem.placement.late_reuse import late_reuse
from jaxmem.placement.lowest_floor import try_floors
from jaxmem.placement.pools import (
  Place,
  PoolSolution,
  fill_pools,
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
from jaxmem.placement.search import PlacementSearch
from jaxmem.placement.table import Table

__all__ = [
  "Buffer",
  "Gap",
  "InfeasiblePlacementError",
  "Place",
  "PlacementSearch",
  "PoolSolution",
  "Problem",
  "Solution",
  "Table",
  "fill_pools",
  "from_csv",
  "late_reuse",
  "nested",
  "place",
  "places_from_csv",
  "to_csv",
  "try_by_size",
  "try_floors",
  "try_xla_heap",
  "validate",
  "validate_pools",
]
