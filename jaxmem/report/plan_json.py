"""A plan as JSON, and back: the type of every field is checked on the way."""

import collections.abc
import dataclasses
import functools
import json
import types
import typing
from typing import Any

from jaxmem.report.layout import Layout
from jaxmem.report.plan_data import PlanData

# Raised when the fields or their meanings change.
_FORMAT_NUMBER = 10
# XLA counts in 64 bits, and no program has that many steps.
_MOST = 2**63
_MOST_STEPS = 2**24


def to_json(plan: PlanData) -> str:
  """Serializes the fields that `PlanData` declares."""
  fields = {f.name: getattr(plan, f.name) for f in dataclasses.fields(PlanData)}
  return json.dumps(
    {"format": _FORMAT_NUMBER, **fields}, default=dataclasses.asdict
  )


def from_json[P: PlanData](text: str, plan_class: type[P]) -> P:
  """Reads what `to_json` wrote.

  Args:
    text: The JSON.
    plan_class: What to return. Fields beyond those of `PlanData` must have
      defaults.

  Raises:
    ValueError: If the text is not such a plan; the error names the field.
  """
  try:
    record = json.loads(text)
    number = record.pop("format", None) if isinstance(record, dict) else None
    if number != _FORMAT_NUMBER:
      raise ValueError(
        f"its format is {number}, not {_FORMAT_NUMBER}"
        if type(number) is int
        else "it has no format number"
      )
    plan = plan_class(**read_fields(PlanData, record))
    _check_layout(plan.before, "before")
    _check_layout(plan.after, "after")
    plan.baseline_timing.check(plan.before.num_steps)
    plan.timing.check(plan.after.num_steps)
    return plan
  except (RecursionError, ValueError) as error:
    raise ValueError(
      f"Not a plan written by Plan.to_json: {error}. Plan the step again with"
      " this version of jaxmem."
    ) from error


def _check_layout(layout: Layout, path: str) -> None:
  """Raises ValueError if a layout is none that could be drawn."""
  if not 0 <= layout.num_steps <= _MOST_STEPS:
    raise ValueError(f"{path}.num_steps must be from 0 to {_MOST_STEPS}")
  for i, buffer in enumerate(layout.buffers):
    is_live = 0 <= buffer.start <= buffer.end <= layout.num_steps
    is_placed = min(buffer.size_bytes, buffer.offset_bytes) >= 0
    if not (is_live and is_placed):
      raise ValueError(f"{path}.buffers[{i}] has no place or no live range")


# The declared types of fields, cached: a plan has thousands of buffers.
_declared_types = functools.cache(typing.get_type_hints)


def read_fields(
  dataclass: type, record: dict[str, Any], path: str = ""
) -> dict[str, Any]:
  """Returns the values of a dataclass's fields, all of which must be there.

  Args:
    dataclass: Its fields are of the types that `_read` knows.
    record: What JSON holds: `dataclasses.asdict` of an instance.
    path: Of the record within what is read, for errors.

  Raises:
    ValueError: If a field is missing, unknown, or of another type.
  """
  declared = _declared_types(dataclass)
  prefix = f"{path}." if path else ""
  for name in sorted(declared.keys() ^ record.keys()):
    fault = "is unknown" if name in record else "is missing"
    raise ValueError(f"the field {prefix}{name} {fault}")
  return {
    name: _read(declared[name], value, f"{prefix}{name}")
    for name, value in record.items()
  }


def _read(declared: Any, value: Any, path: str) -> Any:
  """Returns what JSON holds as the type that a field declares.

  Args:
    declared: The type: a dataclass, tuple[T, ...], dict or Mapping of str or
      int to T, a literal, a plain type, or a union of one of these with None,
      or of plain types.
    value: What JSON holds.
    path: Of the field: "before.buffers[3].name".

  Raises:
    ValueError: If the value is of another type.
  """
  if dataclasses.is_dataclass(declared):
    assert isinstance(declared, type)
    record = _checked((dict,), value, path)
    return declared(**read_fields(declared, record, path))
  origin, args = typing.get_origin(declared), typing.get_args(declared)
  if origin is tuple:
    item_type, _ = args  # tuple[item_type, ...]
    items = enumerate(_checked((list,), value, path))
    return tuple(_read(item_type, item, f"{path}[{i}]") for i, item in items)
  if origin in (dict, collections.abc.Mapping):
    key_type, item_type = args  # JSON has strings only.
    items = _checked((dict,), value, path).items()
    return {
      key_type(key): _read(item_type, item, f"{path}.{key}")
      for key, item in items
    }
  if origin is typing.Literal:
    if value not in args:
      raise ValueError(f"{path} must be one of {args}, got {value!r}")
    return value
  if origin in (types.UnionType, typing.Union):
    some = [each for each in args if each is not types.NoneType]
    if value is None or len(some) > 1:
      return _checked(args, value, path)
    return _read(some[0], value, path)
  # JSON does not tell 1.0 from 1.
  plain = (float, int) if declared is float else (declared,)
  return _checked(plain, value, path)


def _checked(plain: tuple[type, ...], value: Any, path: str) -> Any:
  if isinstance(value, int) and abs(value) > _MOST:
    raise ValueError(f"{path} must fit 64 bits")
  if isinstance(value, str) and not value.isascii():
    value.encode()  # A ValueError if it is half a character.
  # isinstance would take a bool for an int.
  if type(value) not in plain:
    expected = " or ".join(each.__name__ for each in plain)
    found = type(value).__name__
    raise ValueError(f"{path} must be of type {expected}, got {found}")
  return value
