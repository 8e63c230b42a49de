"""Roofline times of the instructions of a scheduled module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxmem_hlo.module import Instruction, Module

from jaxmem.cost.flops import FlopCounter, Flops, Product
from jaxmem.cost.rates import Precision, Rates
from jaxmem.cost.traffic import (
  TrafficCounter,
  array_bytes,
  is_free,
  trip_count,
)

# A transcendental function takes as long as about this many other operations.
_TRANSCENDENTAL_FLOPS = 10
# xla.PrimitiveType.
_F16, _F32, _BF16 = 10, 11, 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
  """What one execution of an instruction costs.

  Attributes:
    flops: Operations, counted as XLA's cost analysis counts them.
    bytes_accessed: Bytes read and written.
    seconds: Estimated time, its launch included.
  """

  flops: float
  bytes_accessed: float
  seconds: float


_NO_COST = Cost(flops=0.0, bytes_accessed=0.0, seconds=0.0)


def instruction_costs(module: Module, rates: Rates) -> Mapping[int, Cost]:
  """Returns the cost of every instruction that the schedule runs.

  Args:
    module: A scheduled module.
    rates: Of the device.

  Returns:
    Instruction id -> cost, for the instructions of scheduled computations. A
    loop costs its iterations, a conditional its dearest branch; one whose trip
    count XLA does not know is taken to run once.
  """
  return _Costs(module, rates).all()


class _Costs:
  def __init__(self, module: Module, rates: Rates):
    self._module = module
    self._rates = rates
    self._flops = FlopCounter(module)
    self._traffic = TrafficCounter(module)
    self._costs: dict[int, Cost] = {}

  def all(self) -> dict[int, Cost]:
    for computation_id in self._module.scheduled_ids:
      for instruction in self._module.by_id[computation_id].instructions:
        self._of(instruction)
    return self._costs

  def _of(self, instruction: Instruction) -> Cost:
    if instruction.id not in self._costs:
      self._costs[instruction.id] = self._compute(instruction)
    return self._costs[instruction.id]

  def _compute(self, instruction: Instruction) -> Cost:
    opcode = instruction.opcode
    if is_free(instruction):
      return _NO_COST
    if opcode == "copy-start":
      # It goes on while other kernels run.
      return Cost(
        flops=0.0,
        bytes_accessed=array_bytes(instruction.shape.tuple_shapes[0]),
        seconds=self._rates.launch_s,
      )
    if opcode == "while":
      return self._sum(instruction.callees, trip_count(instruction))
    if opcode in ("call", "async-start"):
      return self._sum(instruction.callees, 1)
    if opcode == "conditional":
      branches = [self._sum((c,), 1) for c in instruction.callees]
      return max(branches, key=lambda c: c.seconds)
    flops = self._flops.count(instruction)
    bytes_accessed = self._traffic.count(instruction)
    scalar = flops.scalar + _TRANSCENDENTAL_FLOPS * flops.transcendental
    return Cost(
      flops=flops.total,
      bytes_accessed=bytes_accessed,
      seconds=self._rates.seconds(
        self._by_precision(flops), scalar, bytes_accessed
      ),
    )

  def _sum(self, computation_ids: tuple[int, ...], times: int) -> Cost:
    parts = [
      self._of(i)
      for c in computation_ids
      for i in self._module.by_id[c].instructions
    ]
    return Cost(
      flops=times * sum(p.flops for p in parts),
      bytes_accessed=times * sum(p.bytes_accessed for p in parts),
      seconds=times * sum(p.seconds for p in parts),
    )

  def _by_precision(self, flops: Flops) -> dict[Precision, float]:
    found: dict[Precision, float] = {}
    for product, count in flops.products.items():
      precision = self._precision(product)
      found[precision] = found.get(precision, 0.0) + count
    return found

  def _precision(self, product: Product) -> Precision:
    if product.element_type in (_F16, _BF16):
      return "bf16"
    if product.element_type == _F32 and not product.is_highest:
      return self._rates.float32_products
    return "fp32"
