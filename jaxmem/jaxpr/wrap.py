"""Runs the jaxpr of a traced function in place of the function."""

from typing import Any

import jax
import jax.core
from jax.extend import core

from jaxmem.jaxpr import internals


def run(
  traced: jax.stages.Traced, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
  """Runs the jaxpr of a traced function on the arguments it was traced for.

  Args:
    traced: From `jax.jit(fun, ...).trace(*args, **kwargs)`.
    args: Tracers, and static arguments.
    kwargs: The same.

  Returns:
    What the function would return.
  """
  inputs = [
    leaf
    for leaf in jax.tree.leaves((args, kwargs))
    if isinstance(leaf, jax.core.Tracer)
  ]
  outer = internals.closed_over(traced)
  results = core.jaxpr_as_fun(traced.jaxpr)(*outer, *inputs)
  return jax.tree.unflatten(jax.tree.structure(traced.out_info), results)
