"""Compiles whose scheduled modules somebody wants to see, and answer."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping

import jax
from jaxmem_hlo import compiler_hook

from jaxmem.compiler import jax_doors
from jaxmem.errors import PlanningError

_compile_numbers = itertools.count()


@contextlib.contextmanager
def handling(
  handler: compiler_hook.Handler, *, as_scheduled: bool = False
) -> Iterator[Mapping[str, str]]:
  """Lets a handler answer XLA in what is compiled inside the context.

      with handling(handler) as options:
        step.compile(options)

  Args:
    handler: What is shown the step's module once XLA has scheduled it.
    as_scheduled: Whether XLA must not recompute anything after that.

  Yields:
    Compiler options for the compile. No compilation cache knows the program,
    nor learns of it: a cached one would not pass by the hook.

  Raises:
    PlanningError: If XLA cannot show a module that is compiled.
    RuntimeError: If this version of jax is not known.
  """
  tag = f"{jax_doors.SHOWN}{os.getpid()}n{next(_compile_numbers)}"
  if as_scheduled:
    tag += jax_doors.AS_SCHEDULED
  jax_doors.install()
  compiler_hook.add_handler(tag, handler)
  try:
    yield {jax_doors.OPTION: tag}
  except jax.errors.JaxRuntimeError as error:
    if not jax_doors.is_too_large(error):
      raise
    raise PlanningError(
      f"The step cannot be planned: {jax_doors.TOO_LARGE}."
    ) from None
  finally:
    compiler_hook.remove_handler(tag)
