"""The processes of one program run the same plan, or all of them none.

Collectives wait for each other: a process that runs another order than the rest
makes all of them wait without end. Plans are the same wherever a module is, so
each process plans by itself; before XLA goes on, each tells the others what it
was shown and what it would run.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping

import jax

from jaxmem.compiler import processes
from jaxmem.errors import PlanningError

_TIMEOUT_VARIABLE = "JAXMEM_PROCESSES_TIMEOUT_S"
_DEFAULT_TIMEOUT_S = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Told:
  """What one process says of a compile.

  Attributes:
    given: The fingerprint of the module that XLA showed; empty if the program
      came out of a cache.
    planned: That of the module it would run.
    error: Why it runs none, if so.
  """

  given: str = ""
  planned: str = ""
  error: str = ""


class Agreement:
  """One compile of a program that runs in several processes.

  Args:
    function: The function's name.
    number: How many such compiles of that name came before.
    members: The processes.
  """

  def __init__(self, function: str, number: int, members: tuple[int, ...]):
    self._function = function
    self._key = f"{function}/{number}"
    self._members = members
    self.has_told = False

  def tell(self, told: Told) -> None:
    """Tells the others, once."""
    self.has_told = True
    processes.tell(self._key, json.dumps(dataclasses.asdict(told)))

  def settle(self, told: Told) -> bool:
    """Tells the others and hears them.

    Args:
      told: What this process says.

    Returns:
      Whether all run what they said. If not, all run XLA's own plan.

    Raises:
      PlanningError: If the processes compile different programs, if one fails,
        or does not answer in time.
    """
    self.tell(told)
    heard = {p: self._hear(p) for p in self._members}
    heard = {p: each for p, each in heard.items() if each.given or each.error}
    failed = {p: each.error for p, each in heard.items() if each.error}
    if failed and not told.error:
      process, why = next(iter(failed.items()))
      raise self._error(f"process {process} failed: {why}")
    self._check_same({p: e.given for p, e in heard.items() if e.given})
    return len({each.planned for each in heard.values() if each.given}) < 2

  def _hear(self, process: int) -> Told:
    timeout_s = _timeout_s()
    answer = processes.ask(self._key, process, timeout_s)
    if answer is None:
      raise self._error(
        f"process {process} did not say within {timeout_s:g} s what it runs;"
        f" {_TIMEOUT_VARIABLE} allows more"
      )
    return Told(**json.loads(answer))

  def _check_same(self, given: Mapping[int, str]) -> None:
    own = given.get(jax.process_index())
    others = [p for p, each in given.items() if own and each != own]
    if others:
      raise self._error(
        f"process {others[0]} compiles another program than process"
        f" {jax.process_index()} (module {given[others[0]][:12]}, not"
        f" {own[:12] if own else ''}); all of them have to trace the same step"
        " on the same shapes"
      )

  def _error(self, why: str) -> PlanningError:
    return PlanningError(
      f"The processes of {self._function} do not agree on what they run: {why}."
    )


def _timeout_s() -> float:
  written = os.environ.get(_TIMEOUT_VARIABLE, "")
  try:
    seconds = float(written) if written else _DEFAULT_TIMEOUT_S
  except ValueError:
    seconds = 0.0
  if seconds <= 0:
    raise ValueError(
      f"{_TIMEOUT_VARIABLE} must be a number of seconds, got {written!r}."
    )
  return seconds
