"""A random program as data: operations that can be left out one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from benchmarks.random_programs import bodies, kinds, sharding

_KINDS = kinds.KINDS | sharding.KINDS
_BODIES = bodies.BODIES | sharding.BODIES


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
  """An argument of a program.

  Attributes:
    number: Of its value.
    shape: Its shape.
    dtype: The name of its type.
    is_donated: Whether its memory may be taken.
    same_as: The number of the argument whose array is passed here, too.
    choice: How it is divided, in programs over several devices.
  """

  number: int
  shape: tuple[int, ...]
  dtype: str
  is_donated: bool = False
  same_as: int | None = None
  choice: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
  """What makes a value of others.

  Operands are numbers of values. One that is not there, since what makes it was
  left out, stands for the first value that is.

  Attributes:
    number: Of the value it makes; within its body, of what the body is given.
    kind: A name of `kinds.KINDS` or `bodies.BODIES`, or of `sharding`'s.
    operands: Numbers of two values. The first one decides shapes and types.
    choice: What the kind makes all its other choices of.
    body: What is called, looped over or differentiated; its last value counts.
  """

  number: int
  kind: str
  operands: tuple[int, int]
  choice: int
  body: tuple[Operation, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
  """A program, from which `function` and `values` make something to run.

  Attributes:
    seed: What it was made of; its arguments' values are, too.
    arguments: One at the least.
    operations: In the order in which they are traced.
    outputs: Numbers of values; some twice, some of arguments.
    mesh: The sizes of its axes; none for one device.
    divides_outputs: Whether it says how its outputs are divided.
  """

  seed: int
  arguments: tuple[Argument, ...]
  operations: tuple[Operation, ...]
  outputs: tuple[int, ...]
  mesh: tuple[int, ...] = ()
  divides_outputs: bool = False

  @property
  def donate_argnums(self) -> tuple[int, ...]:
    """As `jax.jit` takes them."""
    donated = enumerate(a.is_donated for a in self.arguments)
    return tuple(position for position, is_donated in donated if is_donated)

  @property
  def function(self) -> Callable[..., tuple[jax.Array, ...]]:
    """A new function for each call, so that jax knows nothing of it."""

    def program(*args: jax.Array) -> tuple[jax.Array, ...]:
      numbers = [argument.number for argument in self.arguments]
      scope = dict(zip(numbers, args, strict=True))
      with self._within_mesh():
        _run(self.operations, scope)
      return tuple(_value(scope, number) for number in self.outputs)

    return program

  @property
  def jit_options(self) -> dict[str, Any]:
    """What `jax.jit` is to be called with, besides the function."""
    options: dict[str, Any] = {"donate_argnums": self.donate_argnums}
    if self.divides_outputs:
      # By their numbers, so that they stay the same where others are left out.
      made = jax.eval_shape(self.function, *self.values())
      options["out_shardings"] = tuple(
        self._sharding(value.shape, self.seed + 7 * number)
        for value, number in zip(made, self.outputs, strict=True)
      )
    return options

  def _sharding(self, shape: tuple[int, ...], choice: int) -> NamedSharding:
    mesh = sharding.mesh_of(self.mesh)
    return NamedSharding(
      mesh, sharding.divided(shape, dict(mesh.shape), choice)
    )

  def _within_mesh(self) -> contextlib.AbstractContextManager[Any]:
    """Lets operations ask which devices there are."""
    if not self.mesh:
      return contextlib.nullcontext()
    mesh = sharding.mesh_of(self.mesh)
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)

  def values(self) -> tuple[jax.Array, ...]:
    """Returns new arguments, the same ones for each call."""
    arrays: dict[int, jax.Array] = {}
    for argument in self.arguments:
      number = argument.number
      if argument.same_as in arrays:
        arrays[number] = arrays[argument.same_as]
      else:
        arrays[number] = _random_array(self.seed, argument)
        if self.mesh:
          divided = self._sharding(argument.shape, argument.choice)
          arrays[number] = jax.device_put(arrays[number], divided)
    return tuple(arrays.values())

  def __str__(self) -> str:
    """Lists the program like a script."""
    lines = [f"# seed {self.seed}"]
    if self.mesh:
      lines[0] += f", mesh {'x'.join(map(str, self.mesh))}"
      lines[0] += ", outputs divided" if self.divides_outputs else ""
    for argument in self.arguments:
      line = f"v{argument.number} = argument({argument.dtype}"
      line += f"{list(argument.shape)}"
      line += f", choice={argument.choice}" if self.mesh else ""
      line += ", donated" if argument.is_donated else ""
      if argument.same_as is not None:
        line += f", same array as v{argument.same_as}"
      lines.append(line + ")")
    known = [argument.number for argument in self.arguments]
    lines += _listed(self.operations, known, "")
    outputs = ", ".join(_name(known, number) for number in self.outputs)
    return "\n".join([*lines, f"return {outputs}"])


def _random_array(seed: int, argument: Argument) -> jax.Array:
  source = np.random.default_rng([seed, argument.number])
  drawn = source.standard_normal(argument.shape)
  if argument.dtype == "complex64":
    drawn = drawn + 1j * source.standard_normal(argument.shape)
  if argument.dtype.startswith("int"):
    drawn = np.round(10 * drawn)
  if argument.dtype == "bool":
    drawn = drawn > 0
  return jnp.asarray(drawn).astype(argument.dtype)


def _listed(
  operations: tuple[Operation, ...], known: list[int], indent: str
) -> Iterator[str]:
  """Yields the lines of operations; adds what they make to what is known."""
  for each in operations:
    first, second = (_name(known, number) for number in each.operands)
    line = f"{indent}v{each.number} = {each.kind}({first}, {second},"
    yield f"{line} choice={each.choice})" + (":" if each.body else "")
    outer = [] if each.kind in bodies.CLOSED else known
    yield from _listed(each.body, [*outer, each.number], indent + "  ")
    known.append(each.number)


def _name(known: list[int], number: int) -> str:
  return f"v{number if number in known else known[0]}"


def _value(scope: dict[int, jax.Array], number: int) -> jax.Array:
  return scope[number] if number in scope else next(iter(scope.values()))


def _run(
  operations: tuple[Operation, ...], scope: dict[int, jax.Array]
) -> jax.Array | None:
  """Adds the operations' values to a scope; returns the last."""
  made = None
  for each in operations:
    x, y = (_value(scope, number) for number in each.operands)
    if each.kind in _KINDS:
      made = _KINDS[each.kind](x, y, each.choice)
    else:
      run = functools.partial(_run_body, each)
      made = _BODIES[each.kind](run, scope, x, y, each.choice)
    scope[each.number] = made
  return made


def _run_body(
  operation: Operation, scope: dict[int, jax.Array], given: Any
) -> jax.Array:
  """Runs an operation's body, which sees a scope, and what it is given."""
  inner = {**scope, operation.number: given}
  made = _run(operation.body, inner)
  return given if made is None else made
