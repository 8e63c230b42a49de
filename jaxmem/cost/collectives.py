"""What collectives move, and how long that takes."""

from __future__ import annotations

from jaxmem_hlo.module import Instruction, replica_groups

from jaxmem.cost.links import Links
from jaxmem.cost.traffic import array_bytes

_START = "-start"


def moved_bytes(collective: Instruction) -> float:
  """Returns the bytes of the whole array that devices exchange.

  Of a gather that is what it returns, of others what they read.
  """
  operands = sum(
    array_bytes(collective.computation.by_id[o].shape)
    for o in collective.operands
  )
  if not collective.opcode.startswith("all-gather"):
    return operands
  if collective.opcode.endswith(_START):
    # The tuple of a start repeats the operands.
    return array_bytes(collective.shape) - operands
  return array_bytes(collective.shape)


def collective_seconds(collective: Instruction, links: Links) -> float:
  """Estimates the seconds of a collective on idle links."""
  return links.seconds(
    collective.opcode.removesuffix(_START),
    moved_bytes(collective),
    replica_groups(collective.proto),
  )
