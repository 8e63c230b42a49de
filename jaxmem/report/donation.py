"""Which arguments of a step are donated, which could be, and why not others.

A donated argument gives its memory to an output. jax pairs donated arguments
with outputs of the same shape and type, in order; so of every kind, as many
arguments can be donated as there are outputs.
See https://docs.jax.dev/en/latest/201/jit.html on donation.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from jaxmem_hlo.module import Module, shapes

from jaxmem import units
from jaxmem.report.signature import Argument, Signature

Status = Literal["donated", "possible", "unused donation", "impossible"]

_NOT_USED = "the step does not use it"
_MAX_GROUPS_SHOWN = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DonationAdvice:
  """What donation does, or could do, for one array.

  Attributes:
    argument: The array, as jax names it: "params['w']".
    group: The argument of the function that it belongs to: "params".
    place: That argument's position, or keyword; None if it is not known.
    size_bytes: Of the array; on one device, if the step uses it. With it
      donated, outputs take that much less; temporaries may take more.
    status: "donated": an output reuses it; "possible": donated, an output
      would; "unused donation": the user donated it, to no avail;
      "impossible": not donated, and that would be to no avail.
    reason: Why not; empty for the first two.
  """

  argument: str
  group: str
  place: int | str | None
  size_bytes: int
  status: Status
  reason: str = ""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class _Array:
  """An array that the program takes or returns.

  Attributes:
    shape: Its shape on one device.
    aval: Shape and type over all devices; empty if not known.
    path: Where in the function's argument or result it lies.
    is_free: Whether it is neither donated, nor what a donated argument becomes.
  """

  shape: Any
  aval: str
  path: str
  is_free: bool

  @property
  def logical_kind(self) -> tuple[Any, ...]:
    """What two arrays have in common up to layout and memory space."""
    return self.shape.element_type, tuple(self.shape.dimensions), self.aval

  @property
  def kind(self) -> tuple[Any, ...]:
    """What a donated argument has in common with the output it becomes."""
    layout = self.shape.layout
    order = tuple(layout.minor_to_major)
    where = layout.element_size_in_bits, layout.memory_space
    return (*self.logical_kind, order, *where)


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class _Input(_Array):
  """An array that the program takes; `is_used` is whether it reads it."""

  argument: Argument
  is_used: bool


def advise(
  module: Module,
  signature: Signature | None = None,
  names: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[DonationAdvice, ...]:
  """Says of every array that a step takes what donation does or could do.

  Args:
    module: The step's scheduled module.
    signature: What the function takes and returns. Without it, and where it
      does not agree with the module, arrays have the names that the module
      knows, and what the user donated in vain is not told from the rest.
    names: What the module calls an array -> a better name, if there is one.

  Returns:
    One entry for each array, in the order in which the function takes them.
    The ones called possible can be donated all together.
  """
  arguments = _arguments(module, signature)
  if arguments is None:
    arguments, signature = _unknown_arguments(module, names), None
  kept = [a for a in arguments if a.is_kept]
  inputs = _inputs(module, kept)
  outputs = _outputs(module, signature)
  candidates = [i for i in inputs if i.is_free and not i.argument.is_requested]
  # Of several that want one output, those that the step reads come first.
  candidates.sort(key=lambda i: not i.is_used)
  possible = _pair(candidates, [o for o in outputs if o.is_free])
  # What the step does not use, jax drops: the module has no such input.
  of_argument = {id(i.argument): i for i in inputs}
  found = [(a, of_argument.get(id(a))) for a in arguments]
  return tuple(_advice(a, i, outputs, i in possible) for a, i in found)


# What the module takes and returns.


def _arguments(
  module: Module, signature: Signature | None
) -> list[Argument] | None:
  """Returns a function's arguments, by the names that jax gave them.

  The module's parameters are the ones that jax kept, in order. None if they
  are not, as where jax passes more of its own: no names are better than wrong
  ones.
  """
  if signature is None:
    return None
  known = signature.arguments
  kept = [a for a in known if a.is_kept]
  names = [name for _, _, name in _parameters(module)]
  if len(names) != len(kept) or not all(
    name.endswith(a.path) for name, a in zip(names, kept, strict=True) if name
  ):
    return None
  groups = {
    (a.place, a.group): name.removesuffix(a.path)
    for a, name in zip(kept, names, strict=True)
    if name
  }
  return [
    dataclasses.replace(a, group=groups.get((a.place, a.group), a.group))
    for a in known
  ]


def _unknown_arguments(
  module: Module, names: Mapping[str, str]
) -> list[Argument]:
  parts = [
    _split(names.get(name, name) or f"argument {i}")
    for i, (_, _, name) in enumerate(_parameters(module))
  ]
  return [
    Argument(
      group=group,
      place=None,
      path=path,
      aval="",
      size_bytes=shapes.top_level_bytes(shape),
      is_requested=None,
      is_kept=True,
    )
    for (group, path), (_, shape, _) in zip(
      parts, _parameters(module), strict=True
    )
  ]


def _split(name: str) -> tuple[str, str]:
  """Splits an array's name: "model.layers[0]" is model and .layers[0]."""
  group = re.split(r"[.\[]", name, maxsplit=1)[0]
  return group, name[len(group) :]


