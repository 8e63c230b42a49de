"""Steps that are compiled as they are, or with another jaxpr in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import jax
from jax.extend import core

from jaxmem import targets
from jaxmem.compiler import jax_doors
from jaxmem.jaxpr import internals


class Step(Protocol):
  """A step that was traced, with the shardings and the mesh that it has."""

  @property
  def jaxpr(self) -> core.Jaxpr:
    """Its equations."""
    ...

  @property
  def donated(self) -> tuple[bool, ...]:
    """Of each input, whether its memory may be written over."""
    ...

  def with_jaxpr(self, jaxpr: core.Jaxpr) -> Self:
    """Returns the step with another jaxpr of the same inputs and outputs."""
    ...

  def compile(self, options: Mapping[str, Any]) -> Any:
    """Compiles it with compiler options; returns what jax returns."""
    ...

  def prepare(self) -> Callable[[Mapping[str, Any]], Any]:
    """Lowers it in this thread; what is returned compiles it in any."""
    ...


@dataclasses.dataclass(frozen=True, eq=False)
class TracedStep:
  """A step that jax has traced, for a device that need not be here.

  Attributes:
    traced: From `targets.trace`.
    target: What it was traced for.
  """

  traced: jax.stages.Traced
  target: targets.TargetLike = None

  @property
  def jaxpr(self) -> core.Jaxpr:
    """Its equations."""
    return self.traced.jaxpr

  @property
  def donated(self) -> tuple[bool, ...]:
    """Of each input, whether its memory may be written over."""
    return internals.donated_inputs(self.traced)

  def with_jaxpr(self, jaxpr: core.Jaxpr) -> TracedStep:
    """Returns the step with another jaxpr of the same inputs and outputs."""
    changed = internals.with_jaxpr(self.traced, jaxpr)
    return dataclasses.replace(self, traced=changed)

  def compile(self, options: Mapping[str, Any]) -> jax.stages.Compiled:
    """Compiles it with compiler options besides those of the target."""
    return self.prepare()(options)

  def prepare(self) -> Callable[[Mapping[str, Any]], jax.stages.Compiled]:
    """Lowers it; see `Step`."""
    with jax_doors.unplanned():
      lowered = targets.lower_traced(self.traced, self.target)

    def run(options: Mapping[str, Any]) -> jax.stages.Compiled:
      given = {**targets.compile_options(self.target), **options}
      return lowered.compile(compiler_options=given)

    return run
