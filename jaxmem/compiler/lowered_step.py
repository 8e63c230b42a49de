"""A program at jax's lowering door, as versions of a step are made of it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend import core

from jaxmem import targets
from jaxmem.compiler import jax_doors
from jaxmem.compiler.steps import TracedStep
from jaxmem.jaxpr import memory


@dataclasses.dataclass(frozen=True, eq=False)
class LoweredStep:
  """A program that jax is about to lower, or another in its place.

  Attributes:
    lowering: What jax is about to lower.
    jaxpr: The program itself, or a version of it.
    option: The value of the option `jaxmem` that it is lowered with; None for
      none.
  """

  lowering: jax_doors.Lowering
  jaxpr: core.Jaxpr
  option: str | None = None

  @property
  def argument_bytes(self) -> int:
    """Bytes of all arguments, over all devices."""
    return sum(memory.size_bytes(v.aval) for v in self.jaxpr.invars)

  @property
  def donated(self) -> tuple[bool, ...]:
    """Of each input, whether its memory may be written over."""
    return self.lowering.donated

  def with_jaxpr(self, jaxpr: core.Jaxpr) -> LoweredStep:
    """Returns another version."""
    return dataclasses.replace(self, jaxpr=jaxpr)

  @functools.cached_property
  def lowered(self) -> Any:
    """The version as jax lowers it, with the same shardings and mesh."""
    return self.lowering.lower(self.jaxpr, self.option)

  def compile(self, options: Mapping[str, Any]) -> Any:
    """Compiles this version; see `compiler.Step`."""
    return self.prepare()(options)

  def prepare(self) -> Callable[[Mapping[str, Any]], Any]:
    """Lowers this version; see `compiler.Step`."""
    lowered = self.lowered
    return lambda options: lowered.compile(dict(options))

  def for_target(self, target: targets.Target) -> TracedStep:
    """Returns the program as it would be on a described device.

    Raises:
      ValueError: If the program is spread over several devices.
      RuntimeError: If the target cannot be compiled for here.
    """
    num_devices = self.lowering.num_devices
    if num_devices > 1:
      raise ValueError(
        f"target {target.name!r} describes one device, got"
        f" {self.lowering.name} on {num_devices}; pass the step of one device,"
        " or plan without a target on the devices themselves."
      )
    equations = core.jaxpr_as_fun(self.jaxpr)

    def run(*arrays: Any) -> Any:
      return equations(*arrays)

    run.__name__ = run.__qualname__ = self.lowering.name
    donated = [i for i, is_so in enumerate(self.donated) if is_so]
    avals: list[Any] = [variable.aval for variable in self.jaxpr.invars]
    shapes = [
      jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type)
      for a in avals
    ]
    jitted = jax.jit(run, donate_argnums=donated)
    return TracedStep(targets.trace(jitted, shapes, {}, target), target)


def most_bytes(jaxpr: core.Jaxpr) -> float:
  """Returns bytes that a program does not exceed, whatever the compiler does.

  All arrays of all equations, as if none shared memory with another; those of
  a loop's body once, as they are live in one iteration at a time. Infinity if
  sizes are not known: exported programs may have symbolic shapes.
  """
  try:
    total = sum(memory.size_bytes(v.aval) for v in jaxpr.invars)
    return total + _equation_bytes(jaxpr)
  except ValueError:
    return math.inf


def _equation_bytes(jaxpr: core.Jaxpr) -> int:
  return sum(
    sum(memory.size_bytes(v.aval) for v in eqn.outvars)
    + sum(_equation_bytes(inner) for inner in core.jaxprs_in_params(eqn.params))
    for eqn in jaxpr.eqns
  )
