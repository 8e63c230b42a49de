"""The plans of a program under a limit, remembered from start to start.

What is remembered is how the version that fits is made of the program, and the
plan of its scheduled module. A second start makes the version again, without
compiling or choosing anything, and lowers it: only if that is the program it
was is it taken. When XLA shows the scheduled module, its fingerprint says
whether the plan is for it, and the plan is checked as if somebody else had
written it; if it does not hold, the module is planned afresh.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jaxlib
import jaxmem_hlo
import ortools
from jaxmem_hlo.module import Module

from jaxmem.compiler import LoweredStep, jax_doors, programs
from jaxmem.entry.plan_store import PlanStore
from jaxmem.errors import InfeasibleError
from jaxmem.planning import (
  DecidedFields,
  DecidedModule,
  DecidedModules,
  Decision,
  PlannedModule,
  Request,
  check_again,
)
from jaxmem.report import read_fields
from jaxmem.version import __version__
from jaxmem.versions import Recipe, Version

_LOG = logging.getLogger("jaxmem")
_JAXMEM = pathlib.Path(__file__).parents[1]
# What jax makes of these reaches XLA, but not the program.
_JAX_SETTINGS = (
  "jax_compiler_enable_remat_pass",
  "jax_disable_most_optimizations",
  "jax_memory_fitting_level",
  "jax_optimization_level",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
  """What a file holds.

  Attributes:
    recipe: How the version is made.
    platform: What it was planned for: "cpu" or "cuda"; empty if nothing was.
    program: The digest of the version as it is lowered.
    xla_bytes: See `versions.Version`.
    decided: What planning its modules led to.
  """

  recipe: Recipe
  platform: str
  program: str
  xla_bytes: int | None
  decided: tuple[DecidedFields, ...] = ()

  def to_bytes(self) -> bytes:
    """Returns it as JSON."""
    return json.dumps(dataclasses.asdict(self)).encode()

  @classmethod
  def from_bytes(cls, data: bytes) -> _Content:
    """Reads it; raises ValueError or RecursionError if it is not sound."""
    record = json.loads(data)
    if not isinstance(record, dict):
      raise ValueError("It holds no record.")
    return cls(**read_fields(cls, record))


class ProgramPlans:
  """The plans of one program under one request.

  Args:
    request: What is asked of the planner.
    key: Of the program, in the store.
    store: Where they are remembered; None for nowhere.

  Attributes:
    is_remembered: Whether all plans so far come from an earlier start.
  """

  def __init__(
    self, request: Request, key: str = "", store: PlanStore | None = None
  ):
    self.is_remembered = False
    self._request = request
    self._key = key
    self._store = store
    self._content: _Content | None = None
    self._decided = DecidedModules()
    self._is_applied = False

  @classmethod
  def of(
    cls, lowered: Any, lowering: jax_doors.Lowering, request: Request
  ) -> ProgramPlans:
    """Returns the plans of a program.

    Args:
      lowered: The program as it is written, lowered.
      lowering: How it was lowered.
      request: What is asked of the planner.
    """
    store = PlanStore.of_user()
    if store is None:
      return cls(request)
    try:
      key = program_key(lowered, lowering.others, request)
    except Exception as error:  # Such as a program that cannot be serialized.
      _LOG.debug("A program's plans are not remembered: %s", error)
      return cls(request)
    return cls(request, key, store)

  # The version that is compiled.

  def recall(self, step: LoweredStep) -> Version | None:
    """Makes the version that was picked at an earlier start, if it is known.

    Args:
      step: The step as it is written.
    """
    data = self._store.get(self._key) if self._store else None
    if data is None:
      return None
    try:
      content = _Content.from_bytes(data)
      device = self._request.device(content.platform or "cpu")
      version = content.recipe.follow(step, device)
      decided = [fields.decided() for fields in content.decided]
      if _digest(version) != content.program:
        return None
    except Exception as error:  # Whatever a file may hold.
      _LOG.debug("A remembered plan is left aside: %s", error)
      return None
    for each in decided:
      self._decided.add(each)
    self._content, self.is_remembered = content, True
    return dataclasses.replace(version, xla_bytes=content.xla_bytes)

  def picked(
    self,
    version: Version,
    platform: str,
    decided: DecidedModule | None,
  ) -> None:
    """Hears which version was picked.

    Args:
      version: The version.
      platform: What was compiled for to pick it; empty if nothing was.
      decided: What planning its module led to, if it was planned.
    """
    if decided is not None:
      self._decided.add(decided)
    if self._store is not None:
      self._content = _Content(
        recipe=version.recipe,
        platform=platform,
        program=_digest(version),
        xla_bytes=version.xla_bytes,
      )

  # The plan of its module.

  def compiled[T](self, run: Callable[[], T]) -> T:
    """Compiles; once more, planned afresh, if XLA refuses what is remembered.

    Args:
      run: Compiles the program; XLA's hook asks `decide` meanwhile.
    """
    try:
      return run()
    except jax.errors.JaxRuntimeError:
      if not (self.is_remembered and self._is_applied):
        raise
      self.forget()
      return run()

  def decide(self, module: Module, platform: str) -> PlannedModule[Decision]:
    """Plans a module, or takes the plan that is known; see `Request.decide`."""
    if self._request.limit_bytes is None:
      return self._request.decide(module, platform)
    try:
      planned = self._request.decide(module, platform, self._decided)
      if self.is_remembered and self._knows(planned.decision):
        check_again(planned, platform)
    except InfeasibleError as error:
      self._learn(module, platform, error)
      self.keep()
      raise
    except Exception:
      if not self.is_remembered:
        raise
      self.forget()
      return self.decide(module, platform)
    self._learn(module, platform, planned.decision)
    self._is_applied = True
    return planned

  def _learn(
    self, module: Module, platform: str, outcome: Decision | InfeasibleError
  ) -> None:
    if self._knows(outcome):
      return
    if self.is_remembered and isinstance(outcome, InfeasibleError):
      # Another version may fit: the next start picks afresh.
      self.forget()
    self.is_remembered = False
    self._decided.add(DecidedModule.of(module, platform, outcome))

  def _knows(self, outcome: Decision | InfeasibleError) -> bool:
    return any(each.led_to(outcome) for each in self._decided.all())

  def keep(self) -> None:
    """Remembers all plans so far."""
    if self._store is None or self._content is None or self.is_remembered:
      return
    try:
      decided = tuple(DecidedFields.of(each) for each in self._decided.all())
      content = dataclasses.replace(self._content, decided=decided)
      self._store.put(self._key, content.to_bytes())
    except Exception as error:  # A step that is planned must run.
      _LOG.debug("A plan is not remembered: %s", error)

  def forget(self) -> None:
    """Forgets all plans so far, and remembers no others in this process."""
    self.is_remembered, self._content = False, None
    self._decided = DecidedModules()
    if self._store is not None:
      self._store.forget(self._key)


def program_key(
  lowered: Any, others: Sequence[tuple[str, Any]], request: Request
) -> str:
  """Names a program and all that its plans depend on, in hexadecimal digits.

  Args:
    lowered: The program as it is written, lowered.
    others: Compiler options that reach XLA.
    request: What is asked of the planner.
  """
  devices = jax_doors.devices(lowered)
  about: dict[str, Any] = {
    "program": programs.program_digest(lowered),
    "platform": devices[0].platform,
    "runtime": devices[0].client.platform_version,
    "device": devices[0].device_kind,
    "num_devices": len(devices),
    "compiler_options": sorted(map(repr, others)),
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
    "settings": [str(getattr(jax.config, s, None)) for s in _JAX_SETTINGS],
    "options": repr(request.options),
    "limit_bytes": request.limit_bytes,
    "jaxmem": [__version__, _sources_digest()],
    "others": [m.__version__ for m in (jax, jaxlib, ortools)],
  }
  return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _digest(version: Version) -> str:
  """Returns the digest of a version as it is lowered."""
  assert isinstance(version.step, LoweredStep)
  return programs.program_digest(version.step.lowered)


@functools.cache
def _sources_digest() -> str:
  """Returns a hash of jaxmem's own files: who changes one plans afresh."""
  digest = hashlib.sha256()
  for folder in (_JAXMEM, pathlib.Path(jaxmem_hlo.__path__[0])):
    for path in sorted(folder.rglob("*")):
      if path.is_file() and "__pycache__" not in path.parts:
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
  return digest.hexdigest()
