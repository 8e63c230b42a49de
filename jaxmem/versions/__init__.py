"""Versions of a step, made before XLA sees it, that a limit is planned on."""

from jaxmem.versions.block_versions import BlockVersion, keeping
from jaxmem.versions.choose import pick, small_planners, smallest_bytes
from jaxmem.versions.limit_cost import budget_of, cost_of_limit
from jaxmem.versions.materialize import materialized
from jaxmem.versions.version import Recipe, Version

__all__ = [
  "BlockVersion",
  "Recipe",
  "Version",
  "budget_of",
  "cost_of_limit",
  "keeping",
  "materialized",
  "pick",
  "small_planners",
  "smallest_bytes",
]