def _parameters(
  module: Module,
) -> Iterator[tuple[tuple[int, shapes.ShapeIndex], Any, str]]:
  """Yields (parameter number, index), shape and jax's name of every array."""
  for parameter in module.entry.parameters:
    name = parameter.proto.metadata.op_name.replace("\\'", "'")
    is_array = not shapes.is_tuple(parameter.shape)
    for index, shape in _arrays(parameter.shape):
      key = parameter.proto.parameter_number, index
      yield key, shape, name if is_array else ""


def _arrays(shape: Any) -> Iterator[tuple[shapes.ShapeIndex, Any]]:
  for index, found in shapes.subshapes(shape):
    if found.element_type not in (shapes.TUPLE, shapes.TOKEN):
      yield index, found


def _inputs(module: Module, arguments: Sequence[Argument]) -> list[_Input]:
  entry = module.entry
  used = {
    p.proto.parameter_number
    for p in entry.parameters
    if entry.users[p.id] or p is entry.root
  }
  return [
    _Input(
      shape=shape,
      aval=argument.aval,
      path=argument.path,
      is_free=key not in module.donations,
      argument=argument,
      is_used=key[0] in used,
    )
    for (key, shape, _), argument in zip(
      _parameters(module), arguments, strict=True
    )
  ]


def _outputs(module: Module, signature: Signature | None) -> list[_Array]:
  taken = set(module.donations.values())
  found = list(_arrays(module.entry.root.shape))
  paths, avals = [""] * len(found), [""] * len(found)
  if signature is not None and len(signature.output_avals) == len(found):
    paths, avals = signature.output_paths, signature.output_avals
  return [
    _Array(shape=shape, path=path, aval=aval, is_free=index not in taken)
    for (index, shape), path, aval in zip(found, paths, avals, strict=True)
  ]


# Which argument gets which output.


def _pair(
  inputs: Sequence[_Input], outputs: Sequence[_Array]
) -> dict[_Input, _Array]:
  """Gives every input an output of its kind, while there are any.

  Those that lie at the same path in the argument and in the result, or in one
  element of it, go first; then the rest, in order.
  """
  pairs: dict[_Input, _Array] = {}
  free: dict[Any, list[_Array]] = {}
  for output in outputs:
    free.setdefault(output.kind, []).append(output)
  for is_match in (_same_path, lambda a, b: True):
    for item in inputs:
      left = free.get(item.kind, [])
      match = next((o for o in left if is_match(item, o)), None)
      if item not in pairs and match is not None:
        pairs[item] = match
        left.remove(match)
  return pairs


def _same_path(item: _Array, output: _Array) -> bool:
  path = item.path
  # The result is often a tuple: "[0]['w']" comes after "['w']".
  return output.path == path or re.sub(r"^\[\d+\]", "", output.path) == path


# What to say of it.


def _advice(
  argument: Argument,
  item: _Input | None,
  outputs: Sequence[_Array],
  is_possible: bool,
) -> DonationAdvice:
  """Returns what to say of an argument; without an item, jax drops it."""
  status, reason = "possible" if is_possible else "donated", ""
  if not is_possible and (item is None or item.is_free):
    status = "unused donation" if argument.is_requested else "impossible"
    reason = _reason(item, outputs) if item and item.is_used else _NOT_USED
  size_bytes = argument.size_bytes
  return DonationAdvice(
    argument=argument.group + argument.path,
    group=argument.group,
    place=argument.place,
    size_bytes=shapes.top_level_bytes(item.shape) if item else size_bytes,
    status=status,
    reason=reason,
  )


