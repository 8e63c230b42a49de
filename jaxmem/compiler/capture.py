"""The program of a function that lowers or compiles it by itself.

`nnx.jit` and `eqx.filter_jit` return objects with a `lower` of their own, whose
arguments jax would not take; Keras's train function takes an iterator. All end
at the door where jax lowers a program: there it is caught, before it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxmem import targets
from jaxmem.compiler import jax_doors
from jaxmem.compiler.lowered_step import LoweredStep, most_bytes
from jaxmem.compiler.steps import Step
from jaxmem.errors import PlanningError
from jaxmem.jaxpr import memory

# What a wrapper does with its arguments is of fewer equations than a step, and
# where nothing is known of these, the step is the first program so large.
_LEAST_EQUATIONS = 10
_LEAST_BYTES = 16 * 2**20


class _FoundError(BaseException):
  """Ends a call once its step is known; wrappers catch no such thing."""


def is_called(args: Any) -> bool:
  """Whether a function must be called for its program, as jax cannot trace it.

  It takes an iterator, and compiles what is given by that.
  """
  return any(map(_is_iterator, jax.tree.leaves(args, is_leaf=_is_iterator)))


def arrays_in(arguments: Any) -> list[Any]:
  """Returns the arrays among a function's arguments, and shapes of such."""
  kinds = jax.Array | np.ndarray | jax.ShapeDtypeStruct
  leaves = jax.tree.leaves(arguments, is_leaf=_is_iterator)
  return [leaf for leaf in leaves if isinstance(leaf, kinds)]


def _is_iterator(value: Any) -> bool:
  return isinstance(value, Iterator)


def lowered_by_itself(
  fun: Callable[..., Any],
  args: tuple[Any, ...],
  kwargs: dict[str, Any],
  target: targets.Target | None,
) -> Step:
  """Returns the program that a function lowers by itself, or compiles.

  It is traced anew even if it ran before, so that jax lowers it. A function
  without `lower` is called until it would compile its step.

  Args:
    fun: Has `lower`; or takes an iterator.
    args: Its positional arguments.
    kwargs: Its keyword arguments.
    target: The device planned for; None for that of the function itself.

  Raises:
    PlanningError: If it lowered no step.
    ValueError: If the step is not one of one device, but the target is.
  """
  with targets.planned_for(target):
    if hasattr(fun, "lower"):
      found = _lowered(fun, args, kwargs)
    else:
      found = _compiled_first(fun, args, kwargs)
  if found is None:
    raise PlanningError(
      f"{fun!r} compiled no step, so that there is nothing to plan. Give the"
      " jitted function itself, or run the script under python -m jaxmem run"
      " --plan-only."
    )
  step = LoweredStep(found, found.jaxpr)
  if target is None or target.platform == jax.default_backend():
    return step
  return step.for_target(target)


def _lowered(
  fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> jax_doors.Lowering | None:
  """Returns the program that `lower` lowers; others run, the last does not."""
  found: list[jax_doors.Lowering] = []
  with jax_doors.watching(found.append):
    try:
      fun.lower(*args, **kwargs)
    except Exception:
      if not _has_plain_shapes((args, kwargs)):
        raise
      found.clear()
      _lower_as_arrays(fun, args, kwargs)
  return found[-1] if found else None


def _has_plain_shapes(arguments: Any) -> bool:
  """Whether there are shapes among arguments, and none that is sharded."""
  shapes = [a for a in arrays_in(arguments) if _is_shape(a)]
  return bool(shapes) and all(shape.sharding is None for shape in shapes)


def _is_shape(value: Any) -> bool:
  return isinstance(value, jax.ShapeDtypeStruct)


def _lower_as_arrays(
  fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
  """Lowers with arrays that are being traced in place of shapes.

  Equinox's filters take these for arrays, but shapes for constants.
  """
  leaves, tree = jax.tree.flatten((args, kwargs))

  def lower(arrays: list[Any]) -> None:
    given = iter(arrays)
    filled = [next(given) if _is_shape(leaf) else leaf for leaf in leaves]
    new_args, new_kwargs = tree.unflatten(filled)
    fun.lower(*new_args, **new_kwargs)

  jax.eval_shape(lower, [leaf for leaf in leaves if _is_shape(leaf)])


def _compiled_first(
  fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> jax_doors.Lowering | None:
  """Calls a function until it lowers its step."""
  found: list[jax_doors.Lowering] = []
  arrays = arrays_in((args, kwargs))
  least_bytes = sum(memory.size_bytes(a) for a in arrays) // 2

  def watch(lowering: jax_doors.Lowering) -> None:
    invars = lowering.jaxpr.invars
    is_step = (
      lowering.is_for_devices
      and _num_equations(lowering.jaxpr) >= _LEAST_EQUATIONS
      and len(invars) >= len(arrays) // 2
      and sum(memory.size_bytes(v.aval) for v in invars) >= least_bytes
      and (arrays or most_bytes(lowering.jaxpr) >= _LEAST_BYTES)
    )
    if is_step:
      found.append(lowering)
      raise _FoundError

  with jax_doors.watching(watch), contextlib.suppress(_FoundError):
    fun(*args, **kwargs)
  return found[0] if found else None


def _num_equations(jaxpr: core.Jaxpr) -> int:
  return sum(
    1 + sum(map(_num_equations, core.jaxprs_in_params(eqn.params)))
    for eqn in jaxpr.eqns
  )
