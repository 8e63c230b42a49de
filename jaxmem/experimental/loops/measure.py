"""The copies that XLA put into loops: counted in the program it compiled."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from jaxmem_hlo.module import Computation, Instruction, Module

from jaxmem.cost import TrafficCounter, array_bytes, trip_count
from jaxmem.experimental.loops.while_loops import REST, ROUNDS

Reason = Literal["moved", "overwritten", "not in place", "other"]


class LoopCopy(NamedTuple):
  """A copy within the body of a loop.

  Attributes:
    name: The instruction's name.
    size_bytes: Of what is copied.
    times: How often it runs in one run of the program.
    reason: "moved": a carry takes over the old value of another; "overwritten":
      an old value is read after the new one was written in its place; "not in
      place": a new value was made elsewhere; "other": it copies no carry.
    source: The line of the user's program, if XLA knows it.
  """

  name: str
  size_bytes: int
  times: float
  reason: Reason
  source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopCopies:
  """What a compiled program copies in its loops, in one run.

  Attributes:
    copies: In loops, in no particular order.
    temp_bytes: XLA's temporaries.
    moved_bytes: What all its instructions read and write.
  """

  copies: tuple[LoopCopy, ...]
  temp_bytes: int
  moved_bytes: float

  @property
  def copied_bytes(self) -> float:
    """The bytes of all copies in loops, each as often as it runs."""
    return sum(copy.size_bytes * copy.times for copy in self.copies)


def measure(
  compiled: Any, *, min_bytes: int = 0, unknown_rounds: int = 1000
) -> LoopCopies:
  """Counts the copies in the loops of a compiled program.

  Args:
    compiled: A `jax.stages.Compiled`.
    min_bytes: Copies of fewer bytes are left out.
    unknown_rounds: How many rounds a loop is taken to have if XLA does not
      know. A loop that `without_copies` wrote anew has as many, by several.

  Raises:
    RuntimeError: If the program has not exactly one module, or XLA reports no
      memory figures.
  """
  modules = compiled.runtime_executable().hlo_modules()
  memory = compiled.memory_analysis()
  if len(modules) != 1 or memory is None:
    raise RuntimeError(
      f"One module with memory figures was expected, got {len(modules)}."
    )
  module = Module.from_bytes(modules[0].as_serialized_hlo_module_proto())
  walk = _Walk(module, unknown_rounds)
  found = [c for c in walk.copies() if c.size_bytes >= min_bytes]
  return LoopCopies(
    copies=tuple(found),
    temp_bytes=memory.temp_size_in_bytes,
    moved_bytes=walk.moved_bytes(),
  )


class _Walk:
  """Goes through a program as it runs, loops as often as they do."""

  def __init__(self, module: Module, unknown_rounds: int):
    self._module = module
    self._unknown_rounds = unknown_rounds
    self._traffic = TrafficCounter(module)

  def copies(self) -> Iterator[LoopCopy]:
    for loop, instruction, times in self._run(self._module.entry, None, 1.0):
      if loop is not None and self._is_copy(instruction):
        yield LoopCopy(
          name=instruction.name,
          size_bytes=int(array_bytes(instruction.shape)),
          times=times,
          reason=_reason(instruction),
          source=self._module.source(instruction),
        )

  def moved_bytes(self) -> float:
    return sum(
      self._traffic.count(instruction) * times
      for _, instruction, times in self._run(self._module.entry, None, 1.0)
    )

  def _run(
    self,
    computation: Computation,
    loop: Instruction | None,
    times: float,
  ) -> Iterator[tuple[Instruction | None, Instruction, float]]:
    """Yields the loop around an instruction, the instruction, how often."""
    for instruction in computation.instructions:
      callees = [self._module.by_id[c] for c in instruction.callees]
      if instruction.opcode == "while":
        rounds = times * self._trips(instruction)
        for callee in callees:
          yield from self._run(callee, instruction, rounds)
      elif instruction.opcode == "conditional":
        # One branch skips what is too much; the longest is the one that does
        # not.
        longest = max(callees, key=lambda c: len(c.instructions))
        yield from self._run(longest, loop, times)
      elif instruction.opcode in ("call", "async-start"):
        for callee in callees:
          yield from self._run(callee, loop, times)
      else:
        yield loop, instruction, times

  def _trips(self, loop: Instruction) -> float:
    if b"known_trip_count" in loop.proto.backend_config:
      return trip_count(loop)
    scopes = loop.proto.metadata.op_name
    by_several = re.search(rf"{ROUNDS}(\d+)", scopes)
    if by_several:
      return self._unknown_rounds / int(by_several[1])
    rest = re.search(rf"{REST}(\d+)", scopes)
    return int(rest[1]) - 1 if rest else self._unknown_rounds

  def _is_copy(self, instruction: Instruction) -> bool:
    if instruction.opcode in ("copy", "copy-start"):
      return True
    if instruction.opcode != "fusion":
      return False
    body = self._module.by_id[instruction.callees[0]]
    inner = [i for i in body.instructions if i.opcode != "parameter"]
    return [i.opcode for i in inner] == ["copy"]


def _reason(copy: Instruction) -> Reason:
  body = copy.computation
  source = _follow(body, body.by_id[copy.operands[0]])
  is_carry = source.opcode == "get-tuple-element" and (
    body.by_id[source.operands[0]].opcode == "parameter"
  )
  users = {user.id for user in body.users[copy.id]}
  is_passed_on = body.root.id in users
  if is_carry:
    return "moved" if is_passed_on and len(users) == 1 else "overwritten"
  return "not in place" if is_passed_on else "other"


def _follow(body: Computation, instruction: Instruction) -> Instruction:
  while instruction.opcode in ("bitcast", "copy"):
    instruction = body.by_id[instruction.operands[0]]
  return instruction
