"""Plans that wait until XLA shows the module they were made for once more.

A byte limit is planned for while the step is traced, on modules of compiles
that end at the schedule. The module that runs comes of another compile; but for
names it is the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading

from jaxmem_hlo.module import Module
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.errors import InfeasibleError
from jaxmem.planning.decision import Decision

# A plan is a list of ids. Where more modules wait, the first are planned anew.
_MAX_WAITING = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecidedModule:
  """What planning a module led to.

  Attributes:
    fingerprint: A hash of all of the module that a plan depends on.
    outcome: The plan, or why there is none.
  """

  fingerprint: bytes
  outcome: Decision | InfeasibleError

  @classmethod
  def of(
    cls, module: Module, platform: str, outcome: Decision | InfeasibleError
  ) -> DecidedModule:
    """Names a module by its fingerprint.

    Args:
      module: The module, whatever its functions are called.
      platform: "cpu" or "cuda".
      outcome: The plan, or why there is none.
    """
    return cls(fingerprint=_fingerprint(module, platform), outcome=outcome)


class DecidedModules:
  """The latest modules that were planned under one request.

  Several threads may compile at once.
  """

  def __init__(self):
    self._lock = threading.Lock()
    self._outcomes: dict[bytes, Decision | InfeasibleError] = {}

  def add(self, decided: DecidedModule) -> None:
    """Keeps what a module led to; forgets the oldest of too many."""
    with self._lock:
      self._outcomes[decided.fingerprint] = decided.outcome
      while len(self._outcomes) > _MAX_WAITING:
        del self._outcomes[next(iter(self._outcomes))]

  def find(self, module: Module, platform: str) -> Decision | None:
    """Returns the plan that was made for a module, if it is known.

    Raises:
      InfeasibleError: If it is known that there is none.
    """
    if not self._outcomes:
      return None
    outcome = self._outcomes.get(_fingerprint(module, platform))
    if isinstance(outcome, InfeasibleError):
      raise outcome
    return outcome


def _fingerprint(module: Module, platform: str) -> bytes:
  """Returns a hash of all that a plan depends on.

  The names of the function and of scopes, which hold the mark, and what the
  messages here do not know differ between compiles of one step.
  """
  proto = hlo_pb2.Module()
  proto.CopyFrom(module.proto)
  proto.ClearField("name")
  proto.ClearField("id")
  proto.ClearField("stack_frame_index")
  for computation in proto.computations:
    for instruction in computation.instructions:
      instruction.ClearField("metadata")
  proto.DiscardUnknownFields()
  data = proto.SerializeToString(deterministic=True)
  return hashlib.sha256(platform.encode() + data).digest()
