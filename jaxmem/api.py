"""The public functions: `jit` and `plan`. Orchestration, no algorithms."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax

from jaxmem import targets
from jaxmem.compiler import jax_doors
from jaxmem.entry import PLANNED, MemoryLimit, Policy
from jaxmem.options import Options
from jaxmem.planning import Request
from jaxmem.report import Plan
from jaxmem.runtime import ArenaKeepingJit
from jaxmem.step_planner import StepPlanner

_JIT_KEYWORDS = frozenset(inspect.signature(jax.jit).parameters) - {"fun"}
_NOT_GIVEN: Any = object()


def jit(
  fun: Callable[..., Any] = _NOT_GIVEN,
  /,
  *,
  memory_limit: int | float | str | None = None,
  options: Options | None = None,
  **jit_kwargs: Any,
) -> Any:
  """Compiles like `jax.jit`, with the memory of the program planned.

  Planning happens inside compilation, on XLA's scheduled program: the result
  is an ordinary jitted function with the same kernels and the same numbers.
  Where no order saves enough, or planning fails, XLA's own plan runs.

      @jaxmem.jit(donate_argnums=(0, 1), memory_limit="24GiB")
      def train_step(params, opt_state, batch): ...

  Args:
    fun: The function; leave it out to use `jit` as a decorator with arguments.
    memory_limit: Most bytes of device memory that the program may take:
      arguments, outputs and temporaries. Bytes, "24GiB", a share of the pool
      that jax takes of the device's memory ("80%" or 0.8), or "auto" for what
      of that is free when the program is lowered. Where the best order takes
      more, values are computed twice, or moved to the host and back, at the
      least estimated time. Where that does not suffice either, the first call
      raises InfeasibleError, and PlanningError where planning broke.
    options: Planning options.
    **jit_kwargs: Everything that `jax.jit` takes, with the same meaning.

  Returns:
    What `jax.jit` returns (or a decorator, without `fun`); see also
    `Options.keep_arena`.

  Raises:
    TypeError: If `fun` is not callable or a keyword is not one of jax.jit's.
    ValueError: On a malformed limit, or a static argument where the arena is
      kept.
    RuntimeError: If there is a limit, and this version of jax is not known.
  """
  options = Options.of(options)
  _check_jit_keywords(jit_kwargs)
  if options.keep_arena:
    _check_nothing_is_static(jit_kwargs)
  if fun is _NOT_GIVEN:
    return functools.partial(
      jit, memory_limit=memory_limit, options=options, **jit_kwargs
    )
  _check_callable(fun)
  _warn_of_other_wrappers(fun)
  limit = None if memory_limit is None else MemoryLimit.of(memory_limit)
  if not _doors_are_known(is_needed=limit is not None):
    return jax.jit(fun, **jit_kwargs)
  tag = PLANNED.add(Policy(options=options, limit=limit))
  given = jit_kwargs.pop("compiler_options", None) or {}
  jitted = jax.jit(
    fun, compiler_options={**given, jax_doors.OPTION: tag}, **jit_kwargs
  )
  return ArenaKeepingJit(jitted) if options.keep_arena else jitted


def _warn_of_other_wrappers(fun: Callable[..., Any]) -> None:
  """Warns of functions that `nnx.jit` and the like have jitted already."""
  if not hasattr(fun, "lower") or jax_doors.is_jitted(fun):
    return
  wrapper = type(fun).__module__.partition(".")[0]
  PLANNED.warn_once(
    f"wrapper {wrapper}",
    f"{getattr(fun, '__name__', 'a function')} is jitted by {wrapper} already."
    " Inside of jaxmem.jit, as inside of jax.jit, it is a part of another"
    " program, and what it changes in place, as nnx.jit's functions do with"
    " their modules, is lost. Leave it as it is: jaxmem.plan takes it, and"
    " jaxmem.enable() plans what it compiles.",
  )


def plan(
  fun: Callable[..., Any],
  /,
  *args: Any,
  target: targets.TargetLike = None,
  memory_limit: int | float | str | None = None,
  options: Options | None = None,
  **kwargs: Any,
) -> Plan:
  """Plans a step and measures the plan, without running it.

  Compiles the step twice, as `jax.jit` and as `jaxmem.jit` would. Modules,
  optimizers and arrays that it is given stay as they are.

  Args:
    fun: The step: a plain function, or one that is jitted, by jax.jit,
      jaxmem.jit, nnx.jit, eqx.filter_jit or whatever else returns an object
      with `lower`; it keeps its donation, shardings and static arguments. A
      function that takes an iterator, as Keras's `model.train_function` does,
      is called until it would compile its step: the first program of more than
      a few operations that takes most of its arrays.
    *args: Its arguments: arrays, `jax.ShapeDtypeStruct`s, or whatever its
      wrapper takes in their place.
    target: A device that need not be here: "h200", "h100", "a100-80", the path
      or text of a GpuTargetConfigProto, or "cpu". None plans for what the
      arguments are spread over (see `jaxmem.devices`), or jax's own device.
    memory_limit: Most bytes of device memory that the program may take, as
      in `jit`. A share is one of jax's pool on the target, which is its memory
      times XLA_PYTHON_CLIENT_MEM_FRACTION, or 0.75; the plan states it.
    options: Planning options.
    **kwargs: jax.jit's keywords (donate_argnums, static_argnums, ...) for a
      plain function; any other is passed to `fun`.

  Returns:
    The plan.

  Raises:
    InfeasibleError: If no plan was found that fits `memory_limit`.
    PlanningError: If the step cannot be planned, or none was found.
    TypeError: If `fun` is not a function that jax can trace, or jit's keywords
      were given for one that is jitted.
    ValueError: On an unknown target or a malformed limit.
    RuntimeError: If the target cannot be compiled for here.
  """
  _check_callable(fun)
  device, group = targets.planned_on(target, (args, kwargs))
  request = Request(options=Options.of(options), target=device, group=group)
  share = None
  if memory_limit is not None:
    limit = MemoryLimit.of(memory_limit)
    limit_bytes, share = limit.planned_for(request.described, (args, kwargs))
    request = dataclasses.replace(request, limit_bytes=limit_bytes)
  jit_kwargs = {k: v for k, v in kwargs.items() if k in _JIT_KEYWORDS}
  _check_not_jitted(fun, jit_kwargs)
  call_kwargs = {k: v for k, v in kwargs.items() if k not in _JIT_KEYWORDS}
  planner = StepPlanner(fun, jit_kwargs, request, share)
  return planner.plan(args, call_kwargs)


def _doors_are_known(*, is_needed: bool) -> bool:
  """Whether programs can be planned with this version of jax.

  Raises:
    RuntimeError: If not, and it is needed.
  """
  try:
    jax_doors.install()
  except RuntimeError as error:
    if is_needed:
      raise
    warnings.warn(f"{error} XLA's own plans run.", stacklevel=3)
    return False
  return True


def _check_callable(fun: Any) -> None:
  if not callable(fun):
    raise TypeError(f"fun must be callable, got {fun!r}.")


def _check_not_jitted(fun: Any, jit_kwargs: dict[str, Any]) -> None:
  if jit_kwargs and hasattr(fun, "lower"):
    raise TypeError(
      f"{next(iter(jit_kwargs))} is for functions that are not jitted; {fun!r}"
      " is, and has its own."
    )


def _check_jit_keywords(jit_kwargs: dict[str, Any]) -> None:
  unknown = sorted(jit_kwargs.keys() - _JIT_KEYWORDS)
  if unknown:
    raise TypeError(
      f"jit got an unexpected keyword {unknown[0]!r}; it takes memory_limit=,"
      f" options= and those of jax.jit: {', '.join(sorted(_JIT_KEYWORDS))}."
    )


def _check_nothing_is_static(jit_kwargs: dict[str, Any]) -> None:
  for name in ("static_argnums", "static_argnames"):
    if jit_kwargs.get(name) is not None:
      raise ValueError(
        f"keep_arena does not support {name}; bind those arguments with"
        " functools.partial, one function for each value."
      )
