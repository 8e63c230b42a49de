"""What a program's bytes are at its peak: one row for each array, and packing.

The rows are of the predicted buffer assignment, which says which array is where
when most temporaries are live; arguments and outputs have their memory all the
time. Where an array comes from is read off the names that jax gave operations,
off the names of arguments, and off who reads what:

*   A state that the step returns anew is a parameter if operations that are
    differentiated read it, and else the optimizer's.
*   A value of the forward pass that the backward pass reads is a residual.
*   A value of the backward pass that the optimizer reads is the gradient of a
    parameter; the others are gradients of activations.

What cannot be told is called "other".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxmem_hlo.assignment import Allocation, Assignment
from jaxmem_hlo.buffers import Value
from jaxmem_hlo.module import shapes, source_lines

from jaxmem.report.value_origins import ValueOrigins

PACKING = "packing"
AFTERWARDS = "changed by XLA afterwards"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PeakRow:
  """One array at the peak, or what is lost to packing.

  Attributes:
    name: The instruction that defines it, with its output index, or the
      argument.
    size_bytes: Its bytes; negative only for what XLA saved afterwards.
    kind: "parameters", "residuals", ...; `docs/explain.md` lists them.
    module: The scopes it comes from, outermost first; empty if not known.
    source: The line of the user's code; empty if not known.
    package: The line of an installed package that made it, or empty.
    argument: Path of the argument or output that it is; empty for others.
    copy_of: The row that it is a copy of, in another type or layout, while
      both are live; empty if it is none.
  """

  name: str
  size_bytes: int
  kind: str
  module: tuple[str, ...] = ()
  source: str = ""
  package: str = ""
  argument: str = ""
  copy_of: str = ""


def peak_rows(
  origins: ValueOrigins,
  assignment: Assignment,
  *,
  output_paths: Sequence[str],
  total_bytes: int,
) -> tuple[PeakRow, ...]:
  """Lists what a program's bytes are at its peak, the largest first.

  Args:
    origins: Where the values of the scheduled module come from.
    assignment: Of its buffers.
    output_paths: Where in the result each output lies, in order; empty if that
      is not known.
    total_bytes: Of the whole program, as XLA measured them.

  Returns:
    Rows that add up to the total.
  """
  found = _Rows(origins, assignment, output_paths)
  rows = [row for row in found.all() if row.size_bytes]
  rest = total_bytes - assignment.program_bytes
  if rest:
    # XLA rematerialised, or its assignment was not what was predicted.
    rows.append(PeakRow(name=AFTERWARDS, size_bytes=rest, kind=AFTERWARDS))
  return tuple(sorted(rows, key=lambda r: (-r.size_bytes, r.name)))


class _Rows:
  """The rows of one program.

  Args:
    origins: As for `peak_rows`.
    assignment: Likewise.
    output_paths: Likewise.
  """

  def __init__(
    self,
    origins: ValueOrigins,
    assignment: Assignment,
    output_paths: Sequence[str],
  ):
    analysis = self._analysis = origins.analysis
    self._assignment = assignment
    self._arguments = origins.arguments
    self._origins = origins
    root = analysis.module.entry.root
    outputs = [
      index
      for index, value in analysis.dataflow.trees[root.id].items()
      if not value.is_tuple_table
    ]
    known = len(output_paths) == len(outputs)
    self._paths = dict(zip(outputs, output_paths, strict=True)) if known else {}

  def all(self) -> list[PeakRow]:
    """Returns all rows, in no particular order; some may have no bytes."""
    rows: list[PeakRow] = []
    temps = []
    for allocation in self._assignment.allocations:
      if allocation.memory_space:
        continue
      if allocation.kind == "parameter":
        rows.append(self._argument(allocation))
      elif allocation.kind == "output":
        rows.append(self._output(allocation))
      elif allocation.kind == "temp":
        temps.append(allocation)
    live = {v: s for a in temps for v, s in self._live(a).items()}
    rows += [self._temporary(v, s, live) for v, s in live.items()]
    lost = sum(a.size_bytes for a in temps) - sum(live.values())
    return [*rows, PeakRow(name=PACKING, size_bytes=lost, kind=PACKING)]

  def _argument(self, allocation: Allocation) -> PeakRow:
    number = allocation.parameter_number
    known = self._arguments.of(number, allocation.parameter_index)
    return PeakRow(
      name=known.name,
      size_bytes=allocation.size_bytes,
      kind=known.kind,
      module=self._origins.prefixed(known.module),
      argument=known.name,
    )

  def _output(self, allocation: Allocation) -> PeakRow:
    root = self._analysis.module.entry.root
    tree = self._analysis.dataflow.trees[root.id]
    index, value = next(
      ((i, v) for i, v in tree.items() if v in allocation.offsets),
      ((), next(iter(allocation.offsets))),
    )
    if value.is_tuple_table:
      path, module = "output addresses", ()
    else:
      path = f"output{self._paths.get(index) or _index_path(index)}"
      module = self._origins.module(value, "outputs")
    return self._row(
      value, allocation.size_bytes, "outputs", module, argument=path
    )

  def _live(self, allocation: Allocation) -> dict[Value, int]:
    """Returns the values at the peak of an allocation, and their bytes.

    Of several at one place, the one that came last.
    """
    ranges = self._assignment.ranges
    values = sorted(
      (v for v in allocation.offsets if v.size_bytes),
      key=lambda v: (ranges[v].start, v.id),
    )
    if not values:
      return {}
    step = self._peak_step(values, allocation)
    found = {
      allocation.offsets[v][0]: v
      for v in values
      if ranges[v].start <= step <= ranges[v].end
    }
    return {v: v.size_bytes for v in found.values()}

  def _peak_step(self, values: Sequence[Value], allocation: Allocation) -> int:
    ranges = self._assignment.ranges
    starts = {(allocation.offsets[v][0], ranges[v].start) for v in values}
    change = np.zeros(max(ranges[v].end for v in values) + 2, np.int64)
    for value in values:
      live = ranges[value]
      change[live.start] += value.size_bytes
      place = allocation.offsets[value][0]
      # Where another value takes over the place, the step is that one's.
      hands_over = live.end > live.start and (place, live.end) in starts
      change[live.end if hands_over else live.end + 1] -= value.size_bytes
    return int(np.argmax(np.cumsum(change)))

  def _temporary(
    self, value: Value, size_bytes: int, live: Mapping[Value, int]
  ) -> PeakRow:
    kind = self._origins.kind(value)
    copy_of = ""
    for original in self._origins.originals(value):
      number = self._arguments.number_of(original)
      if number is not None:
        copy_of = self._arguments.of(*number).name
      elif original in live:
        copy_of = copy_of or original.name
    module = self._origins.module(value, kind)
    return self._row(value, size_bytes, kind, module, copy_of=copy_of)

  def _row(
    self,
    value: Value,
    size_bytes: int,
    kind: str,
    module: tuple[str, ...],
    *,
    argument: str = "",
    copy_of: str = "",
  ) -> PeakRow:
    source, package = source_lines.split(self._origins.source(value))
    return PeakRow(
      name=value.name,
      size_bytes=size_bytes,
      kind=kind,
      module=module,
      source=source,
      package=package,
      argument=argument,
      copy_of=copy_of,
    )


def _index_path(index: shapes.ShapeIndex) -> str:
  """Returns an index as a path: "[2][0]"."""
  return "".join(f"[{i}]" for i in index)
