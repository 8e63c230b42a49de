"""Makes failing programs small: what is left out is not what fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from benchmarks.random_programs.program import Operation, Program


def minimise(
  program: Program, fails: Callable[[Program], bool], max_tries: int = 200
) -> Program:
  """Returns a part of a program that still fails.

  Args:
    program: What fails.
    fails: Whether a program fails in the same way.
    max_tries: Most programs to try.
  """
  num_tries = 0
  is_smaller = True
  while is_smaller:
    is_smaller = False
    for part in _parts(program):
      if num_tries == max_tries:
        return program
      num_tries += 1
      if fails(part):
        program, is_smaller = part, True
        break
  return program


def size(program: Program) -> int:
  """Returns how many operations a program has, those of bodies too."""
  return _size(program.operations)


def _size(operations: tuple[Operation, ...]) -> int:
  return sum(1 + _size(each.body) for each in operations)


def _parts(program: Program) -> Iterator[Program]:
  """Yields smaller programs, the smallest ones first."""
  replace = dataclasses.replace
  for operations in _fewer(program.operations):
    yield replace(program, operations=operations)
  outputs = program.outputs
  for position in range(len(outputs)) if len(outputs) > 1 else ():
    rest = outputs[:position] + outputs[position + 1 :]
    yield replace(program, outputs=rest)
  arguments = program.arguments
  for position, argument in enumerate(arguments):
    before, after = arguments[:position], arguments[position + 1 :]
    if before or after:
      yield replace(program, arguments=before + after)
    if argument.is_donated:
      kept = replace(argument, is_donated=False)
      yield replace(program, arguments=(*before, kept, *after))


def _fewer(
  operations: tuple[Operation, ...],
) -> Iterator[tuple[Operation, ...]]:
  """Yields operations without some: halves, quarters, ... single ones."""
  width = len(operations)
  while width:
    for first in range(0, len(operations), width):
      yield operations[:first] + operations[first + width :]
    width //= 2
  for position, each in enumerate(operations):
    before, after = operations[:position], operations[position + 1 :]
    for body in _fewer(each.body):
      yield (*before, dataclasses.replace(each, body=body), *after)
