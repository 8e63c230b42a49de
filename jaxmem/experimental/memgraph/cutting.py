"""Groups the equations of a flat jaxpr into segments."""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from jax.extend import core

from jaxmem.jaxpr import internals, memory

By = Literal["layer", "scope", "size"]

_NUMBERED = re.compile(r".*\d")
_DEFAULT_NUM_SEGMENTS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment:
  """Equations that become one task.

  Attributes:
    name: Of the task.
    eqns: In program order.
  """

  name: str
  eqns: list[core.JaxprEqn]


def without_identities(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """Lets readers of renamed values read the values.

  What `jax.checkpoint` recomputes reads weights through barriers, lest XLA
  should merge it with the original. As results of a segment these would be
  copies of the weights; and the original is in another segment.
  """
  renamed: dict[core.Var, Any] = {}

  def rename(atoms: Sequence[Any]) -> list[Any]:
    return [
      renamed.get(atom, atom) if isinstance(atom, core.Var) else atom
      for atom in atoms
    ]

  eqns = []
  for eqn in jaxpr.eqns:
    invars = rename(eqn.invars)
    if eqn.primitive.name in memory.IDENTITIES:
      renamed |= zip(eqn.outvars, invars, strict=True)
    else:
      eqns.append(eqn.replace(invars=invars))
  return jaxpr.replace(eqns=eqns, outvars=rename(jaxpr.outvars))


def cut(
  jaxpr: core.Jaxpr, by: By, depth: int, segment_bytes: int | None
) -> list[Segment]:
  """Returns the segments that `partition` describes, before large ones are cut.

  Raises:
    ValueError: If no scope has a number where layers are asked for.
  """
  if by == "size":
    return _cut_by_size(jaxpr.eqns, segment_bytes)
  keys = [_key(eqn, by, depth) for eqn in jaxpr.eqns]
  if by == "layer" and not any(keys):
    raise ValueError(
      "by='layer' needs name scopes with a number, got none. Wrap each layer"
      " in jax.named_scope(f'layer_{i}'), or cut by='size'."
    )
  segments: list[Segment] = []
  maker: dict[core.Var, int] = {}
  last: str | None = None
  for eqn, key in zip(jaxpr.eqns, keys, strict=True):
    if not segments or (key is not None and key != last):
      segments.append(Segment(name=key or "begin", eqns=[]))
      last = key
    place = len(segments) - 1
    if key is None:
      makers = [maker[v] for v in variables(eqn.invars) if v in maker]
      place = max(makers, default=place)
    segments[place].eqns.append(eqn)
    maker |= dict.fromkeys(eqn.outvars, place)
  return segments


def cut_large(
  segments: Sequence[Segment], outvars: Sequence[Any], limit_bytes: int
) -> list[Segment]:
  """Cuts segments into the longest parts that need no more than that."""
  last_use: dict[core.Var, int] = {}
  position = 0
  for segment in segments:
    for eqn in segment.eqns:
      last_use |= dict.fromkeys(variables(eqn.invars), position)
      position += 1
  last_use |= dict.fromkeys(variables(outvars), position)
  parts: list[Segment] = []
  begin = 0
  for segment in segments:
    rest = segment.eqns
    number = 0
    while rest:
      fitting = range(2, len(rest) + 1)
      length = 1 + bisect.bisect_right(
        fitting,
        limit_bytes,
        key=lambda n: _needed_bytes(rest[:n], begin, last_use),
      )
      name = f"{segment.name}.{number}" if number else segment.name
      parts.append(Segment(name=name, eqns=rest[:length]))
      rest = rest[length:]
      begin += length
      number += 1
  return parts


def _needed_bytes(
  eqns: Sequence[core.JaxprEqn], begin: int, last_use: dict[core.Var, int]
) -> int:
  """Returns what equations need in program order, nothing fused.

  Args:
    eqns: The equations.
    begin: Position of the first one in the program.
    last_use: Position of the last equation that reads each variable.
  """
  made = {var for eqn in eqns for var in eqn.outvars}
  read = {var for eqn in eqns for var in variables(eqn.invars)}
  live_bytes = peak_bytes = _total_bytes(read - made)
  for position, eqn in enumerate(eqns, begin):
    live_bytes += _total_bytes(eqn.outvars)
    peak_bytes = max(peak_bytes, live_bytes)
    dying = {v for v in variables(eqn.invars) if last_use[v] == position}
    dying |= {v for v in eqn.outvars if v not in last_use}
    live_bytes -= _total_bytes(dying & made)
  return peak_bytes


def _total_bytes(variables: Iterable[core.Var]) -> int:
  return sum(memory.size_bytes(var.aval) for var in variables)


def _key(eqn: core.JaxprEqn, by: By, depth: int) -> str | None:
  """Returns what segment an equation asks for; None if any will do."""
  scopes = [
    part
    for element in internals.name_stack(eqn).stack
    if type(element).__name__ == "Scope"
    for part in element.name.split("/")
  ]
  if by == "layer":
    scopes = [scope for scope in scopes if _NUMBERED.fullmatch(scope)][:1]
  name = "/".join(scopes[:depth])
  if not name:
    return None
  return f"{name} backward" if internals.is_transposed(eqn) else name


def _cut_by_size(
  eqns: Sequence[core.JaxprEqn], segment_bytes: int | None
) -> list[Segment]:
  sizes = [_total_bytes(eqn.outvars) for eqn in eqns]
  if segment_bytes is None:
    segment_bytes = -(-sum(sizes) // _DEFAULT_NUM_SEGMENTS)
  segments: list[Segment] = []
  used_bytes = 0
  for eqn, size_bytes in zip(eqns, sizes, strict=True):
    if not segments or used_bytes + size_bytes > segment_bytes:
      segments.append(Segment(name=f"segment {len(segments)}", eqns=[]))
      used_bytes = 0
    used_bytes += size_bytes
    segments[-1].eqns.append(eqn)
  return segments


def variables(atoms: Sequence[Any]) -> list[core.Var]:
  """Returns the atoms that are no literals."""
  return [atom for atom in atoms if isinstance(atom, core.Var)]
