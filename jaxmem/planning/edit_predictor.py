"""What edits make of a module, and of its temporaries."""

from __future__ import annotations

import functools
import gc

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem.planning.candidate_tuning import TUNING
from jaxmem.rewrite import Edits, RecomputeRules, apply_edits, recomputable

_TUNING = TUNING.sketch


class EditPredictor:
  """Edits one module, and predicts what XLA's buffer assignment makes of it.

  Args:
    model: The assignment model of a scheduled module.

  Attributes:
    module: The module.
    model: Its assignment model.
    temp_bytes: Temporaries of the module without edits.
    fixed_bytes: Bytes of its arguments and outputs.
  """

  def __init__(self, model: AssignmentModel):
    self.module = model.module
    self.model = model
    assignment = self.model.assign()
    self.temp_bytes = assignment.temp_bytes
    self.fixed_bytes = assignment.program_bytes - assignment.temp_bytes
    self._predicted: dict[Edits, int] = {}

  @functools.cached_property
  def rules(self) -> RecomputeRules:
    """What edits must respect."""
    return recomputable(self.module, self.model.analysis)

  def edited(self, edits: Edits) -> Module:
    """Returns the module with edits."""
    if not edits:
      return self.module
    return apply_edits(self.module, edits, self.model.platform, self.rules)

  def predict(self, edits: Edits) -> int:
    """Returns the temporaries of the edited module, in bytes."""
    if not edits:
      return self.temp_bytes
    if edits not in self._predicted:
      model = AssignmentModel(
        self.edited(edits), self.model.platform, self.model
      )
      self._predicted[edits] = model.temp_bytes()
      del model
      if len(self._predicted) % _TUNING.modules_between_collections == 0:
        # While one plans, the collector is paused; modules are cycles.
        gc.collect(0)
    return self._predicted[edits]
