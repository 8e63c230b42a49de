"""What the arguments of a step are, by who reads them and what is returned."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxmem_hlo.buffers import BufferAnalysis, Value
from jaxmem_hlo.module import ShapeIndex, shapes

from jaxmem.report import origins
from jaxmem.report.operations import Operations

# Keys that say of an array that no gradient updates that it is a parameter.
_PARAMETER_KEY = re.compile(r".*param.*|kernel|weights?|bias|scale|embedding")
_STATISTICS = re.compile(r"batch_stats|.*statistics.*|moving_\w+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentOrigin:
  """What an argument of a step is.

  Attributes:
    name: Its path, as the user would write it.
    kind: "parameters", "optimizer state", "other state" or "inputs".
    module: The module it belongs to; empty if that is not known.
  """

  name: str
  kind: str
  module: tuple[str, ...] = ()


class Arguments:
  """The arguments of a program.

  Args:
    analysis: Of the scheduled module.
    names: The names of arguments in the module -> better ones, if there are.
  """

  def __init__(self, analysis: BufferAnalysis, names: Mapping[str, str]):
    self.operations = Operations(analysis.dataflow)
    self._analysis = analysis
    self._numbers: dict[Value, tuple[int, ShapeIndex]] = {}
    self._known: dict[tuple[int, ShapeIndex], ArgumentOrigin] = {}
    found: dict[tuple[int, ShapeIndex], tuple[str, str]] = {}
    returned = list(self._returned())
    for parameter in analysis.module.entry.parameters:
      number = parameter.proto.parameter_number
      given = parameter.proto.metadata.op_name.replace("\\'", "'")
      name = names.get(given, given) or f"argument {number}"
      for index, value in analysis.dataflow.trees[parameter.id].items():
        key = number, index
        self._numbers[value] = key
        found[key] = name, self._kind(value, key, name, returned)
    self._set_modules(found)

  def of(self, number: int, index: ShapeIndex) -> ArgumentOrigin:
    """Returns what is known of an argument.

    Args:
      number: The parameter's number.
      index: In it.
    """
    return self._known[number, index]

  def number_of(self, value: Value) -> tuple[int, ShapeIndex] | None:
    """Returns number and index of the argument that a value is, if it is."""
    return self._numbers.get(value)

  def _returned(self) -> Iterator[tuple[Any, origins.Part]]:
    """Yields form and part of the program of what the step returns."""
    root = self._analysis.module.entry.root
    for value in self._analysis.dataflow.trees[root.id].values():
      if not value.is_tuple_table:
        instruction, index = value.position
        part = self.operations.part(instruction, index)
        yield form(value), part

  def _kind(
    self,
    value: Value,
    key: tuple[int, ShapeIndex],
    name: str,
    returned: list[tuple[Any, origins.Part]],
  ) -> str:
    path = origins.keys(name)
    if any(_STATISTICS.fullmatch(k) for k in path):
      return "other state"
    own = form(value)
    is_state = key in self._analysis.module.donations or any(
      own == other and part in ("other", "backward") for other, part in returned
    )
    if self.operations.is_differentiated:
      read = self.operations.readers([value])
      if is_state:
        return "parameters" if read - {"other"} else "optimizer state"
    elif is_state:
      return "other state"
    is_parameter = any(_PARAMETER_KEY.fullmatch(k) for k in path)
    return "parameters" if is_parameter else "inputs"

  def _set_modules(
    self, found: Mapping[tuple[int, ShapeIndex], tuple[str, str]]
  ) -> None:
    """Says to which module each array belongs.

    An optimizer's array belongs to the parameter at whose path it lies in the
    optimizer's state: "opt[0].mu['Dense_0']['kernel']".
    """
    modules = {
      origins.parameter_path(name): origins.module_of(name)
      for name, kind in found.values()
      if kind == "parameters"
    }
    for key, (name, kind) in found.items():
      module: tuple[str, ...] = ()
      if kind in ("parameters", "other state"):
        module = origins.module_of(name)
      elif kind == "optimizer state":
        path = origins.parameter_path(name)
        ends = (path[start:] for start in range(len(path)))
        module = next((modules[end] for end in ends if end in modules), ())
      self._known[key] = ArgumentOrigin(name=name, kind=kind, module=module)


def form(value: Value) -> Any:
  """Returns what an argument and the output that replaces it have in common."""
  instruction, index = value.position
  shape = shapes.subshape(instruction.shape, index)
  return shape.element_type, tuple(shape.dimensions)
