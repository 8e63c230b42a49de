"""Where the values of a program come from: kind, module, line."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import BufferAnalysis, Value
from jaxmem_hlo.module import (
  COLLECTIVES,
  Instruction,
  ShapeIndex,
  collective_of,
)

from jaxmem.report import origins
from jaxmem.report.argument_kinds import Arguments, form
from jaxmem.rewrite import SUFFIX

# Scopes that say what a layer is, not which.
_CLASS_SCOPE = "eqx.nn."
# So many values are asked for the parameter that is nearest to one.
_MAX_ASKED = 256
# So many sums stand between a part of a gradient and the optimizer.
_MAX_SUMS = 2
# Their operands are many; which one a value comes from is not told.
_OPAQUE = frozenset({"call", "conditional", "parameter", "while"})


class ValueOrigins:
  """Where values come from.

  Args:
    analysis: Of the scheduled module.
    arguments: The program's arguments.

  Attributes:
    analysis: The same.
    arguments: The same.
  """

  def __init__(self, analysis: BufferAnalysis, arguments: Arguments):
    self.analysis = analysis
    self.arguments = arguments
    self._operations = arguments.operations

  def _told(self, value: Value) -> tuple[Instruction, ShapeIndex]:
    """Returns the output whose name says most of what a value holds.

    Where the value itself has no name, what it is a copy of may, others in the
    same memory, its readers, or the loop that it is in. What a loop carries is
    written in the loop's body, which says more than the loop does.
    """
    here = value.position
    is_carried = value.is_phi or here.instruction.opcode == "while"
    if self._operations.is_known(*here) and not is_carried:
      return here
    others = [v.position for v in self.originals(value)]
    others += [v.position for v in self.analysis.buffer_of(value).values]
    known = [p for p in (here, *others) if self._operations.is_known(*p)]
    if known:
      part = self._operations.part(*known[0])
      alike = [p for p in known if self._operations.part(*p) == part]
      return max(alike, key=lambda p: len(origins.scopes(self._name(p))))
    readers = ((use.instruction, ()) for use in self._operations.uses([value]))
    caller = self.analysis.dataflow.callers.get(here.instruction.computation.id)
    around = [] if caller is None else [(caller, ())]
    places = itertools.chain(readers, around)
    return next((p for p in places if self._operations.is_known(*p)), here)

  def _name(self, place: tuple[Instruction, ShapeIndex]) -> str:
    return self._operations.named(*place).proto.metadata.op_name

  def source(self, value: Value) -> str:
    """Returns the line that a value comes from; empty if it is not known."""
    told = self._told(value)
    source = self._operations.source(*told)
    return "" if source == self._name(told) else source

  def operation(self, value: Value) -> str:
    """Returns jax's name of the operation that makes a value, or nothing."""
    return self._name(self._told(value)).rpartition("/")[2]

  def kind(self, value: Value) -> str:
    """Returns the kind of a temporary, or of an argument."""
    number = self.arguments.number_of(value)
    if number is not None:
      return self.arguments.of(*number).kind
    instruction, index = value.position
    if collective_of(self.analysis.module, instruction) is not None:
      return "communication"
    if instruction.opcode == "custom-call" and index and not value.uses:
      return "workspace"
    originals = self.originals(value)
    if originals and self.arguments.number_of(originals[-1]) is not None:
      return "copies of arguments"
    if f".{SUFFIX}" in instruction.name:
      return "recomputed"
    return self._kind_by_part(value)

  def _is_summed_up(self, values: Sequence[Value], hops: int) -> bool:
    """Whether what is read by the optimizer, or returned, is of these values.

    The gradient of a parameter may be a sum of parts, all of the same form.
    """
    if any(v.is_live_out for v in values):
      return True
    if "other" in self._operations.readers(values):
      return True
    sums = {
      found
      for value in values
      for use in value.uses
      for found in self.analysis.dataflow.trees[use.instruction.id].values()
      if found not in values and form(found) == form(value)
    }
    return bool(sums and hops) and self._is_summed_up(list(sums), hops - 1)

  def originals(self, value: Value) -> list[Value]:
    """Returns the values that another only converts, or lays out anew.

    The last is the first of all; what it is a copy of is nothing but itself.
    """
    found: list[Value] = []
    while self._operations.copied(value.instruction):
      operand = value.instruction.operands[0]
      original = self.analysis.dataflow.trees[operand].get(())
      if original is None or original in found or original is value:
        break
      found.append(original)
      value = original
    return found

  def _kind_by_part(self, value: Value) -> str:
    told = self._told(value)
    if not self._operations.is_known(*told):
      return "other"
    if not self._operations.is_differentiated:
      return "intermediate values"
    part = self._operations.part(*told)
    if part == "recomputed":
      return "recomputed"
    values = self.analysis.buffer_of(value).values
    if part == "forward":
      is_kept = self._operations.is_read_later(values)
      return "residuals" if is_kept else "activations"
    if part == "backward":
      is_read = self._is_summed_up(values, _MAX_SUMS)
      return "parameter gradients" if is_read else "activation gradients"
    return "optimizer update"

  def module(self, value: Value, kind: str) -> tuple[str, ...]:
    """Returns the scopes that a value comes from, outermost first.

    Where operations have no scopes, or scopes that say what a layer is and not
    which, the layer is that of the parameter that is read to make the value,
    or, for a parameter's gradient, with the value.
    """
    number = self.arguments.number_of(value)
    if number is not None:
      return self.prefixed(self.arguments.of(*number).module)
    scopes = origins.scopes(self._name(self._told(value)))
    if any(not s.startswith(_CLASS_SCOPE) for s in scopes):
      return scopes
    if self._operations.is_differentiated:
      after = kind in ("outputs", "parameter gradients")
      found = self._nearest(self._readings(value)) if after else ()
      return self.prefixed(found or self._nearest([value])) or scopes
    return scopes

  def _readings(self, value: Value) -> list[Value]:
    return [
      operand
      for use in value.uses
      for operand in self._operands(use.instruction)
      if operand in self._parameters
    ]

  def _operands(self, instruction: Instruction) -> Iterator[Value]:
    if instruction.opcode in _OPAQUE:
      return
    trees = self.analysis.dataflow.trees
    for operand in instruction.operands:
      for value in trees[operand].values():
        if not value.is_tuple_table:
          yield value

  def _made_of(self, value: Value) -> Iterator[Value]:
    instruction, index = value.position
    operands = instruction.operands
    is_combined = (
      len(operands) > 1 and index and instruction.opcode in COLLECTIVES
    )
    if is_combined and index[-1] < len(operands):
      # XLA exchanges several arrays at once; each stays one of its own.
      operand = self.analysis.dataflow.trees[operands[index[-1]]].get(())
      yield from () if operand is None else (operand,)
    else:
      yield from self._operands(instruction)

  @functools.cached_property
  def _parameters(self) -> dict[Value, tuple[str, ...]]:
    """Parameters of the model -> their modules."""
    trees = self.analysis.dataflow.trees
    found = {}
    for parameter in self.analysis.module.entry.parameters:
      for index, value in trees[parameter.id].items():
        known = self.arguments.of(parameter.proto.parameter_number, index)
        if known.kind == "parameters" and known.module:
          found[value] = known.module
    return found

  def _nearest(self, values: list[Value]) -> tuple[str, ...]:
    """Returns the module of the parameter that was read last for values."""
    level, seen = values, set(values)
    while level and len(seen) < _MAX_ASKED:
      near = [v for v in level if v in self._parameters]
      if near:
        largest = max(near, key=lambda v: (v.size_bytes, -v.id))
        return self._parameters[largest]
      read = {
        operand: None
        for value in level
        for operand in self._made_of(value)
        if operand not in seen
      }
      level = list(read)
      seen.update(level)
    return ()

  def prefixed(self, module: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a parameter's module with the outermost scope of its layers.

    Linen opens a scope for the whole model, which parameters' paths leave out.
    """
    if not module:
      return module
    return (*self._outermost.get(module[0], ()), *module)

  @functools.cached_property
  def _outermost(self) -> dict[str, tuple[str, ...]]:
    """Outermost module of a parameter -> the scope around it, if any."""
    firsts = {m[0] for m in self._parameters.values()}
    found: dict[str, set[tuple[str, ...]]] = {}
    for computation in self.analysis.module.computations:
      for instruction in computation.instructions:
        scopes = origins.scopes(instruction.proto.metadata.op_name)
        for place, scope in enumerate(scopes[:2]):
          if scope in firsts:
            found.setdefault(scope, set()).add(scopes[:place])
    return {k: v.pop() for k, v in found.items() if len(v) == 1}


def origins_in(
  model: AssignmentModel, names: Mapping[str, str]
) -> ValueOrigins:
  """Returns where the values of a module come from.

  Args:
    model: Of the module's buffers.
    names: What the module calls an argument -> a better name, if there is one.
  """
  return ValueOrigins(model.analysis, Arguments(model.analysis, names))
