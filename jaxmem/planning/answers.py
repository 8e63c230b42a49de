"""Answers XLA with the plan of one step."""

from __future__ import annotations

from jaxmem.errors import InfeasibleError
from jaxmem.planning.decided import DecidedModule, DecidedModules
from jaxmem.planning.decision import Decision, PlannedModule
from jaxmem.planning.request import Request


class Answers:
  """Answers XLA with the plan of one step, and keeps it.

  Args:
    request: What is asked of the planner.
    decided: What is known of the step's module, if it was planned already.

  Raises:
    InfeasibleError: If it is known that there is no plan.
  """

  def __init__(self, request: Request, decided: DecidedModule | None):
    self._request = request
    self._decided = DecidedModules()
    if decided is not None:
      if isinstance(decided.outcome, InfeasibleError):
        raise decided.outcome
      self._decided.add(decided)
    self._planned: PlannedModule[Decision] | None = None
    self._error: Exception | None = None

  def __call__(self, data: bytes, platform: str) -> bytes | None:
    """Answers as `compiler_hook.Handler` says, but does not raise."""
    try:
      self._planned, answer = self._request.answer(
        data, platform, self._decided
      )
      return answer
    except Exception as error:  # `planned` raises it.
      self._error = error
      return None

  def planned(self) -> PlannedModule[Decision]:
    """Returns the planned module.

    Raises:
      InfeasibleError: If there is no plan.
      RuntimeError: If planning failed.
    """
    if isinstance(self._error, InfeasibleError):
      raise self._error
    if self._planned is None:
      raise RuntimeError(
        "The step was compiled, but could not be planned. What it holds is not"
        f" modelled; jaxmem.jit would run XLA's own plan. ({self._error})"
      ) from self._error
    return self._planned
