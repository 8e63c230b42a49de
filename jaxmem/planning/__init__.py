"""Decides what becomes of one scheduled module: its order, and edits of it."""

from jaxmem.planning.fit import LimitPlan, LimitPlanner
from jaxmem.planning.request import Decided, Request, apply

__all__ = ["Decided", "LimitPlan", "LimitPlanner", "Request", "apply"]
