"""Loops that do not copy what they carry: see docs/loops.md.

plan = loops.remove_copies(step, *args)
print(plan)
fast = jax.jit(plan.function)

`carries` predicts from the jaxpr which carries XLA will copy, and after how
many rounds in a body it need not. `rewrite` writes the loops anew, with
`ordering` for what has to wait within a round and `while_loops` for loops
without a fixed length; `measure` counts the copies in what XLA compiled, and
`remove` compares.
"""

from jaxmem.experimental.loops.carries import (
  Carries,
  Prediction,
  analyze,
  choose_rounds,
  predict,
)
from jaxmem.experimental.loops.measure import LoopCopies, LoopCopy, measure
from jaxmem.experimental.loops.remove import LoopPlan, remove_copies
from jaxmem.experimental.loops.rewrite import (
  LoopChange,
  RewriteOptions,
  rewrite,
  without_copies,
)

__all__ = [
  "Carries",
  "LoopChange",
  "LoopCopies",
  "LoopCopy",
  "LoopPlan",
  "Prediction",
  "RewriteOptions",
  "analyze",
  "choose_rounds",
  "measure",
  "predict",
  "remove_copies",
  "rewrite",
  "without_copies",
]
