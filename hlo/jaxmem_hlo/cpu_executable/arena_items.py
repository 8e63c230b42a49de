"""Finds what may be moved in the arena of temporaries of a CPU executable.

XLA's buffer assignment says which values lie where, the module's schedule when
they are live, and the thunks which bytes are really used. From the three
follow the items that may be moved, and the item that each slice belongs to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxmem_hlo.buffers import (
  BufferAnalysis,
  LiveRange,
  UnsupportedModuleError,
  Value,
  join_ranges,
  schedule,
  while_computations,
)
from jaxmem_hlo.cpu_executable.errors import UnsupportedExecutableError
from jaxmem_hlo.cpu_executable.placement import (
  ALIGNMENT_BYTES,
  PlacementItem,
  PlacementPart,
  Range,
  find_conflicts,
)
from jaxmem_hlo.module import Instruction, Module
from jaxmem_hlo.proto import cpu_executable_pb2, hlo_pb2


class Reference(NamedTuple):
  """A thunk's own slice (not one of a thunk nested in it)."""

  thunk: cpu_executable_pb2.Thunk
  slice: cpu_executable_pb2.Slice


@dataclasses.dataclass(slots=True, eq=False)
class _Cell:
  """One of XLA's values in the arena: bytes at an offset, live at times."""

  buffer_id: int
  name: str
  offset: int
  size: int
  spans: list[Range]

  def holds(self, piece: cpu_executable_pb2.Slice) -> bool:
    end = self.offset + self.size
    return self.offset <= piece.offset and piece.offset + piece.size <= end


@dataclasses.dataclass(frozen=True, eq=False)
class ArenaItems:
  """Items to place, and what moves with each of them.

  Attributes:
    items: The items, by XLA's offset.
    item_of_buffer: XLA's id of a value -> index of its item. Values without
      bytes have none.
    item_of_slice: Position among the references -> index of the item, for the
      slices that lie in the arena.
  """

  items: tuple[PlacementItem, ...]
  item_of_buffer: dict[int, int]
  item_of_slice: dict[int, int]


def find_items(
  module: Module,
  assignment: hlo_pb2.BufferAssignment,
  temp: hlo_pb2.BufferAllocation,
  references: Sequence[Reference],
) -> ArenaItems:
  """Returns the items of an arena.

  Args:
    module: The scheduled module.
    assignment: Its buffer assignment.
    temp: The allocation of all temporaries in it.
    references: All slices of the thunks.

  Raises:
    UnsupportedExecutableError: If a slice or a value cannot be understood.
  """
  return _ItemFinder(module, assignment, temp).run(references)


