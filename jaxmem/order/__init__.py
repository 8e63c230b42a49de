"""Orderers: one per file, one signature, all deterministic."""

from jaxmem.order import exact, reachability
from jaxmem.order.contraction import Contraction, contract
from jaxmem.order.exact import cpsat_order
from jaxmem.order.nearness import displacement, stay_close
from jaxmem.order.planner import Effort, bring_closer, plan_order, unchanged
from jaxmem.order.probing import ProbeResult, refute
from jaxmem.order.result import OrderResult
from jaxmem.order.search import search

__all__ = [
  "Contraction",
  "Effort",
  "OrderResult",
  "ProbeResult",
  "bring_closer",
  "contract",
  "cpsat_order",
  "displacement",
  "exact",
  "plan_order",
  "reachability",
  "refute",
  "search",
  "stay_close",
  "unchanged",
]
