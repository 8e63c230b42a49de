"""Decides what becomes of one scheduled module: its order, and edits of it."""

from jaxmem.planning.aim import Wanted
from jaxmem.planning.answers import Answers
from jaxmem.planning.collector import paused_collector
from jaxmem.planning.decided import (
  DecidedFields,
  DecidedModule,
  DecidedModules,
  fingerprint,
)
from jaxmem.planning.decision import (
  Decision,
  LimitPlan,
  ModulePlan,
  PlannedModule,
)
from jaxmem.planning.fit import LimitPlanner
from jaxmem.planning.frontier import plan_frontier
from jaxmem.planning.own_plan import OwnPlan
from jaxmem.planning.recheck import check_again
from jaxmem.planning.request import Request
from jaxmem.planning.smallest_program import smallest_program_bytes
from jaxmem.planning.tuning import TUNING

__all__ = [
  "TUNING",
  "Answers",
  "DecidedFields",
  "DecidedModule",
  "DecidedModules",
  "Decision",
  "LimitPlan",
  "LimitPlanner",
  "ModulePlan",
  "OwnPlan",
  "PlannedModule",
  "Request",
  "Wanted",
  "check_again",
  "fingerprint",
  "paused_collector",
  "plan_frontier",
  "smallest_program_bytes",
]