class _ItemFinder:
  """Unites the cells that have to keep their distance from each other."""

  def __init__(
    self,
    module: Module,
    assignment: hlo_pb2.BufferAssignment,
    temp: hlo_pb2.BufferAllocation,
  ):
    try:
      self._analysis = BufferAnalysis(module)
      self._timeline = schedule.Timeline(module)
      ranges = schedule.live_ranges(self._analysis, self._timeline)
    except (UnsupportedModuleError, ValueError) as error:
      raise UnsupportedExecutableError(str(error)) from error
    self._module = module
    self._temp = temp
    self._always = (0, self._timeline.length + 1)
    self._instructions = {
      i.name: i
      for c in self._analysis.dataflow.computations
      for i in c.instructions
    }
    self._cells = _make_cells(module, assignment, temp)
    self._cell_of = self._find_cells(assignment, ranges)
    self._parent = list(range(len(self._cells)))

  def run(self, references: Sequence[Reference]) -> ArenaItems:
    """Returns the items, given all slices of the thunks."""
    homes = self._match(references)
    self._unite_buffers(set(homes.values()))
    self._unite_shared_bytes()
    items, item_of_cell = self._make_items()
    return ArenaItems(
      items,
      {c.buffer_id: item_of_cell[i] for i, c in enumerate(self._cells)},
      {i: item_of_cell[cell] for i, cell in homes.items()},
    )

  def _find_cells(
    self,
    assignment: hlo_pb2.BufferAssignment,
    ranges: dict[Value, LiveRange],
  ) -> dict[Value, int]:
    """Maps the module's values to cells, and gives those their live ranges."""
    cell_of_id = {cell.buffer_id: i for i, cell in enumerate(self._cells)}
    cell_at = {
      (b.defined_at.instruction_id, tuple(b.defined_at.shape_index)): (
        cell_of_id[b.id]
      )
      for b in assignment.logical_buffers
      if b.id in cell_of_id
    }
    found: dict[Value, int] = {}
    for value, live in ranges.items():
      cell = cell_at.get((value.instruction.id, value.position.index))
      if cell is not None:
        found[value] = cell
        self._cells[cell].spans.append((live.start, live.end + 1))
    for cell in self._cells:
      if not cell.spans:
        cell.spans.append(self._always)
    return found

  def _match(self, references: Sequence[Reference]) -> dict[int, int]:
    """Returns a cell for each slice in the arena; unites all it may mean."""
    homes: dict[int, int] = {}
    for i, (thunk, piece) in enumerate(references):
      if piece.allocation_index != self._temp.index or not piece.size:
        continue
      cells, span = self._candidates(thunk)
      holding = [c for c in cells if self._cells[c].holds(piece)]
      if not holding:
        # The slice is not what the instruction reads or writes: whatever is
        # there may be meant, at any time.
        holding = [c for c, cell in enumerate(self._cells) if cell.holds(piece)]
        span = self._always
      if not holding:
        raise UnsupportedExecutableError(
          f"Thunk {thunk.info.op_name} uses bytes {piece.offset} to"
          f" {piece.offset + piece.size} of the arena, where no value is."
        )
      for c in holding:
        self._unite(holding[0], c)
        self._cells[c].spans.append(span)
      homes[i] = holding[0]
    return homes

  def _candidates(
    self, thunk: cpu_executable_pb2.Thunk
  ) -> tuple[list[int], Range]:
    """Returns the cells that a thunk may refer to, and when it may."""
    instruction = self._instructions.get(thunk.info.op_name)
    if instruction is None:
      return [], self._always
    trees = self._analysis.dataflow.trees
    time = self._timeline.times[instruction.id]
    kind = thunk.WhichOneof("impl")
    if kind == "while_loop" and instruction.opcode == "while":
      root = while_computations(self._module, instruction)[1].root
      time = self._timeline.times[root.id]
      return self._cells_of([trees[root.id][()]]), (time, time + 1)
    if kind == "conditional" and instruction.opcode == "conditional":
      branch_index = trees[instruction.operands[0]][()]
      return self._cells_of([branch_index]), (time, time + 1)
    inside = list(self._executed_by(instruction))
    values = [
      value
      for i in inside
      for at in (i.id, *i.operands)
      for value in trees[at].values()
    ]
    start = min(self._timeline.times[i.id] for i in inside)
    return self._cells_of(values), (start, time + 1)

  def _executed_by(self, instruction: Instruction) -> Iterator[Instruction]:
    """Yields an instruction and all that run inside it."""
    yield instruction
    if instruction.opcode in ("call", "while", "conditional", "async-start"):
      for callee in instruction.callees:
        for inner in self._module.by_id[callee].instructions:
          yield from self._executed_by(inner)

  def _cells_of(self, values: Iterable[Value]) -> list[int]:
    return list(
      dict.fromkeys(self._cell_of[v] for v in values if v in self._cell_of)
    )

  def _find(self, cell: int) -> int:
    while self._parent[cell] != cell:
      self._parent[cell] = self._parent[self._parent[cell]]
      cell = self._parent[cell]
    return cell

  def _unite(self, a: int, b: int) -> None:
    self._parent[self._find(b)] = self._find(a)

  def _unite_buffers(self, used: set[int]) -> None:
    """Unites values that must share, and checks that thunks use them."""
    for buffer in self._analysis.buffers:
      cells = self._cells_of(buffer.values)
      for cell in cells:
        self._unite(cells[0], cell)
    used_roots = {self._find(c) for c in used}
    for value, cell in self._cell_of.items():
      # Tables of tuples are laid out but never written.
      if not value.is_tuple_table and self._find(cell) not in used_roots:
        raise UnsupportedExecutableError(
          f"No thunk refers to {self._cells[cell].name}: its address may be in"
          " the machine code."
        )

  def _unite_shared_bytes(self) -> None:
    """Unites values that share bytes while both are live."""
    for cell in self._cells:
      cell.spans = join_ranges(cell.spans)
    rows = [
      (i, cell.offset, cell.size, *span)
      for i, cell in enumerate(self._cells)
      for span in cell.spans
    ]
    for i, j in find_conflicts(rows):
      self._unite(i, j)

  def _make_items(self) -> tuple[tuple[PlacementItem, ...], list[int]]:
    groups: dict[int, list[int]] = {}
    for i in range(len(self._cells)):
      groups.setdefault(self._find(i), []).append(i)
    item_of_cell = [0] * len(self._cells)
    items = []
    for number, members in enumerate(groups.values()):
      for i in members:
        item_of_cell[i] = number
      items.append(_make_item([self._cells[i] for i in members]))
    return tuple(items), item_of_cell


def _make_cells(
  module: Module,
  assignment: hlo_pb2.BufferAssignment,
  temp: hlo_pb2.BufferAllocation,
) -> list[_Cell]:
  defined = {b.id: b.defined_at for b in assignment.logical_buffers}
  cells = []
  for assigned in temp.assigned:
    if not assigned.size:
      continue
    at = defined[assigned.logical_buffer_id]
    name = module.instruction(at.instruction_id).name
    cells.append(
      _Cell(
        assigned.logical_buffer_id, name, assigned.offset, assigned.size, []
      )
    )
  return sorted(cells, key=lambda c: (c.offset, c.buffer_id))


def _make_item(cells: Sequence[_Cell]) -> PlacementItem:
  base = min(c.offset for c in cells)
  if base % ALIGNMENT_BYTES:
    raise UnsupportedExecutableError(
      f"XLA placed {cells[0].name} at {base}, which is not a multiple of"
      f" {ALIGNMENT_BYTES}."
    )
  places: dict[tuple[int, int], list[_Cell]] = {}
  for cell in cells:
    places.setdefault((cell.offset - base, cell.size), []).append(cell)
  parts = tuple(
    PlacementPart(
      offset,
      size,
      tuple(join_ranges(s for c in there for s in c.spans)),
      tuple(c.buffer_id for c in there),
    )
    for (offset, size), there in sorted(places.items(), key=lambda p: p[0])
  )
  return PlacementItem(
    name=min(cells, key=lambda c: c.buffer_id).name,
    size_bytes=max(p.offset_bytes + p.size_bytes for p in parts),
    live_ranges=tuple(join_ranges(s for p in parts for s in p.live_ranges)),
    offset_bytes=base,
    parts=parts,
  )
