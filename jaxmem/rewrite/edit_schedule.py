"""Makes edits in a scheduled module: second runs, and moves to the host.

The given schedule is walked once, and for every value the latest producer so
far is known: the original, a clone, or what was fetched from the host. Every
instruction that is met reads the latest producers; bitcasts, tuples and
get-tuple-elements in between are made anew where their source changed. What
nobody reads any more goes: clones, renames, originals whose uses all read
clones, and outputs of fusions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from jaxmem_hlo.buffers import dataflow
from jaxmem_hlo.module import RENAMES, Instruction, Module
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.rewrite.edits import Edits, Offload, Recompute, Value
from jaxmem.rewrite.fusion_parts import can_split, part_of_body, part_of_shape
from jaxmem.rewrite.host_copies import check_platform, end_copy, start_copy
from jaxmem.rewrite.latest_producers import SUFFIX, LatestProducers
from jaxmem.rewrite.module_editor import ModuleEditor
from jaxmem.rewrite.prune import Pruner
from jaxmem.rewrite.recompute_rules import (
  RecomputeError,
  RecomputeRules,
  recomputable,
)


def apply_edits(
  module: Module,
  edits: Edits,
  platform: str | None = None,
  rules: RecomputeRules | None = None,
) -> Module:
  """Returns a module with edits made.

  Args:
    module: A scheduled module; it is not changed.
    edits: What to run again and what to move, by ids of the module's entry.
    platform: "cpu" or "cuda"; only moves to the host need it.
    rules: What `recomputable(module)` returned, if it is there already.

  Returns:
    The edited module. Instructions that stay keep their ids, and the entry's
    order stays as it was; what an edit made is named after it. A second run
    that nobody reads is not made.

  Raises:
    RecomputeError: If an edit names no value, would repeat what must not run
      twice, or would read a value that something else was written over.
    ValueError: If there is nothing to move a value to on that platform.
    UnsupportedModuleError: If the module holds something unknown.
  """
  if edits.offloads:
    check_platform(platform)
  return _Rewriter(edits, rules or recomputable(module)).run()


class _Rewriter:
  """Plans what to do when, then walks the schedule and does it."""

  def __init__(self, edits: Edits, rules: RecomputeRules):
    module = self._module = rules.module
    self._entry = module.entry
    self._rules = rules
    self._editor = ModuleEditor(module)
    self._producers = LatestProducers(rules, self._editor)
    self._whole_clones: dict[tuple[int, int], int] = {}
    # What to do before the instruction of a time, and after it.
    self._before: dict[int, list[Callable[[int], None]]] = {}
    self._after: dict[int, list[Callable[[int], None]]] = {}
    for move in edits.offloads:
      self._plan_offload(move)
    for again in edits.recomputes:
      self._plan_recompute(again)

  def run(self) -> Module:
    for time, instruction in enumerate(self._producers.schedule):
      for act in self._before.get(time, ()):
        act(time)
      self._keep(instruction)
      for act in self._after.get(time, ()):
        act(time + 1)
    pruner = Pruner(self._rules, self._editor)
    return self._editor.finish(pruner.run(self._producers.emitted))

  # Edits: checked first, done when the walk comes by.

  def _plan_recompute(self, again: Recompute) -> None:
    reason = self._rules.why_not(again.value)
    if reason:
      raise RecomputeError(
        f"{self._name(again.value)} cannot be recomputed: {reason}."
      )
    time = self._time(again.before, again.value)
    self._before.setdefault(time, []).append(
      lambda slot: self._recompute(again.value, slot)
    )

  def _plan_offload(self, move: Offload) -> None:
    reason = self._rules.why_not_moved(move.value)
    if reason:
      raise RecomputeError(
        f"{self._name(move.value)} cannot be moved to the host: {reason}."
      )
    store_done, fetch_start, fetch_done = (
      self._time(i, move.value)
      for i in (move.store_done, move.fetch_start, move.fetch_done)
    )
    if not store_done <= fetch_start <= fetch_done:
      raise RecomputeError(
        f"{self._name(move.value)}: expected store_done, fetch_start and"
        f" fetch_done in this order, got times {store_done}, {fetch_start} and"
        f" {fetch_done}."
      )
    acts = self._moves(move.value)
    next(acts)
    made_at = self._producers.times[move.value.instruction]
    self._after.setdefault(made_at, []).append(acts.send)
    for time in (store_done, fetch_start, fetch_done):
      self._before.setdefault(time, []).append(acts.send)

  def _moves(self, moved: Value) -> Generator[None, int, None]:
    """Moves a value to the host and back; each act is sent its slot."""
    editor, producers = self._editor, self._producers
    value = self._definition(moved)
    slot = yield
    source = self._original(moved)
    producers.check_readable(value, slot, "its copy to the host")
    shape = producers.shape_of(source)
    store = start_copy(editor, source, shape, to_host=True)
    producers.emit(store)
    slot = yield
    # Until here the copy reads the value.
    producers.check_readable(value, slot, "its copy to the host")
    stored = end_copy(editor, store)
    producers.emit(stored)
    yield
    fetch = start_copy(editor, stored.id, shape, to_host=False)
    producers.emit(fetch)
    slot = yield
    fetched = end_copy(editor, fetch)
    producers.emit(fetched)
    producers.set_latest(value, fetched.id, slot)
    yield

  def _time(self, instruction_id: int, value: Value) -> int:
    times = self._producers.times
    time = times.get(instruction_id)
    if time is None:
      raise RecomputeError(
        f"{self._name(value)}: {instruction_id} is no instruction of the"
        " entry's schedule."
      )
    if time <= times[value.instruction]:
      early = self._entry.by_id[instruction_id].name
      raise RecomputeError(
        f"{self._name(value)}: {early} runs before the value is there."
      )
    return time

  def _name(self, value: Value) -> str:
    instruction = self._entry.by_id.get(value.instruction)
    name = instruction.name if instruction else str(value.instruction)
    return name if value.output is None else f"{name}.{value.output}"

  def _definition(self, value: Value) -> dataflow.Value:
    index = () if value.output is None else (value.output,)
    trees = self._rules.analysis.dataflow.trees
    return trees[value.instruction][index]

  # Instructions.

  def _keep(self, instruction: Instruction) -> None:
    """Emits an instruction of the given schedule."""
    proto = hlo_pb2.Instruction()
    proto.CopyFrom(instruction.proto)
    # Renames stay as they are; who reads them follows them to the source.
    if instruction.opcode not in RENAMES:
      slot = self._producers.times[instruction.id]
      proto.operand_ids[:] = [
        self._producers.resolve(o, slot) for o in instruction.operands
      ]
    self._producers.emit(proto)

  def _recompute(self, value: Value, slot: int) -> None:
    instruction = self._entry.by_id[value.instruction]
    if value.output is None:
      made = self._clone(instruction, None, slot)
    elif can_split(self._module, instruction):
      made = self._clone(instruction, value.output, slot)
    else:
      key = (instruction.id, slot)
      if key not in self._whole_clones:
        self._whole_clones[key] = self._clone(instruction, None, slot)
      made = self._element(self._whole_clones[key], instruction, value.output)
    self._producers.set_latest(self._definition(value), made, slot)

  def _clone(
    self, instruction: Instruction, output: int | None, slot: int
  ) -> int:
    """Emits a second run, of one output if that is given."""
    proto = hlo_pb2.Instruction()
    proto.CopyFrom(instruction.proto)
    proto.name = self._editor.fresh_name(f"{instruction.name}.{SUFFIX}")
    proto.id = self._editor.fresh_id()
    proto.metadata.op_name = "/".join(
      filter(None, (instruction.proto.metadata.op_name, SUFFIX))
    )
    # Where it stands in the schedule is all the order that it needs.
    del proto.control_predecessor_ids[:]
    operands = instruction.operands
    bodies = [self._module.by_id[c].proto for c in instruction.callees]
    if output is not None:
      body, kept = part_of_body(
        self._module.by_id[instruction.callees[0]], (output,)
      )
      bodies = [body]
      operands = tuple(operands[n] for n in kept)
      proto.shape.CopyFrom(part_of_shape(instruction.shape, (output,)))
      proto.ClearField("original_value")
    for operand in operands:
      self._producers.check_operand(operand, slot, instruction)
    proto.operand_ids[:] = [self._producers.resolve(o, slot) for o in operands]
    proto.called_computation_ids[:] = [
      self._editor.add_computation(b, SUFFIX) for b in bodies
    ]
    self._producers.emit(proto)
    return proto.id

  def _element(self, whole: int, instruction: Instruction, index: int) -> int:
    proto = hlo_pb2.Instruction(
      name=self._editor.fresh_name(f"{instruction.name}.{SUFFIX}.element"),
      opcode="get-tuple-element",
      id=self._editor.fresh_id(),
      shape=instruction.shape.tuple_shapes[index],
      metadata=instruction.proto.metadata,
      tuple_index=index,
      operand_ids=[whole],
    )
    self._producers.emit(proto)
    return proto.id

  def _original(self, value: Value) -> int:
    """The instruction that holds a value as it was first made."""
    instruction = self._entry.by_id[value.instruction]
    if value.output is None:
      return instruction.id
    return self._element(instruction.id, instruction, value.output)
