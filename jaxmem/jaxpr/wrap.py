"""Functions whose jaxpr is rewritten whenever they are traced."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.core
from jax.extend import core

from jaxmem.jaxpr import internals


class HasJaxpr(Protocol):
  """What a rewrite returns: a jaxpr, and whatever it has to say about it."""

  @property
  def closed_jaxpr(self) -> core.Jaxpr:
    """The jaxpr that runs instead."""
    ...


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


def rewritten[R: HasJaxpr](
  fun: Callable[..., Any],
  rewrite: Callable[[core.Jaxpr], R],
  on_result: Callable[[R], None] | None = None,
) -> Callable[..., Any]:
  """Wraps a function so that another jaxpr runs in place of its own.

  Jit the result. It has the signature of the function and takes and returns
  the same trees, so donation, static arguments and shardings mean the same.
  The function is traced once, when jit traces the wrapper.

  Args:
    fun: A function, not jitted.
    rewrite: Returns a jaxpr with the inputs and outputs of the one it is given.
    on_result: Called with what `rewrite` returned at each trace.
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
    result = rewrite(jaxpr)
    if on_result is not None:
      on_result(result)
    results = core.jaxpr_as_fun(result.closed_jaxpr)(*inputs)
    return jax.tree.unflatten(jax.tree.structure(shapes), results)

  return step
