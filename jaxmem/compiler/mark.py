"""Marks in the names of functions, by which the hook knows its modules."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jaxmem_hlo import compiler_hook

from jaxmem.jaxpr import internals

_compile_numbers = itertools.count()


def marked(fun: Callable[..., Any], tag: str) -> Callable[..., Any]:
  """Wraps a function so that its modules carry a mark.

  The compiler hook is installed when jax first traces the function: no
  earlier, since that initialises jax's backends, and always before a compile.
  """

  @functools.wraps(fun)
  def step(*args: Any, **kwargs: Any) -> Any:
    compiler_hook.install()
    return fun(*args, **kwargs)

  name = getattr(fun, "__name__", type(fun).__name__)
  step.__name__ = compiler_hook.mark(name, tag)
  return step


@contextlib.contextmanager
def handling(
  traced: jax.stages.Traced, handler: compiler_hook.Handler
) -> Iterator[jax.stages.Traced]:
  """Lets a handler answer XLA in what is compiled inside the context.

      with handling(traced, handler) as marked:
        marked.lower().compile()

  Args:
    traced: The step.
    handler: What is shown the step's module once XLA has scheduled it.

  Yields:
    The step under a name whose modules the handler is shown. No other process
    or call uses it, so that no compilation cache can know the program: a cached
    one would not pass by the hook.
  """
  tag = f"plan{os.getpid()}n{next(_compile_numbers)}t{time.time_ns()}"
  compiler_hook.install()
  compiler_hook.add_handler(tag, handler)
  try:
    name = compiler_hook.mark(traced.fun_name, tag)
    yield internals.with_name(traced, name)
  finally:
    compiler_hook.remove_handler(tag)
