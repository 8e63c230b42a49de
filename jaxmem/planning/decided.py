"""Plans that wait until XLA shows the module they were made for once more.

A byte limit is planned for while the step is traced, on modules of compiles
that end at the schedule. The module that runs comes of another compile; but for
names it is the same, and so it is in the process that is started next: what was
decided can be kept as plain fields.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import threading

from jaxmem_hlo.module import Module
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.errors import InfeasibleError, NeededBuffer
from jaxmem.planning.decision import Decision, LimitPlan

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
    return cls(fingerprint=fingerprint(module, platform), outcome=outcome)

  def led_to(self, outcome: Decision | InfeasibleError) -> bool:
    """Whether something is this outcome, or an error that says the same."""
    if not isinstance(outcome, InfeasibleError):
      return self.outcome is outcome
    ours = self.outcome
    is_error = isinstance(ours, InfeasibleError)
    return is_error and _Infeasible.of(ours) == _Infeasible.of(outcome)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Infeasible:
  """The fields of an `InfeasibleError`."""

  message: str
  smallest_bytes: int
  lower_bound_bytes: int
  buffers: tuple[NeededBuffer, ...]

  @classmethod
  def of(cls, error: InfeasibleError) -> _Infeasible:
    """Takes the fields of an error."""
    return cls(
      message=str(error),
      smallest_bytes=error.smallest_bytes,
      lower_bound_bytes=error.lower_bound_bytes,
      buffers=error.buffers,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecidedFields:
  """What planning a module for a limit led to, in fields of JSON's types.

  Attributes:
    fingerprint: The module's, in hexadecimal digits.
    plan: The plan, if there is one.
    error: Why there is none, otherwise.
  """

  fingerprint: str
  plan: LimitPlan | None
  error: _Infeasible | None

  @classmethod
  def of(cls, decided: DecidedModule) -> DecidedFields:
    """Takes the fields of what was decided under a limit."""
    fingerprint, outcome = decided.fingerprint.hex(), decided.outcome
    if not isinstance(outcome, InfeasibleError):
      assert isinstance(outcome, LimitPlan)
      return cls(fingerprint=fingerprint, plan=outcome, error=None)
    error = _Infeasible.of(outcome)
    return cls(fingerprint=fingerprint, plan=None, error=error)

  def decided(self) -> DecidedModule:
    """Returns what was decided.

    Raises:
      ValueError: If the fields are not those of a decided module.
    """
    outcome: LimitPlan | InfeasibleError | None = self.plan
    if self.error is not None:
      outcome = InfeasibleError(
        self.error.message,
        smallest_bytes=self.error.smallest_bytes,
        lower_bound_bytes=self.error.lower_bound_bytes,
        buffers=self.error.buffers,
      )
    if outcome is None:
      raise ValueError("Neither a plan nor an error.")
    return DecidedModule(
      fingerprint=bytes.fromhex(self.fingerprint), outcome=outcome
    )


class DecidedModules:
  """The latest modules that were planned under one request.

  Several threads may compile at once.
  """

  def __init__(self):
    self._lock = threading.Lock()
    # Of errors copies: one that was raised holds all that was on the stack, the
    # user's arrays too.
    self._outcomes: dict[bytes, Decision | InfeasibleError] = {}

  def add(self, decided: DecidedModule) -> None:
    """Keeps what a module led to; forgets the oldest of too many."""
    outcome = decided.outcome
    if isinstance(outcome, InfeasibleError):
      outcome = copy.copy(outcome)
    with self._lock:
      self._outcomes[decided.fingerprint] = outcome
      while len(self._outcomes) > _MAX_WAITING:
        del self._outcomes[next(iter(self._outcomes))]

  def all(self) -> tuple[DecidedModule, ...]:
    """Returns what is kept, oldest first."""
    with self._lock:
      return tuple(
        DecidedModule(fingerprint=fingerprint, outcome=outcome)
        for fingerprint, outcome in self._outcomes.items()
      )

  def find(self, module: Module, platform: str) -> Decision | None:
    """Returns the plan that was made for a module, if it is known.

    Raises:
      InfeasibleError: If it is known that there is none.
    """
    if not self._outcomes:
      return None
    outcome = self._outcomes.get(fingerprint(module, platform))
    if isinstance(outcome, InfeasibleError):
      raise copy.copy(outcome)
    return outcome


def fingerprint(module: Module, platform: str) -> bytes:
  """Returns a hash of all of a module that a plan depends on.

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
