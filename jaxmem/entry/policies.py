"""The policies of a process: whose programs are planned, and for what.

A function of `jaxmem.jit` carries the tag of its policy in jax's compiler
options; under `jaxmem.enable` programs are picked by name and size.
"""

from __future__ import annotations

import contextlib
import threading
import warnings

from jaxmem_hlo import compiler_hook

from jaxmem.compiler import jax_doors, most_bytes
from jaxmem.entry.policy import Policy
from jaxmem.entry.records import Records


class Policies:
  """The policies of a process, and what became of its compiles.

  Attributes:
    records: Of every compile that was to be planned.
  """

  def __init__(self):
    self.records = Records()
    self._lock = threading.Lock()
    self._by_tag: dict[str, Policy] = {}
    self._enabled: Policy | None = None
    self._warned: set[str] = set()

  def add(self, policy: Policy) -> str:
    """Registers a policy; returns the compiler option that asks for it."""
    with self._lock:
      self._by_tag[policy.tag] = policy
    return policy.tag

  def enable(self, policy: Policy | None) -> Policy | None:
    """Sets the policy of all other compiles; returns the one before."""
    if policy is not None:
      self.add(policy)
    with self._lock:
      before, self._enabled = self._enabled, policy
    return before

  def of_option(self, option: str) -> Policy | None:
    """Returns the policy that a compiler option asks for."""
    return self._by_tag.get(option)

  def policy_of(self, lowering: jax_doors.Lowering) -> Policy | None:
    """Returns what is asked of a program; None if nothing is."""
    if lowering.option is not None:
      return self.of_option(lowering.option)
    policy = self._enabled
    if policy is None or not policy.wants(lowering.name):
      return None
    return policy if most_bytes(lowering.jaxpr) >= policy.min_bytes else None

  def warn_once(self, key: str, message: str) -> None:
    """Issues a PlanningWarning, unless one of this key was issued before."""
    with self._lock:
      if key in self._warned:
        return
      self._warned.add(key)
    # Even where warnings are errors, the user's step must compile.
    with contextlib.suppress(Warning):
      warnings.warn(message, compiler_hook.PlanningWarning, stacklevel=2)


# Those of this process.
PLANNED = Policies()