def _reason(item: _Input, outputs: Sequence[_Array]) -> str:
  """Returns why no output takes an input's memory."""
  aval = item.aval or "of its shape and type"
  same = [o for o in outputs if o.kind == item.kind]
  if same and not any(o.is_free for o in same):
    return f"other donations take every output that is {aval}"
  if same and item.argument.is_requested:
    return f"XLA left it unused, though an output is {aval}"
  if same:
    return f"other arguments can take every output that is {aval}"
  alike = [o for o in outputs if o.logical_kind == item.logical_kind]
  if alike:
    space = item.shape.layout.memory_space
    is_far = all(o.shape.layout.memory_space != space for o in alike)
    what = "in another memory" if is_far else "laid out differently"
    return f"every output that is {aval} is {what}"
  dimensions = item.aval.partition("[")[2]
  near = [o.aval for o in outputs if o.aval.endswith(f"[{dimensions}")]
  if near and dimensions and item.argument.is_requested:
    return f"no output is {aval}; one is {near[0]}"
  return f"no output is {aval}"


def possible_bytes(advice: Iterable[DonationAdvice]) -> int:
  """Returns the bytes that donating all that is possible saves."""
  return sum(a.size_bytes for a in advice if a.status == "possible")


def suggestion(advice: Iterable[DonationAdvice]) -> str:
  """Returns the keywords for jit: "donate_argnums=(0, 1)".

  They name the arguments that are donated now, and those of which every array
  that the step uses could be. Empty if there are none of the latter.
  """
  places: list[int | str] = []
  is_new = False
  for group in _groups(advice):
    statuses = {a.status for a in group if a.reason != _NOT_USED}
    is_requested = bool(statuses & {"donated", "unused donation"})
    is_better = statuses == {"possible"}
    place = group[0].place
    if place is not None and (is_requested or is_better):
      places.append(place)
      is_new |= is_better
  numbers = tuple(sorted(p for p in places if isinstance(p, int)))
  names = tuple(p for p in places if isinstance(p, str))
  keywords = [f"donate_argnums={numbers}"] if numbers else []
  keywords += [f"donate_argnames={names}"] if names else []
  return ", ".join(keywords) if is_new else ""


def possible_names(advice: Iterable[DonationAdvice]) -> list[str]:
  """Returns what could be donated, largest first.

  Arguments by their names, where all of one could be; else their arrays.
  """
  sizes: dict[str, int] = {}
  for group in _groups(advice):
    possible = [a for a in group if a.status == "possible"]
    is_whole = all(a in possible or a.reason == _NOT_USED for a in group)
    for item in possible:
      name = item.group if is_whole else item.argument
      sizes[name] = sizes.get(name, 0) + item.size_bytes
  return sorted(sizes, key=lambda name: -sizes[name])


def donation_lines(advice: Iterable[DonationAdvice]) -> list[str]:
  """Returns what is worth telling the user, one fact a line."""
  advice = [a for a in advice if a.size_bytes]
  text = suggestion(advice)
  more = units.format_bytes(possible_bytes(advice))
  titles: dict[Status, str] = {
    "possible": f"{more} more could be donated{text and f' with {text}'}:",
    "unused donation": "donated in vain:",
    "impossible": "cannot be donated:",
  }
  lines = []
  for status, title in titles.items():
    found = _largest(advice, status)
    lines += [title, *found] if found else []
  return lines


def _largest(advice: Sequence[DonationAdvice], status: Status) -> list[str]:
  """Returns lines on the arguments with the most bytes of one status."""
  found = [
    [a for a in group if a.status == status] for group in _groups(advice)
  ]
  found = [group for group in found if group]
  found.sort(key=lambda group: -sum(a.size_bytes for a in group))
  lines = [f"  {_group_line(group)}" for group in found[:_MAX_GROUPS_SHOWN]]
  more = len(found) - _MAX_GROUPS_SHOWN
  return [*lines, f"  and {more} more"] if more > 0 else lines


def _group_line(group: Sequence[DonationAdvice]) -> str:
  size = units.format_bytes(sum(a.size_bytes for a in group))
  largest = max(group, key=lambda a: a.size_bytes)
  name = f"{group[0].group} ({len(group)} arrays)"
  name = largest.argument if len(group) == 1 else name
  reason = f": {largest.reason}" if largest.reason else ""
  is_mixed = len({a.reason for a in group}) > 1
  example = f", as for {largest.argument}" if is_mixed else ""
  return f"{size:>8}  {name}{reason}{example}"


def _groups(advice: Iterable[DonationAdvice]) -> list[list[DonationAdvice]]:
  groups: dict[tuple[Any, str], list[DonationAdvice]] = {}
  for item in advice:
    groups.setdefault((item.place, item.group), []).append(item)
  return list(groups.values())
