"""Reports of a plan: what was saved, how far from the bound, and why."""

from jaxmem.report import donation, layout, signature
from jaxmem.report.frontier import Frontier, Point
from jaxmem.report.plan import Budget, HostTraffic, Plan
from jaxmem.report.progress import Progress

__all__ = [
  "Budget",
  "Frontier",
  "HostTraffic",
  "Plan",
  "Point",
  "Progress",
  "donation",
  "layout",
  "signature",
]
