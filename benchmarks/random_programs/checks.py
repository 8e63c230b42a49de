"""What has to hold of each program that jaxmem plans."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import UnsupportedModuleError
from jaxmem_hlo.module import Module

import jaxmem
from benchmarks.compiled_programs import total_bytes
from benchmarks.random_programs.claims import Claims, NotModelledError, heard
from benchmarks.random_programs.orders import all_orders
from benchmarks.random_programs.program import Program
from jaxmem.graph import from_hlo
from jaxmem.planning import Decision, ModulePlan, Request

# Entries of more nodes, and nodes of more orders than this, are not tried by
# brute force.
_MAX_NODES = 60
_MAX_ORDERS = 300
# What packing may add to the least bytes in a plan called optimal; see
# `ModulePlan.status`.
_PACKED_WELL = 1.01
_LEAST_SHARE, _MOST_SHARE = 0.5, 0.95
# By jax alone, until one gives other bits than the first.
_MOST_COMPILES = 16
# Of the largest value: what rounding elsewhere may change.
_ROUNDING = {"float32": 1e-4, "complex64": 1e-4, "bfloat16": 3e-2}

Outputs = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
  """What became of a program.

  Attributes:
    counts: What of it was checked, and how that ended -> 1.
    failures: Names of failed checks -> what was wrong.
  """

  counts: collections.Counter[str]
  failures: dict[str, str]


def check(
  program: Program, *, by_plan: bool = True, target: str | None = None
) -> Outcome:
  """Runs all checks of a program.

  Args:
    program: The program.
    by_plan: Whether `jaxmem.plan` is asked as well, which compiles it twice
      more. Otherwise the plan is the one that `jaxmem.jit` made.
    target: A device that is described, not present: nothing runs, and
      `jaxmem.plan` alone is asked. None for this machine's CPU.
  """
  checked = _Checks(program, by_plan, target)
  if target is None:
    checked.run()
  else:
    checked.plan_only()
  return Outcome(counts=checked.counts, failures=checked.failures)


def fails(
  program: Program,
  name: str,
  *,
  by_plan: bool = True,
  target: str | None = None,
) -> bool:
  """Whether a check fails; see `check`."""
  return name in check(program, by_plan=by_plan, target=target).failures


def digest(program: Program, target: str | None = None) -> str:
  """Plans a program; returns what has to be the same in each process."""
  planned = plan(program, target=target)
  decided = (
    planned.order,
    planned.method,
    planned.status,
    planned.temp_bytes,
  )
  return hashlib.sha256(repr(decided).encode()).hexdigest()


def plan(program: Program, **kwargs: Any) -> jaxmem.Plan:
  """Plans a program; further arguments are those of `jaxmem.plan`.

  Raises:
    NotModelledError: If the program is said not to be modelled.
  """
  jitted = jax.jit(program.function, **program.jit_options)
  try:
    return jaxmem.plan(jitted, *program.values(), **kwargs)
  except RuntimeError as error:
    if isinstance(error.__cause__, UnsupportedModuleError):
      raise NotModelledError(str(error)) from error
    raise


def _decided(request: Request, module: Module, platform: str) -> Decision:
  """Plans a module once more."""
  return request.decide(module, platform).decision


class _Checks:
  """The checks of one program; each adds to the counts and the failures."""

  def __init__(self, program: Program, by_plan: bool, target: str | None):
    self.counts: collections.Counter[str] = collections.Counter()
    self.failures: dict[str, str] = {}
    self._program = program
    self._by_plan = by_plan
    self._target = target

  def run(self) -> None:
    """Runs them all; what cannot be run is a failure, too."""
    try:
      own = self._compile(jax.jit)
      expected = self._outputs(own)
    except jax.errors.JaxRuntimeError:
      # XLA itself cannot compile or run it; some sharded programs are so.
      self.counts["refused_by_xla"] += 1
      return
    except Exception as error:
      # Not jaxmem's fault, but the generator's.
      self.failures["generator"] = repr(error)
      return
    with self._caught():
      claims = self._check_unlimited(own, expected)
      if self._by_plan:
        claims = Claims.of_plan(plan(self._program))
        self.counts["by_plan"] += 1
      self._check_claims(claims)
      self._check_limited(claims, expected)

  def plan_only(self) -> None:
    """Runs those that need no device."""
    with self._caught():
      planned = plan(self._program, target=self._target)
      self._check_saved(planned.temp_bytes, planned.baseline_temp_bytes)
      claims = Claims.of_plan(planned)
      self._check_claims(claims)
      self._check_limited_plan(claims)

  @contextlib.contextmanager
  def _caught(self) -> Iterator[None]:
    """Counts a program that is not modelled; all else is a failure."""
    try:
      yield
    except NotModelledError:
      self.counts["not_modelled"] += 1
    except Exception as error:
      self.failures["crash"] = f"{type(error).__name__}: {error}"

  def _compile(self, jit: Any, **kwargs: Any) -> jax.stages.Compiled:
    program = self._program
    jitted = jit(program.function, **program.jit_options, **kwargs)
    return jitted.lower(*program.values()).compile()

  def _outputs(self, compiled: jax.stages.Compiled) -> Outputs:
    """Runs a program, and looks whether it left its arguments alone."""
    args = self._program.values()
    outputs = jax.block_until_ready(compiled(*args))
    for arg, given in zip(args, self._program.values(), strict=True):
      if not arg.is_deleted() and _bytes(arg) != _bytes(given):
        self.failures["arguments"] = "an argument was written to"
    return outputs

  def _check_unlimited(self, own: Any, expected: Outputs) -> Claims:
    with heard() as compiles:
      planned = self._compile(jaxmem.jit)
    are_equal = _are_equal(self._outputs(planned), expected)
    # By numpy, which compiles nothing.
    is_finite = all(np.isfinite(np.asarray(each)).all() for each in expected)
    if not (are_equal and is_finite) and self._is_undecided(expected):
      self.counts["undecided_by_xla"] += 1
    else:
      self._require("finite", is_finite, "the generator lets numbers grow")
      self._require("outputs", are_equal, "other bits")
    memory: list[Any] = [each.memory_analysis() for each in (planned, own)]
    found, before = (each.temp_size_in_bytes for each in memory)
    self._check_saved(found, before)
    return Claims.of_compile(*compiles[-1], planned, own)

  def _check_saved(self, found: int, before: int) -> None:
    """Checks a plan's temporaries against XLA's own."""
    self._require("temporaries", found <= before, f"{found} above {before}")
    self.counts["saved"] += found < before

  def _is_undecided(self, expected: Outputs) -> bool:
    """Whether `jax.jit` alone gives other bits when it compiles once more."""
    return any(
      not _are_equal(self._outputs(self._compile(jax.jit)), expected)
      for _ in range(_MOST_COMPILES)
    )

  def _check_claims(self, claims: Claims) -> None:
    """Checks what is said of the plan without a limit; runs nothing."""
    errors = claims.model_errors
    self._require("prediction", errors == (0, 0), f"misses by {errors}")
    self.counts[f"status_{claims.status}"] += 1
    # Plans once more.
    again = _decided(claims.request, claims.given, claims.decision.platform)
    assert isinstance(again, ModulePlan)
    same = dataclasses.replace(again, seconds=claims.decision.seconds)
    is_same = same == claims.decision
    self._require("repeated", is_same, "another plan at once")
    self._check_orders(claims)

  def _check_orders(self, claims: Claims) -> None:
    """Compares the plan with all orders, or some."""
    decision = claims.decision
    module = claims.given.with_bitcasts(decision.removed_copies)
    module = module.with_schedules(
      {k: v for k, v in decision.orders.items() if k != module.entry.id}
    )
    model = AssignmentModel(module, decision.platform)
    entry = from_hlo(model, module.entry)
    if entry.graph.num_nodes > _MAX_NODES:
      return
    orders = itertools.islice(all_orders(entry.graph), _MAX_ORDERS + 1)
    least, count = claims.temp_bytes, 0
    for order in orders:
      ids = {module.entry.id: tuple(entry.schedule(order))}
      least, count = min(least, model.temp_bytes(ids)), count + 1
    is_whole = count <= _MAX_ORDERS
    self.counts["all_orders" if is_whole else "some_orders"] += 1
    bound = claims.lower_bound_bytes
    self._require("bound", bound <= least, f"{bound} above {least}")
    if claims.status == "optimal":
      is_least = claims.temp_bytes <= max(least * _PACKED_WELL, bound)
      self._require("optimal", is_least, f"{claims.temp_bytes} above {least}")

  def _within_limit[T](
    self, claims: Claims, make: Callable[[int], T]
  ) -> tuple[int, T]:
    """Returns a limit, and what is made for it.

    If it is refused, it is the bytes of the smallest program that is named.
    """
    source = random.Random(self._program.seed)
    share = source.uniform(_LEAST_SHARE, _MOST_SHARE)
    limit = max(1, claims.fixed_bytes + int(share * claims.temp_bytes))
    try:
      made = make(limit)
      self.counts["feasible"] += 1
      return limit, made
    except jaxmem.InfeasibleError as error:
      bound, least = error.lower_bound_bytes, error.smallest_bytes
      is_told = limit < least and bound <= least
      self._require("infeasible", is_told, f"{limit} refused for {least}")
      return least, make(least)

  def _check_limited_plan(self, claims: Claims) -> None:
    limit, limited = self._within_limit(
      claims,
      lambda limit: plan(
        self._program, target=self._target, memory_limit=limit
      ),
    )
    total = limited.total_bytes
    self._require("limit", total <= limit, f"{total} above {limit}")
    errors = limited.model_error, limited.baseline_model_error
    self._require("limited_prediction", errors == (0, 0), f"misses by {errors}")

  def _check_limited(self, claims: Claims, expected: Outputs) -> None:
    limit, limited = self._within_limit(
      claims, lambda limit: self._compile(jaxmem.jit, memory_limit=limit)
    )
    total = total_bytes(limited.memory_analysis())
    self._require("limit", total <= limit, f"{total} above {limit}")
    outputs = self._outputs(limited)
    if _are_equal(outputs, expected):
      self.counts["limited_equal"] += 1
      return
    if all(map(_is_close, outputs, expected)):
      self.counts["limited_rounded"] += 1
      return
    # Where values are sorted, compared or made whole numbers, rounding decides.
    # It is then XLA's, of what jax alone makes of the same version.
    # `PlannedProgram` is what users may ask of; the version is none of it.
    planned: Any = plan(self._program, memory_limit=limit).program
    alone = self._outputs(planned.step.compile({}))
    is_of_xla = all(map(_is_close, outputs, alone))
    if not is_of_xla and self._is_undecided(expected):
      self.counts["undecided_by_xla"] += 1
      return
    self.counts["limited_other"] += 1
    self._require("limited_outputs", is_of_xla, "other numbers than by jax.jit")

  def _require(self, name: str, holds: bool, otherwise: str) -> None:
    self.counts[name] += 1
    if not holds:
      self.failures[name] = otherwise


def _bytes(array: jax.Array) -> bytes:
  """Returns what every device has of an array."""
  shards = array.addressable_shards
  return b"".join(np.asarray(shard.data).tobytes() for shard in shards)


def _are_equal(found: Outputs, expected: Outputs) -> bool:
  """Whether outputs are alike to the bit, those that are no numbers too."""
  return all(
    (a.shape, a.dtype, _bytes(a)) == (b.shape, b.dtype, _bytes(b))
    for a, b in zip(found, expected, strict=True)
  )


def _is_close(found: jax.Array, expected: jax.Array) -> bool:
  """Whether values differ by rounding only."""
  rounding = _ROUNDING.get(expected.dtype.name)
  if rounding is None:
    return _bytes(found) == _bytes(expected)
  wide = np.complex128 if expected.dtype == np.complex64 else np.float64
  a, b = (np.asarray(each).astype(wide) for each in (found, expected))
  most = np.abs(b).max(initial=0)
  return np.allclose(a, b, rtol=0, atol=rounding * (1 + most))
