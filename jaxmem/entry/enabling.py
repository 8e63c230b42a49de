"""`jaxmem.enable`: every compile of a process is planned."""

from __future__ import annotations

from types import TracebackType

from jaxmem import units
from jaxmem.compiler import jax_doors
from jaxmem.entry.memory import MemoryLimit
from jaxmem.entry.planned_compiles import PlannedCompiles
from jaxmem.entry.policy import Only, Policy
from jaxmem.entry.records import CompileRecord
from jaxmem.options import Options

# The one object that stands at jax's doors in this process.
PLANNED = PlannedCompiles()
jax_doors.set_policy(PLANNED)


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
