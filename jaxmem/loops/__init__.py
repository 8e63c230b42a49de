"""Loops that do not copy what they carry: see docs/loops.md.

plan = loops.remove_copies(step, *args)
print(plan)
fast = jax.jit(plan.function)
"""

from jaxmem.loops.carries import (
  Carries,
  Prediction,
  analyze,
  choose_rounds,
  predict,
)
from jaxmem.loops.measure import LoopCopies, LoopCopy, measure
from jaxmem.loops.remove import LoopPlan, remove_copies
from jaxmem.loops.rewrite import LoopChange, Options, rewrite, without_copies

__all__ = [
  "Carries",
  "LoopChange",
  "LoopCopies",
  "LoopCopy",
  "LoopPlan",
  "Options",
  "Prediction",
  "analyze",
  "choose_rounds",
  "measure",
  "predict",
  "remove_copies",
  "rewrite",
  "without_copies",
]
