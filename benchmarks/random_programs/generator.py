"""Random programs, the same ones of a seed on every machine."""

from __future__ import annotations

import random

from benchmarks.random_programs.bodies import BODIES
from benchmarks.random_programs.kinds import DTYPES, KINDS
from benchmarks.random_programs.program import Argument, Operation, Program

_SHAPES = (
  *((), (64,), (1000,), (8, 8), (64, 64), (32, 128), (96, 40), (4, 16, 16)),
  *((2, 8, 8, 4), (3, 3, 4, 4), (1, 1), (5, 48, 48)),
)
_EMPTY_SHAPES = ((0,), (0, 4), (4, 0), (2, 0, 3))
_DTYPE_WEIGHTS = (10, 4, 2, 1, 2, 1)
# How often, against the others, which are drawn once.
_KIND_WEIGHTS = {"add": 3, "multiply": 3, "unary": 3, "matmul": 4, "update": 2}
_BODY_WEIGHTS = {"gradient": 3, "scan": 2}
# Of programs that are more like train steps: large values that wait.
_TRAIN_SHAPES = ((64, 64), (32, 128), (128, 32), (96, 96))
_TRAIN_KIND_WEIGHTS = {"unary": 40, "multiply": 30, "add": 30, "matmul": 40}
_TRAIN_BODY_WEIGHTS = {"gradient": 20, "scan": 5, "call": 3, "checkpoint": 3}
_MAX_DEPTH = 2
_MAX_CHOICE = 1 << 10


def generate(seed: int) -> Program:
  """Returns the program of a seed."""
  return _Generator(seed).program()


class _Generator:
  def __init__(self, seed: int):
    self._seed = seed
    self._source = random.Random(seed)
    self._next = 0
    # Some programs are all of one type, as most users' are.
    self._is_uniform = self._source.random() < 0.4
    self._is_train = self._source.random() < 0.4
    self._train_shape = self._source.choice(_TRAIN_SHAPES)

  def program(self) -> Program:
    source = self._source
    arguments = self._arguments()
    known = [argument.number for argument in arguments]
    count = source.choice((2, 4, 6, 8, 10, 14, 20))
    operations = self._operations(count, known, depth=0)
    made = [each.number for each in operations]
    outputs = [made[-1]]
    for _ in range(source.choice((0, 0, 1, 2, 4))):
      # Values, and now and then arguments as they are, or one value twice.
      outputs.append(source.choice([*made, *made, *known, *outputs]))
    source.shuffle(outputs)
    return Program(
      seed=self._seed,
      arguments=arguments,
      operations=operations,
      outputs=tuple(outputs),
    )

  def _number(self) -> int:
    self._next += 1
    return self._next - 1

  def _arguments(self) -> tuple[Argument, ...]:
    source = self._source
    share = source.choice((0.0, 0.0, 0.5, 1.0))
    arguments: list[Argument] = []
    for _ in range(source.randint(1, 5)):
      shapes = _EMPTY_SHAPES if source.random() < 0.05 else _SHAPES
      if self._is_train and source.random() < 0.9:
        shapes = (self._train_shape,)
      dtype = source.choices(DTYPES, _DTYPE_WEIGHTS)[0]
      argument = Argument(
        number=self._number(),
        shape=source.choice(shapes),
        dtype="float32" if self._is_uniform else dtype,
        is_donated=source.random() < share,
      )
      arguments.append(argument)
      # The same array twice; jax refuses to take the memory of one.
      if source.random() < 0.1 and not argument.is_donated:
        arguments.append(
          Argument(
            number=self._number(),
            shape=argument.shape,
            dtype=argument.dtype,
            same_as=argument.number,
          )
        )
    return tuple(arguments)

  def _operations(
    self, count: int, known: list[int], depth: int
  ) -> tuple[Operation, ...]:
    """Draws operations on what is known, and on each other."""
    known = [*known]
    operations = []
    for _ in range(count):
      operation = self._operation(known, depth)
      operations.append(operation)
      known.append(operation.number)
    return tuple(operations)

  def _operation(self, known: list[int], depth: int) -> Operation:
    source = self._source
    number = self._number()
    operands = self._operand(known), self._operand(known)
    body: tuple[Operation, ...] = ()
    if depth < _MAX_DEPTH and source.random() < 0.25:
      weights = _TRAIN_BODY_WEIGHTS if self._is_train else _BODY_WEIGHTS
      kind = _drawn(source, tuple(BODIES), weights)
      length = source.randint(1, 10 if self._is_train and not depth else 4)
      body = self._operations(length, [*known, number], depth + 1)
    else:
      weights = _TRAIN_KIND_WEIGHTS if self._is_train else _KIND_WEIGHTS
      kind = _drawn(source, tuple(KINDS), weights)
    return Operation(
      number=number,
      kind=kind,
      operands=operands,
      choice=source.randrange(_MAX_CHOICE),
      body=body,
    )

  def _operand(self, known: list[int]) -> int:
    """Draws a value, every second time one of the last three."""
    source = self._source
    return source.choice(known[-3:] if source.random() < 0.5 else known)


def _drawn(
  source: random.Random, names: tuple[str, ...], weights: dict[str, int]
) -> str:
  return source.choices(names, [weights.get(name, 1) for name in names])[0]
