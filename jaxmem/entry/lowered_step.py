"""A program at jax's lowering door, as versions of a step are made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.extend import core

from jaxmem.compiler import jax_doors
from jaxmem.jaxpr import memory


@dataclasses.dataclass(frozen=True, eq=False)
class LoweredStep:
  """A program that jax is about to lower, or another in its place.

  Attributes:
    lowering: What jax is about to lower.
    jaxpr: The program itself, or a version of it.
  """

  lowering: jax_doors.Lowering
  jaxpr: core.Jaxpr

  @property
  def argument_bytes(self) -> int:
    """Bytes of all arguments, over all devices."""
    return sum(memory.size_bytes(v.aval) for v in self.jaxpr.invars)

  def with_jaxpr(self, jaxpr: core.Jaxpr) -> LoweredStep:
    """Returns another version."""
    return dataclasses.replace(self, jaxpr=jaxpr)

  def lower(self) -> Any:
    """Lowers this version, as jax would with the same shardings and mesh."""
    return self.lowering.lower(self.jaxpr)

  def compile(self, options: Mapping[str, Any]) -> Any:
    """Compiles this version; see `compiler.Step`."""
    return self.lower().compile(dict(options))


def most_bytes(jaxpr: core.Jaxpr) -> int:
  """Returns bytes that a program does not exceed, whatever the compiler does.

  All arrays of all equations, as if none shared memory with another; those of
  a loop's body once, as they are live in one iteration at a time.
  """
  total = sum(memory.size_bytes(v.aval) for v in jaxpr.invars)
  return total + _equation_bytes(jaxpr)


def _equation_bytes(jaxpr: core.Jaxpr) -> int:
  return sum(
    sum(memory.size_bytes(v.aval) for v in eqn.outvars)
    + sum(_equation_bytes(inner) for inner in core.jaxprs_in_params(eqn.params))
    for eqn in jaxpr.eqns
  )
