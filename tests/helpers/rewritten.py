"""Functions that run another jaxpr than their own."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core


def rewritten(
  fun: Callable[..., Any], rewrite: Callable[[core.Jaxpr], core.Jaxpr]
) -> Callable[..., Any]:
  """Returns a function that runs what `rewrite` makes of a function's jaxpr."""

  @functools.wraps(fun)
  def step(*args: Any) -> Any:
    jaxpr, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
    results = core.jaxpr_as_fun(rewrite(jaxpr))(*jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)

  return step
