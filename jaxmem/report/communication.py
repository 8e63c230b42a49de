"""What a sharded step exchanges with other devices, and what each has of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import NamedSharding
from jaxmem_hlo.assignment import Assignment
from jaxmem_hlo.module import Instruction, Module, collective_of

from jaxmem import cost, units
from jaxmem.report.layout import Layout, PlannedBuffer

# Where a collective comes from: this many places are listed.
_MAX_PLACES = 8
# Smaller arrays are not worth a line.
_MIN_REPLICATED_BYTES = 1 << 20
# XLA adds these where an operation reads an array divided otherwise. Sums are
# part of what an operation computes.
_RESHARDING = frozenset({"all-gather", "all-to-all", "collective-permute"})
# Scopes of an operation that is a collective of the program itself.
_OWN_COLLECTIVES = ("all_gather", "all_to_all", "pbroadcast", "ppermute", "ps")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
  """The collectives of one kind that come from one line of the program.

  Attributes:
    kind: Their opcode: "all-gather".
    source: The line.
    count: How many there are, those in loops once for each iteration.
    size_bytes: Of the whole arrays that they exchange, together.
    seconds: Estimated, together, hidden or not.
  """

  kind: str
  source: str
  count: int
  size_bytes: int
  seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
  """What a schedule exchanges with other devices. Seconds are estimates.

  Attributes:
    step_s: Of the step.
    seconds: Of all collectives, hidden behind kernels or not.
    exposed_s: Of these, while nothing else runs.
    num_asynchronous: Collectives that run beside kernels.
    num_synchronous: Those that XLA runs like kernels, since nothing stands
      between their start and their end, or since they have no start.
    largest: Where they come from, those that take longest first.
  """

  step_s: float
  seconds: float
  exposed_s: float
  num_asynchronous: int
  num_synchronous: int
  largest: tuple[Exchange, ...]

  @property
  def hidden_s(self) -> float:
    """Seconds of collectives beside which kernels run."""
    return self.seconds - self.exposed_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
  """A large argument that every device has all of.

  Attributes:
    path: Which argument.
    size_bytes: What it takes on each device.
    dimension: One that could be divided.
    axis: The axis of the mesh to divide it over.
    saved_bytes: What that would save on each device.
  """

  path: str
  size_bytes: int
  dimension: int
  axis: str
  saved_bytes: int


def communication_of(module: Module, rates: cost.Rates) -> Communication | None:
  """Describes what a scheduled module exchanges; None if it does not.

  Args:
    module: The module.
    rates: Of the device.
  """
  run = cost.step_time(module, rates)
  if not run.collective_s:
    return None
  return Communication(
    step_s=run.seconds,
    seconds=run.collective_s,
    exposed_s=run.exposed_s,
    num_asynchronous=run.num_asynchronous,
    num_synchronous=run.num_synchronous,
    largest=_largest(module, rates),
  )


def _largest(module: Module, rates: cost.Rates) -> tuple[Exchange, ...]:
  assert rates.links is not None
  found: dict[tuple[str, str], list[float]] = {}
  for computation_id, times in _runs(module):
    for instruction in module.schedule(computation_id):
      collective = collective_of(module, instruction)
      if collective is None:
        continue
      kind = collective.opcode.removesuffix("-start")
      key = kind, module.source(instruction) or module.source(collective)
      total = found.setdefault(key, [0.0, 0.0, 0.0])
      seconds = cost.collective_seconds(collective, rates.links)
      size_bytes = cost.moved_bytes(collective)
      for n, each in enumerate((1.0, size_bytes, seconds)):
        total[n] += times * each
  exchanges = [
    Exchange(
      kind=kind,
      source=source,
      count=int(count),
      size_bytes=int(size_bytes),
      seconds=seconds,
    )
    for (kind, source), (count, size_bytes, seconds) in found.items()
  ]
  exchanges.sort(key=lambda e: (-e.seconds, e.kind, e.source))
  return tuple(exchanges[:_MAX_PLACES])


def _runs(module: Module) -> list[tuple[int, int]]:
  """Lists the computations that a schedule runs, and how often each."""
  found: list[tuple[int, int]] = []
  stack = [(module.entry.id, 1)]
  while stack:
    computation_id, times = stack.pop()
    found.append((computation_id, times))
    for instruction in module.schedule(computation_id):
      if instruction.opcode in ("call", "conditional", "while"):
        inner = times
        if instruction.opcode == "while":
          inner *= cost.trip_count(instruction)
        stack += [(callee, inner) for callee in instruction.callees]
  return found


def replicated(arguments: Any) -> tuple[Replicated, ...]:
  """Lists large arguments that every device has all of, the largest first.

  Args:
    arguments: The step's, a tree of arrays and shapes.
  """
  found: list[Replicated] = []
  for path, leaf in jax.tree.leaves_with_path(arguments):
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.num_devices < 2:
      continue
    size_bytes = math.prod(leaf.shape) * leaf.dtype.itemsize
    if size_bytes < _MIN_REPLICATED_BYTES or not sharding.is_fully_replicated:
      continue
    divided = _divisible(leaf.shape, dict(sharding.mesh.shape))
    if divided is not None:
      dimension, axis, size = divided
      found.append(
        Replicated(
          path=jax.tree_util.keystr(path),
          size_bytes=size_bytes,
          dimension=dimension,
          axis=axis,
          saved_bytes=size_bytes - size_bytes // size,
        )
      )
  return tuple(sorted(found, key=lambda r: (-r.saved_bytes, r.path)))


def _divisible(
  shape: tuple[int, ...], axes: dict[str, int]
) -> tuple[int, str, int] | None:
  """Returns the largest axis that divides a dimension, and that dimension."""
  for axis, size in sorted(axes.items(), key=lambda item: -item[1]):
    for dimension, length in enumerate(shape):
      if size > 1 and length % size == 0:
        return dimension, axis, size
  return None


def resharded(
  module: Module, assignment: Assignment, placed: Layout
) -> tuple[PlannedBuffer, ...]:
  """Lists buffers at the peak that are there because arrays are resharded.

  That is what collectives return that the program does not ask for by itself,
  as in `jax.shard_map`, but by how its operations' operands are divided. Those
  of which XLA kept no operation are left out.

  Args:
    module: A scheduled module.
    assignment: Of its buffers.
    placed: The same, as reports have it.
  """
  names = {
    value.name
    for value in assignment.ranges
    if _is_resharding(module, value.instruction)
  }
  return tuple(b for b in placed.at_peak() if b.name in names)


def _is_resharding(module: Module, instruction: Instruction) -> bool:
  found = collective_of(module, instruction)
  if found is None or found.opcode.removesuffix("-start") not in _RESHARDING:
    return False
  scopes = found.proto.metadata.op_name.split("/")
  return any(scopes) and not any(s.startswith(_OWN_COLLECTIVES) for s in scopes)


def resharded_lines(found: tuple[PlannedBuffer, ...]) -> list[tuple[str, str]]:
  """Returns what resharding takes at the peak, with labels."""
  total = units.format_bytes(sum(b.size_bytes for b in found))
  lines = [("resharding", f"{total} at the peak:")] if found else []
  for each in found[:_MAX_PLACES]:
    size = units.format_bytes(each.size_bytes)
    lines.append(("", f"{size:>10}  {each.name}  {each.source}"))
  return lines


def communication_lines(
  planned: Communication | None, own: Communication | None
) -> list[tuple[str, str]]:
  """Returns what a plan exchanges, and XLA's own, with labels."""
  lines = [
    (label, _line(run))
    for label, run in (("communication", planned), ("  XLA's own", own))
    if run is not None
  ]
  for number, each in enumerate(planned.largest if planned else ()):
    size = units.format_bytes(each.size_bytes)
    line = f"{each.count} x {each.kind}, {size}, {1e3 * each.seconds:.2f} ms"
    lines.append(("  most" if not number else "", f"{line}  {each.source}"))
  return lines


def replicated_lines(found: tuple[Replicated, ...]) -> list[tuple[str, str]]:
  """Returns what would shrink by being sharded, with labels."""
  return [
    (
      "replicated" if not number else "",
      f"{units.format_bytes(each.size_bytes):>10}  {each.path}: dimension"
      f" {each.dimension} over axis {each.axis!r} would save"
      f" {units.format_bytes(each.saved_bytes)}",
    )
    for number, each in enumerate(found[:_MAX_PLACES])
  ]


def _line(run: Communication) -> str:
  return (
    f"{1e3 * run.seconds:.2f} ms, {1e3 * run.hidden_s:.2f} hidden and"
    f" {1e3 * run.exposed_s:.2f} exposed, of {1e3 * run.step_s:.2f} ms by"
    f" estimate; {run.num_asynchronous} asynchronous, {run.num_synchronous}"
    " synchronous"
  )
