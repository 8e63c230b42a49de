"""What jaxmem says of a program that it planned without a limit."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import jax
from jaxmem_hlo.buffers import UnsupportedModuleError
from jaxmem_hlo.module import Module

import jaxmem
from benchmarks.compiled_programs import fixed_bytes
from jaxmem.entry import PLANNED, CompileRecord
from jaxmem.planning import Decision, ModulePlan, PlannedModule, Request
from jaxmem.targets import DeviceGroup

# A compile as the listener of records hears of it.
Heard = tuple[CompileRecord, PlannedModule[Decision] | None]


class NotModelledError(Exception):
  """The program holds what jaxmem says it does not model."""


@contextlib.contextmanager
def heard() -> Iterator[list[Heard]]:
  """Lists the compiles that are planned while the context is open."""
  compiles: list[Heard] = []
  before, PLANNED.records.listener = (
    PLANNED.records.listener,
    lambda *compile_: compiles.append(compile_),
  )
  try:
    yield compiles
  finally:
    PLANNED.records.listener = before


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
  """What is said of a plan, and what it is said of.

  Attributes:
    temp_bytes: XLA's figure of the planned program's temporaries.
    fixed_bytes: Of its arguments and outputs, shared ones once.
    model_errors: By how much the predictions for the planned program and for
      XLA's own missed.
    status: As `ModulePlan.status`.
    lower_bound_bytes: No order needs fewer temporaries.
    given: The module that was planned.
    decision: What was decided for it.
    request: What was asked.
  """

  temp_bytes: int
  fixed_bytes: int
  model_errors: tuple[int, int]
  status: str
  lower_bound_bytes: int
  given: Module
  decision: ModulePlan
  request: Request

  @classmethod
  def of_plan(cls, plan: jaxmem.Plan) -> Self:
    """Takes them from what `jaxmem.plan` returned."""
    program: Any = plan.program
    return cls(
      temp_bytes=plan.temp_bytes,
      fixed_bytes=plan.total_bytes - plan.temp_bytes,
      model_errors=(plan.model_error, plan.baseline_model_error),
      status=plan.status,
      lower_bound_bytes=plan.lower_bound_bytes,
      given=program.planned.given,
      decision=program.planned.decision,
      request=program.request,
    )

  @classmethod
  def of_compile(
    cls,
    record: CompileRecord,
    planned: PlannedModule[Decision] | None,
    compiled: jax.stages.Compiled,
    own: jax.stages.Compiled,
  ) -> Self:
    """Takes them from what was heard of a compile of `jaxmem.jit`.

    Args:
      record: What became of it.
      planned: The module that was planned.
      compiled: The program.
      own: The one that `jax.jit` makes.

    Raises:
      NotModelledError: If the program is said not to be modelled.
      RuntimeError: If it was left to XLA for another reason.
    """
    if planned is None:
      if record.why_not.startswith(UnsupportedModuleError.__name__):
        raise NotModelledError(record.why_not)
      raise RuntimeError(f"It was not planned: {record.why_not}.")
    decision = planned.decision
    assert isinstance(decision, ModulePlan)
    memory: Any = compiled.memory_analysis()
    own_memory: Any = own.memory_analysis()
    executable: Any = own.runtime_executable()
    temp_bytes = memory.temp_size_in_bytes
    return cls(
      temp_bytes=temp_bytes,
      fixed_bytes=fixed_bytes(memory),
      model_errors=(
        temp_bytes - decision.planned_bytes,
        own_memory.temp_size_in_bytes - decision.baseline_bytes,
      ),
      status=decision.status,
      lower_bound_bytes=min(decision.lower_bound_bytes, temp_bytes),
      given=planned.given,
      decision=decision,
      request=Request(
        options=jaxmem.Options(),
        group=DeviceGroup.of(executable.local_devices()),
      ),
    )
