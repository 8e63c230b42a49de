"""Edits of a scheduled program: what runs twice, what moves to the host.

Ids are instruction ids of the entry computation of the module that is edited;
a value is an instruction and, of a fusion with several outputs, one output.
The rest of the schedule keeps its order. Every use reads the latest producer
of its value that runs before it: the original, a second run, or a fetch.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Value:
  """One array that an instruction produces.

  Attributes:
    instruction: Id of the producer.
    output: Index into the producer's tuple shape, or None if its shape is no
      tuple.
  """

  instruction: int
  output: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Recompute:
  """A second run of an instruction.

  Attributes:
    value: What it produces again; a fusion with several outputs produces just
      this one, and the original drops outputs that nobody reads any more.
    before: Id of the instruction of the given schedule that it runs just
      before. Runs before the same instruction keep their order in `Edits`.
  """

  value: Value
  before: int


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Offload:
  """A value that leaves the device and comes back.

  Attributes:
    value: What moves.
    store_done: Id of the instruction before which the copy to the host must
      have ended; it starts right after the value is produced.
    fetch_start: Id of the instruction before which the copy back starts.
    fetch_done: Id of the instruction before which the copy back must have
      ended: the first that reads it again.
  """

  value: Value
  store_done: int
  fetch_start: int
  fetch_done: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
  """All edits of a module, in the order in which they are made."""

  recomputes: tuple[Recompute, ...] = ()
  offloads: tuple[Offload, ...] = ()

  def __bool__(self) -> bool:
    return bool(self.recomputes or self.offloads)
