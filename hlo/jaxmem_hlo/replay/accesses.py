"""Reads and writes of a replayed program, and what is wrong with them."""

from __future__ import annotations

from jaxmem_hlo.buffers import BufferAnalysis, aliasing
from jaxmem_hlo.module import Instruction, ShapeIndex, shapes
from jaxmem_hlo.replay.memory import Memory, Tree, Version, describe, when
from jaxmem_hlo.replay.placed_values import Fault, FaultKind, PlacedValues

# An instruction reads a version at these places: (operand number, index in it).
Reads = dict[Version, list[tuple[int, ShapeIndex]]]


class Accesses:
  """Reads and writes of the symbols in memory.

  Attributes:
    memory: What is where; may be replaced to try another path.
    faults: Found so far; a fault in a loop is found once per iteration.
    num_reads: Number of checked reads.
    writes: All versions that were written, in order.
  """

  def __init__(
    self, analysis: BufferAnalysis, placed: PlacedValues, platform: str
  ):
    self.memory = Memory()
    self.faults: list[Fault] = []
    self.num_reads = 0
    self.writes: list[Version] = []
    self._analysis = analysis
    self._module = analysis.module
    self._placed = placed
    self._platform = platform
    self._shares: dict[tuple[int, ShapeIndex, int, ShapeIndex], bool] = {}
    self._read_only = {
      index for index in placed.allocations if placed.is_read_only(index)
    }

  def read(
    self, reader: Instruction, step: int, source: Instruction, tree: Tree
  ) -> None:
    """Checks a read of what `source` holds.

    Args:
      reader: Who reads; the source itself stands for the program's caller.
      step: The reader's position in the schedule of its computation.
      source: The operand or, where control passes on, a computation's root.
      tree: The versions that must be found at the source's indices.
    """
    for index, version in tree.items():
      place = self._placed.place(source, index)
      if place == version.place:
        self.check_held(reader, step, source, index, version)
        continue
      self.num_reads += 1
      text = _reading(reader, step, source, index)
      self._fault(
        FaultKind.MISPLACED,
        f"{text} in {place}, but {version.dated} put it in {version.place}",
      )

  def check_held(
    self,
    reader: Instruction,
    step: int,
    source: Instruction,
    index: ShapeIndex,
    version: Version,
  ) -> None:
    """Checks that a version is still whole where it was written."""
    self.num_reads += 1
    if self.memory.holds(version):
      return
    for start, end, holder in self.memory.pieces(version.place):
      if holder is version:
        continue
      text = (
        f"{_reading(reader, step, source, index)}, expecting"
        f" {version.dated} in {version.place}, but bytes [{start}, {end})"
        f" hold {holder.dated if holder else 'nothing'}"
      )
      if holder is None or not self._replaces(holder, version):
        self._fault(FaultKind.OVERWRITTEN, text)
      else:
        text += f": too late, {_late(version, holder)}"
        self._fault(FaultKind.LATE_READ, text)

  def define(
    self,
    writer: Instruction,
    step: int,
    kept: Tree,
    reads: Reads,
  ) -> Tree:
    """Writes the outputs of an instruction over what is in their places.

    Args:
      writer: The instruction.
      step: Its position in the schedule of its computation.
      kept: Outputs that it only passes on; they are not written.
      reads: What it reads; an output may lie on that only where the operation
        can work in place.

    Returns:
      The version at every index, the kept ones included.
    """
    tree: Tree = {}
    made: list[Version] = []
    for index, _ in shapes.subshapes(writer.shape):
      if index in kept:
        tree[index] = kept[index]
        continue
      tree[index] = self._version(writer, index, step)
      made.append(tree[index])
    for version in made:
      self._check_write(version, reads)
    for version in made:
      self._write(version)
    for version in made:
      if not self.memory.holds(version):
        text = f"another output of {writer.name} overlaps {version.located}"
        self._fault(FaultKind.OVERLAP, text)
    return tree

  def _check_write(
    self,
    version: Version,
    reads: Reads,
  ) -> None:
    if version.place.size and version.place.allocation in self._read_only:
      text = f"{version.located} is written, which must keep its contents"
      self._fault(FaultKind.READ_ONLY, text)
    for start, end, holder in self.memory.pieces(version.place):
      if holder is None or holder not in reads:
        continue
      for number, index in reads[holder]:
        if holder.place == version.place and self._may_share(
          version.instruction, number, index, version.index
        ):
          continue
        self._fault(
          FaultKind.OVERLAP,
          f"output {version.located} overlaps operand {number},"
          f" {holder.dated}, in bytes [{start}, {end}) while it reads it",
        )

  def _replaces(self, new: Version, old: Version) -> bool:
    """Whether the new version is meant to take the old one's place."""
    buffer_of = self._analysis.buffer_of
    return buffer_of(new.value) is buffer_of(old.value)

  def _may_share(
    self,
    user: Instruction,
    number: int,
    operand_index: ShapeIndex,
    user_index: ShapeIndex,
  ) -> bool:
    operand = self._module.instruction(user.operands[number])
    if shapes.is_tuple(shapes.subshape(user.shape, user_index)):
      return False
    key = (operand.id, operand_index, user.id, user_index)
    if key not in self._shares:
      pair = aliasing.InPlacePair(number, operand_index, user_index)
      self._shares[key] = pair in aliasing.in_place_pairs(
        self._module, user
      ) or aliasing.can_share(
        self._module, self._platform, operand, operand_index, user, user_index
      )
    return self._shares[key]

  def preset(self, instruction: Instruction) -> Tree:
    """Writes what an instruction holds before the program starts."""
    tree: Tree = {}
    for index, _ in shapes.subshapes(instruction.shape):
      tree[index] = self._version(instruction, index, -1)
      self._write(tree[index])
    return tree

  def _version(
    self, instruction: Instruction, index: ShapeIndex, step: int
  ) -> Version:
    value = self._analysis.dataflow.trees[instruction.id][index]
    place = self._placed.places[value]
    return Version(instruction, index, value, place, step)

  def _write(self, version: Version) -> None:
    self.writes.append(version)
    self.memory.write(version)

  def _fault(self, kind: FaultKind, message: str) -> None:
    self.faults.append(Fault(kind, message))


def _reading(
  reader: Instruction, step: int, source: Instruction, index: ShapeIndex
) -> str:
  reading = f"{reader.name} ({when(reader, step)})"
  name = describe(source, index)
  if source is reader:
    return f"the caller takes output {name}"
  if source.id not in reader.operands:
    return f"{reading} takes {name}"
  number = reader.operands.index(source.id)
  return f"{reading} reads operand {number}, {name}"


def _late(old: Version, new: Version) -> str:
  """Says why a version was replaced."""
  if old.instruction.opcode == "parameter":
    return "the parameter is donated and its output is already defined"
  if new.instruction.computation is not old.instruction.computation:
    return "a loop or a branch has written its next version in place"
  return f"{new.instruction.name} has written its next version in place"
