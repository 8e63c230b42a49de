"""Orders of called computations, many at a time, tried on the whole module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmem_hlo.assignment import AssignmentModel

from jaxmem.planning.tuning import TUNING

Orders = Mapping[int, tuple[int, ...]]


class Trials:
  """Adopts orders of called computations as long as the module stays small.

  A trial predicts the buffers of the whole module. One for each computation
  would take time in proportion to the program's square, so that all orders are
  tried at once, then halves of what takes too much, up to a number of trials.

  Args:
    model: Of the module.
    num_bytes: Its temporaries as it is, which must not become more.
    keeps_savings: Whether what was adopted must not be given away by what is
      adopted later.

  Attributes:
    adopted: Computation id -> instruction ids in execution order.
    num_bytes: Temporaries with what was adopted.
  """

  def __init__(
    self, model: AssignmentModel, num_bytes: int, *, keeps_savings: bool
  ):
    self._model = model
    self._most_bytes = self.num_bytes = num_bytes
    self._keeps_savings = keeps_savings
    self._left = TUNING.order.max_callee_trials
    self.adopted: dict[int, tuple[int, ...]] = {}

  def adopt(self, orders: Orders) -> None:
    """Adopts all of some orders, or what helps of their halves."""
    self._adopt(orders, [*orders])

  def _adopt(self, orders: Orders, callees: Sequence[int]) -> None:
    if not callees or not self._left:
      return
    self._left -= 1
    tried = self.adopted | {callee: orders[callee] for callee in callees}
    num_bytes = self._model.temp_bytes(tried, self._most_bytes)
    if num_bytes <= self._most_bytes:
      self.adopted, self.num_bytes = tried, num_bytes
      if self._keeps_savings:
        self._most_bytes = num_bytes
    elif len(callees) > 1:
      half = len(callees) // 2
      for part in (callees[:half], callees[half:]):
        self._adopt(orders, part)
