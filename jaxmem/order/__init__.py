"""Orderers: one per file, one protocol, all deterministic."""

from jaxmem.order import reachability
from jaxmem.order.contraction import Contraction, contract
from jaxmem.order.displacement import reduce_displacement, total_displacement
from jaxmem.order.exact import CpSatOrderer
from jaxmem.order.planner import plan_order
from jaxmem.order.probing import ProbingProver
from jaxmem.order.result import Orderer, OrderResult, unchanged
from jaxmem.order.search import MinCutSearch

__all__ = [
  "Contraction",
  "CpSatOrderer",
  "MinCutSearch",
  "OrderResult",
  "Orderer",
  "ProbingProver",
  "contract",
  "plan_order",
  "reachability",
  "reduce_displacement",
  "total_displacement",
  "unchanged",
]
