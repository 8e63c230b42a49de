"""Rates and products whose seconds can be computed by hand."""

import tiny_hlo
from jaxmem_hlo.module import Module
from tiny_hlo import f32

from jaxmem import cost

# One flop of any kind takes 1 s, a byte 0.1 s, a launch 0.01 s.
UNIT = cost.Rates(
  memory_bytes_per_s=10.0,
  tf32_flops_per_s=1.0,
  bf16_flops_per_s=1.0,
  fp32_flops_per_s=1.0,
  launch_s=0.01,
  efficiency=cost.Efficiency(
    flops=1.0, memory=1.0, misaligned=1.0, crosswise=1.0
  ),
)


def dot(m: int, n: int, k: int) -> Module:
  """Returns a matrix product of [m, k] and [k, n], both row by row."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  a, b = main.parameter(f32(m, k)), main.parameter(f32(k, n))
  main.op("dot", f32(m, n), a, b, name="dot")
  module = builder.module(main)
  numbers = module.entry.root.proto.dot_dimension_numbers
  numbers.lhs_contracting_dimensions.append(1)
  numbers.rhs_contracting_dimensions.append(0)
  return module


def root_seconds(module: Module, rates: cost.Rates) -> float:
  """Returns what the last instruction of a module takes."""
  return cost.instruction_seconds(module, rates)[module.entry.root.id]
