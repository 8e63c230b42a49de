"""What may run twice, and until when a value can be read.

An instruction may run again if it computes its outputs from its operands and
does nothing else: no side effect, no hidden state, no other device, no write
into an operand. And it must find its operands: a value is gone once another
one has been written into its buffer in place, be it by an update, by a loop
that carries it, or by the output that takes a donated argument's memory.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

from jaxmem_hlo.buffers import BufferAnalysis, aliasing, dataflow
from jaxmem_hlo.module import (
  GIVEN,
  RENAMES,
  STATEFUL_PREFIXES,
  Instruction,
  Module,
  shapes,
)

from jaxmem.rewrite.edits import Value

_CALLERS = frozenset({"call", "conditional", "while"})
# They add up in any order on GPUs, so that every run has other bits.
_UNORDERED = frozenset({"scatter", "select-and-scatter"})
_PURE_CALLS = ("__cublas$", "__cudnn$conv", "__onednn$")


class RecomputeError(ValueError):
  """An edit that would change what the program computes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecomputeRules:
  """What edits of a module's entry must respect.

  Attributes:
    module: The module.
    analysis: Its buffers.
    refusals: Entry instruction id -> why it may not run twice.
    results: Values that the program returns; they are there to the end and
      are not made again.
    overwriters: Value -> the entry instruction that writes over it in place.
      Only what runs before that instruction, or is it, may read the value.
  """

  module: Module
  analysis: BufferAnalysis
  refusals: Mapping[int, str]
  results: frozenset[Value]
  overwriters: Mapping[dataflow.Value, Instruction]

  def why_not(self, value: Value) -> str:
    """Returns why a value may not be made again, "" if it may."""
    return self.refusals.get(value.instruction) or self._why_no_edit(value)

  def why_not_moved(self, value: Value) -> str:
    """Returns why a value may not go to the host and back, "" if it may."""
    instruction = self.module.entry.by_id.get(value.instruction)
    opcode = instruction.opcode if instruction else ""
    if opcode in GIVEN or opcode in RENAMES:
      return f"a {opcode} produces no value"
    if opcode.endswith("-start"):
      return "it is not there before the asynchronous operation is done"
    reason = self._why_no_edit(value)
    if reason or instruction is None:
      return reason
    index = () if value.output is None else (value.output,)
    is_moved = shapes.subshape(instruction.shape, index).layout.memory_space
    return "it is not in the device's own memory" if is_moved else ""

  def _why_no_edit(self, value: Value) -> str:
    """Why no edit may name a value, "" if one may."""
    instruction = self.module.entry.by_id.get(value.instruction)
    if instruction is None:
      return "it is no instruction of the entry computation"
    shape = instruction.shape
    if shapes.is_tuple(shape) != (value.output is not None):
      return "output must be an index if, and only if, the shape is a tuple"
    if value.output is not None:
      if not 0 <= value.output < len(shape.tuple_shapes):
        return f"it has {len(shape.tuple_shapes)} outputs"
      shape = shape.tuple_shapes[value.output]
    if shapes.is_tuple(shape) or shape.element_type == shapes.TOKEN:
      return "it is no array"
    return "the program returns it" if value in self.results else ""


def recomputable(
  module: Module, analysis: BufferAnalysis | None = None
) -> RecomputeRules:
  """Finds what may run twice and until when values can be read.

  Args:
    module: A scheduled module.
    analysis: Its buffers, if they are known already.

  Raises:
    UnsupportedModuleError: If the module holds something unknown.
  """
  analysis = analysis or BufferAnalysis(module)
  entry = module.entry
  refusals = {
    i.id: reason for i in entry.instructions if (reason := _why_not(module, i))
  }
  results = {
    named
    for value in analysis.dataflow.trees[entry.root.id].values()
    if (named := named_value(module, value)) is not None
  }
  return RecomputeRules(
    module=module,
    analysis=analysis,
    refusals=refusals,
    results=frozenset(results),
    overwriters=_find_overwriters(analysis),
  )


def named_value(module: Module, value: dataflow.Value) -> Value | None:
  """Returns the edits' name of a value, None if it has none."""
  instruction, index = value.position
  if instruction.computation is not module.entry or len(index) > 1:
    return None
  if not index and shapes.is_tuple(instruction.shape):
    return None
  return Value(instruction=instruction.id, output=index[0] if index else None)


def _find_overwriters(
  analysis: BufferAnalysis,
) -> dict[dataflow.Value, Instruction]:
  """Returns which entry instruction writes over a value in place."""
  module = analysis.module
  schedule = module.schedule(module.entry.id)
  times = {i.id: t for t, i in enumerate(schedule)}
  found: dict[dataflow.Value, Instruction] = {}
  for buffer in analysis.buffers:
    if len(buffer.values) < 2 or buffer.values[0].is_tuple_table:
      continue
    made = {
      value: time
      for value in buffer.values
      if (time := _definition_time(analysis, times, value)) is not None
    }
    chain = sorted(made, key=lambda value: (made[value], value.id))
    for old, new in itertools.pairwise(chain):
      if made[new] >= 0:
        found[old] = schedule[made[new]]
  return found


def _definition_time(
  analysis: BufferAnalysis, times: Mapping[int, int], value: dataflow.Value
) -> int | None:
  """When a value is first there in the entry; -1 is the start."""
  module = analysis.module
  if value.instruction.computation is module.entry:
    places = [value.instruction]
  else:
    places = [
      p.instruction
      for p in value.positions
      if p.instruction.computation is module.entry
      and p.instruction.opcode not in RENAMES
    ]
    # The entry may never see what is written inside of a call.
    call = analysis.dataflow.call_in(module.entry, value.instruction)
    if call is not None:
      places.append(call)
  if any(p.opcode == "parameter" for p in places):
    return -1
  return min((times[p.id] for p in places), default=None)


def _why_not(module: Module, instruction: Instruction) -> str:
  opcode = instruction.opcode
  if opcode in GIVEN or opcode in RENAMES:
    return f"a {opcode} computes nothing"
  if opcode in _CALLERS:
    return f"a {opcode} is run by the schedule of another computation"
  if any(
    shape.element_type == shapes.TOKEN
    for _, shape in shapes.subshapes(instruction.shape)
  ):
    return "it returns a token"
  return _why_not_pure(module, instruction) or (
    "it writes into an operand in place"
    if aliasing.in_place_pairs(module, instruction)
    else ""
  )


def _why_not_pure(module: Module, instruction: Instruction) -> str:
  opcode, proto = instruction.opcode, instruction.proto
  if opcode.startswith(STATEFUL_PREFIXES):
    return f"a {opcode} has a state, or others take part in it"
  if opcode in _UNORDERED:
    return f"a {opcode} may sum in another order in every run"
  if proto.custom_call_has_side_effect:
    return "it has a side effect"
  if opcode == "custom-call" and not proto.custom_call_target.startswith(
    _PURE_CALLS
  ):
    return f"what {proto.custom_call_target!r} does is not known"
  reasons = (
    _why_not_pure(module, inner)
    for callee in instruction.callees
    for inner in module.by_id[callee].instructions
  )
  return next(filter(None, reasons), "")
