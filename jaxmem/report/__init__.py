"""Reports of a plan: what was saved, how far from the bound, and why."""

from jaxmem.report import donation, edit_costs, layout, signature
from jaxmem.report.communication import (
  Communication,
  Exchange,
  Replicated,
  communication_of,
  replicated,
  resharded,
)
from jaxmem.report.explain import explain_rows
from jaxmem.report.frontier import Frontier, Point
from jaxmem.report.hints import hints
from jaxmem.report.notebook import batch_fragment
from jaxmem.report.peak import PeakRow, peak_rows
from jaxmem.report.plan import Plan, PlannedProgram
from jaxmem.report.plan_data import (
  Budget,
  EditCost,
  HostTraffic,
  LimitShare,
  Status,
)
from jaxmem.report.plan_json import read_fields
from jaxmem.report.plan_page import plan_html
from jaxmem.report.progress import Progress
from jaxmem.report.timeline import Table
from jaxmem.report.timing import time_steps
from jaxmem.report.value_origins import ValueOrigins, origins_in

__all__ = [
  "Budget",
  "Communication",
  "EditCost",
  "Exchange",
  "Frontier",
  "HostTraffic",
  "LimitShare",
  "PeakRow",
  "Plan",
  "PlannedProgram",
  "Point",
  "Progress",
  "Replicated",
  "Status",
  "Table",
  "ValueOrigins",
  "batch_fragment",
  "communication_of",
  "donation",
  "edit_costs",
  "explain_rows",
  "hints",
  "layout",
  "origins_in",
  "peak_rows",
  "plan_html",
  "read_fields",
  "replicated",
  "resharded",
  "signature",
  "time_steps",
]
