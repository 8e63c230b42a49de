"""Marks in the names of functions, by which the hook knows its modules."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
from jaxmem_hlo import compiler_hook

from jaxmem.jaxpr import internals

_plan_numbers = itertools.count()


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


def with_mark(traced: jax.stages.Traced, tag: str) -> jax.stages.Traced:
  """Returns a traced function whose modules carry a mark; see `marked`."""
  compiler_hook.install()
  return internals.with_name(traced, compiler_hook.mark(traced.fun_name, tag))


def new_tag() -> str:
  """Returns a tag that no other process or call uses.

  It makes the module's name, and with it the key in a persistent compilation
  cache, new: a cached program would not pass by the hook.
  """
  return f"plan{os.getpid()}n{next(_plan_numbers)}t{time.time_ns()}"
