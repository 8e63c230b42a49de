"""Random programs, the same ones of a seed on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.random_programs import sharding
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
# Of programs over several devices.
_SHARDED_SHAPES = (
  *((), (64,), (1000,), (8, 8), (64, 64), (32, 128), (128, 32), (40, 96)),
  *((16, 4, 16), (8, 2, 8, 4), (3, 5)),
)
_SHARDED_WEIGHTS = {"constraint": 4, "all_reduce": 2, "all_gather": 2}
_NUM_OPERATIONS = (2, 4, 6, 8, 10, 14, 20)
MOST_OPERATIONS = _NUM_OPERATIONS[-1]
_MAX_DEPTH = 2
_MAX_CHOICE = 1 << 10


def generate(
  seed: int, num_devices: int = 1, most_operations: int = MOST_OPERATIONS
) -> Program:
  """Returns the program of a seed, and of a number of devices.

  Args:
    seed: Any number.
    num_devices: 1, or an even number: a mesh of one axis or of two.
    most_operations: Of the program, and of each body in it; 2 at the least.
      Another number is another program of each seed.
  """
  return _Generator(seed, num_devices, most_operations).program()


class _Generator:
  def __init__(self, seed: int, num_devices: int, most_operations: int):
    self._seed = seed
    self._num_devices = num_devices
    self._most_operations = most_operations
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
    counts = [n for n in _NUM_OPERATIONS if n <= self._most_operations]
    count = source.choice(counts)
    operations = self._operations(count, known, depth=0)
    made = [each.number for each in operations]
    outputs = [made[-1]]
    for _ in range(source.choice((0, 0, 1, 2, 4))):
      # Values, and now and then arguments as they are, or one value twice.
      outputs.append(source.choice([*made, *made, *known, *outputs]))
    source.shuffle(outputs)
    return Program(
      **self._divided(),
      seed=self._seed,
      arguments=arguments,
      operations=operations,
      outputs=tuple(outputs),
    )

  def _divided(self) -> dict[str, Any]:
    """Draws what only programs over several devices have."""
    count = self._num_devices
    if count == 1:
      return {}
    return {
      "mesh": self._source.choice(((count,), (2, count // 2))),
      "divides_outputs": self._source.random() < 0.5,
    }

  def _number(self) -> int:
    self._next += 1
    return self._next - 1

  def _arguments(self) -> tuple[Argument, ...]:
    source = self._source
    share = source.choice((0.0, 0.0, 0.5, 1.0))
    arguments: list[Argument] = []
    for _ in range(source.randint(1, 5)):
      shapes = _SHAPES if self._num_devices == 1 else _SHARDED_SHAPES
      shapes = _EMPTY_SHAPES if source.random() < 0.05 else shapes
      if self._is_train and source.random() < 0.9:
        shapes = (self._train_shape,)
      dtype = source.choices(DTYPES, _DTYPE_WEIGHTS)[0]
      argument = Argument(
        number=self._number(),
        shape=source.choice(shapes),
        dtype="float32" if self._is_uniform else dtype,
        is_donated=source.random() < share,
        choice=self._argument_choice(),
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
            choice=argument.choice,
          )
        )
    return tuple(arguments)

  def _argument_choice(self) -> int:
    """Draws how an argument is divided, if there is anything to draw."""
    if self._num_devices == 1:
      return 0
    return self._source.randrange(_MAX_CHOICE)

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
      kind = self._drawn(BODIES, weights, sharding.BODIES)
      most = 10 if self._is_train and not depth else 4
      length = source.randint(1, min(most, self._most_operations))
      body = self._operations(length, [*known, number], depth + 1)
    else:
      weights = _TRAIN_KIND_WEIGHTS if self._is_train else _KIND_WEIGHTS
      kind = self._drawn(KINDS, weights, sharding.KINDS)
    return Operation(
      number=number,
      kind=kind,
      operands=operands,
      choice=source.randrange(_MAX_CHOICE),
      body=body,
    )

  def _drawn(
    self,
    names: Iterable[str],
    weights: Mapping[str, float],
    sharded: Iterable[str],
  ) -> str:
    """Draws a kind; of those for several devices only where there are."""
    names, shares = [*names], {**weights}
    if self._num_devices > 1:
      # A quarter of all, whatever the weights of the others are.
      others = sum(shares.get(name, 1) for name in names)
      share = others / (3 * sum(_SHARDED_WEIGHTS.get(n, 1) for n in sharded))
      shares |= {n: share * _SHARDED_WEIGHTS.get(n, 1) for n in sharded}
      names += sharded
    drawn = [shares.get(name, 1) for name in names]
    return self._source.choices(names, drawn)[0]

  def _operand(self, known: list[int]) -> int:
    """Draws a value, every second time one of the last three."""
    source = self._source
    return source.choice(known[-3:] if source.random() < 0.5 else known)
