"""What XLA says of a program that it has compiled."""

from __future__ import annotations

from typing import Any

import jax
from jaxmem_hlo.module import Module


def fixed_bytes(memory: Any) -> int:
  """Returns the bytes of arguments and outputs, shared ones once.

  Args:
    memory: What `memory_analysis` returned.
  """
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
  )


def total_bytes(memory: Any) -> int:
  """Returns the same, and those of temporaries."""
  return fixed_bytes(memory) + memory.temp_size_in_bytes


def final_module(compiled: jax.stages.Compiled) -> Module:
  """Returns the scheduled module that a program was made of."""
  executable = compiled.runtime_executable()
  assert executable is not None, "XLA shows what it compiled."
  proto = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
  return Module.from_bytes(proto)
