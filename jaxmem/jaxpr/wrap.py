"""Functions whose jaxpr is rewritten whenever they are traced."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
from jax.extend import core


def rewritten(
  fun: Callable[..., Any], rewrite: Callable[[core.Jaxpr], core.Jaxpr]
) -> Callable[..., Any]:
  """Wraps a function so that another jaxpr runs in place of its own.

  Jit the result. It has the signature of the function and takes and returns
  the same trees, so donation, static arguments and shardings mean the same.
  The function is traced once, when jit traces the wrapper.

  Args:
    fun: A function, not jitted.
    rewrite: Returns a jaxpr with the inputs and outputs of the one it is given.
  """

  @functools.wraps(fun)
  def step(*args: Any, **kwargs: Any) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_traced = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]

    def inner(traced: list[Any]) -> Any:
      values = iter(traced)
      merged = [
        next(values) if is_array else leaf
        for leaf, is_array in zip(leaves, is_traced, strict=True)
      ]
      args, kwargs = jax.tree.unflatten(tree, merged)
      return fun(*args, **kwargs)

    inputs = [
      leaf for leaf, is_array in zip(leaves, is_traced, strict=True) if is_array
    ]
    jaxpr, shapes = jax.make_jaxpr(inner, return_shape=True)(inputs)
    results = core.jaxpr_as_fun(rewrite(jaxpr))(*inputs)
    return jax.tree.unflatten(jax.tree.structure(shapes), results)

  return step
