"""Tiny steps compiled for the CPU, as they are and with another placement."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import zoo
from jaxmem.experimental.repack import repack

# XLA packs these one to three per cent above the bytes live at once.
MODELS = ("googlenet", "resnet50", "scan_transformer")
_NUM_STEPS = 3


@functools.cache
def pair(name: str) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
  """Returns a compiled step, and the same with its temporaries repacked."""
  compiled = fresh(name)
  return compiled, repack(compiled, strict=True)


def fresh(name: str) -> jax.stages.Compiled:
  """Compiles the step of a model anew."""
  step = zoo.build(name, 2, size="tiny")
  return jax.jit(step.function, **step.jit_kwargs).lower(*step.args).compile()


def temp_bytes(compiled: jax.stages.Compiled) -> int:
  """Returns the temporaries of a program as XLA reports them."""
  analysis = compiled.memory_analysis()
  assert analysis is not None
  return analysis.temp_size_in_bytes


def run(name: str, compiled: Callable[..., Any]) -> list[bytes]:
  """Runs a few steps of a model; returns the bits of all results."""
  variables, opt_state, *batch = zoo.concrete(zoo.build(name, 2, size="tiny"))
  seen = []
  for _ in range(_NUM_STEPS):
    variables, opt_state, loss = compiled(variables, opt_state, *batch)
    seen += jax.tree.leaves((variables, opt_state, loss))
    # The next step takes them over.
    seen = [
      x if isinstance(x, bytes) else np.asarray(x).tobytes() for x in seen
    ]
  return seen
