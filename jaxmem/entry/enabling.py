"""`jaxmem.enable`: every compile of a process is planned."""

from __future__ import annotations

# Libraries of the planner load it, which Python refuses once the main thread
# has ended; other threads may compile then.
import concurrent.futures.thread  # noqa: F401
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jaxmem import units
from jaxmem.compiler import jax_doors
from jaxmem.entry.memory import MemoryLimit
from jaxmem.entry.policies import PLANNED
from jaxmem.entry.policy import Only, Policy
from jaxmem.entry.records import CompileRecord
from jaxmem.options import Options

if TYPE_CHECKING:
  from jaxmem.entry.planned_compiles import PlannedCompiles


class _Doors:
  """Stands at jax's doors; see `jax_doors.Policy`.

  A process none of whose programs is planned, as all are small, never loads the
  planner and its solvers.
  """

  def stage(self, name: str) -> None:
    """Hears that a planned function is called inside another's trace."""
    PLANNED.warn_once(
      f"stage {name}",
      f"{name}, which jaxmem.jit compiles, is called inside another jitted"
      " function and becomes a part of that: it plans nothing of its own. Give"
      " the outermost function to jaxmem.jit, or use jaxmem.enable().",
    )

  def lower(self, lowering: jax_doors.Lowering) -> Any:
    """Lowers a program as it is, or the version of it that fits a limit."""
    policy = PLANNED.policy_of(lowering)
    if policy is None:
      return lowering.lower(option=lowering.option)
    if policy.limit is None or not lowering.is_for_devices:
      return lowering.lower(option=policy.tag)
    return _planned_compiles().lower(lowering, policy)

  def compile(self, compiling: jax_doors.Compiling) -> Any:
    """Compiles a program, planned if its policy says so."""
    return _planned_compiles().compile(compiling)


def _planned_compiles() -> PlannedCompiles:
  from jaxmem.entry.planned_compiles import COMPILES

  return COMPILES


jax_doors.set_policy(_Doors())


class Enabled:
  """What `enable` returns; as a context manager it ends what that began.

  Args:
    before: What was enabled before.
  """

  def __init__(self, before: Policy | None):
    self._before = before
    self._first_record = len(PLANNED.records.all())

  @property
  def records(self) -> list[CompileRecord]:
    """What became of every compile since."""
    return PLANNED.records.all()[self._first_record :]

  def __enter__(self) -> Enabled:
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    PLANNED.enable(self._before)


def enable(
  memory_limit: units.ByteQuantity | None = None,
  *,
  options: Options | None = None,
  only: Only | None = None,
  min_bytes: units.ByteQuantity = "16MiB",
) -> Enabled:
  """Plans every compile of this process from now on.

  Whoever jitted the function, and however: `jax.jit`, `nnx.jit`,
  `eqx.filter_jit`, Keras. What was compiled before stays as it is.

      jaxmem.enable(memory_limit="20GiB")
      ...
      with jaxmem.enable(only="train_step") as enabled:
        ...
      print(enabled.records)

  Args:
    memory_limit: As in `jaxmem.jit`; it holds for each program.
    options: Planning options. An arena cannot be kept here.
    only: Which functions are planned: a regular expression that is searched
      in their names, or a predicate of the name; None for all.
    min_bytes: Programs of fewer bytes, arguments and outputs included, are
      left to XLA.

  Returns:
    A handle on what became of the compiles. As a context manager it ends the
    planning, and what was enabled before is so again.

  Raises:
    ValueError: On a malformed limit or `min_bytes`, or `keep_arena`.
    RuntimeError: If this version of jax is not known.
  """
  options = Options.of(options)
  if options.keep_arena:
    raise ValueError("keep_arena is for jaxmem.jit; enable cannot keep arenas.")
  least_bytes = 0
  if min_bytes:
    least_bytes = units.parse_bytes(min_bytes, name="min_bytes")
  policy = Policy(
    options=options,
    limit=None if memory_limit is None else MemoryLimit.of(memory_limit),
    only=only,
    min_bytes=least_bytes,
  )
  jax_doors.install()
  return Enabled(PLANNED.enable(policy))


def disable() -> None:
  """Ends what `enable` began; programs that are compiled stay planned."""
  PLANNED.enable(None)
