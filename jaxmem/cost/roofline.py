"""Roofline times of the instructions of a scheduled module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jaxmem_hlo.module import (
  Instruction,
  Module,
  collective_of,
  collective_start,
)

from jaxmem.cost.collectives import collective_seconds
from jaxmem.cost.copies import direction
from jaxmem.cost.flops import FlopCounter
from jaxmem.cost.products import ProductKind
from jaxmem.cost.rates import Efficiency, Precision, Rates, Strided
from jaxmem.cost.traffic import (
  StridedReads,
  TrafficCounter,
  is_free,
  trip_count,
)


def instruction_seconds(
  module: Module,
  rates: Rates,
  known: tuple[Module, Mapping[int, float]] | None = None,
) -> dict[int, float]:
  """Estimates the seconds of every instruction that the schedule runs.

  Args:
    module: A scheduled module.
    rates: Of the device.
    known: A module that this one was made from, and what this function said of
      it: what both have alike is not estimated again.

  Returns:
    Instruction id -> seconds of one execution, its launch included, for the
    instructions of scheduled computations. A loop takes those of its
    iterations, a conditional those of its dearest branch; one whose trip count
    XLA does not know is taken to run once.
  """
  roofline = _Roofline(module, rates, _seconds_of_alike(module, known))
  for computation_id in module.scheduled_ids:
    roofline.sum([computation_id])
  return roofline.seconds


def _seconds_of_alike(
  module: Module, known: tuple[Module, Mapping[int, float]] | None
) -> dict[int, float]:
  """Returns what is known of instructions that another module has alike."""
  if known is None:
    return {}
  other, seconds = known
  others = {
    i.id: i for c in other.scheduled_ids for i in other.by_id[c].instructions
  }
  return {
    i.id: seconds[i.id]
    for c in module.scheduled_ids
    for i in module.by_id[c].instructions
    if i.id in others and i.is_alike(others[i.id])
  }


class _Roofline:
  def __init__(self, module: Module, rates: Rates, seconds: dict[int, float]):
    self._module = module
    self._rates = rates
    self._flops = FlopCounter(module)
    self._traffic = TrafficCounter(module)
    self.seconds = seconds

  def sum(self, computation_ids: Iterable[int]) -> float:
    """Returns the seconds of all instructions of some computations."""
    return sum(
      self._of(i)
      for c in computation_ids
      for i in self._module.by_id[c].instructions
    )

  def _of(self, instruction: Instruction) -> float:
    if instruction.id not in self.seconds:
      self.seconds[instruction.id] = self._estimate(instruction)
    return self.seconds[instruction.id]

  def _estimate(self, instruction: Instruction) -> float:
    opcode = instruction.opcode
    if is_free(instruction):
      return 0.0
    if (
      opcode == "copy-start"
      or direction(instruction) is not None
      or collective_start(self._module, instruction)
    ):
      # It goes on while other kernels run.
      return self._rates.launch_s
    if self._rates.links is not None:
      collective = collective_of(self._module, instruction)
      if collective is not None:
        return collective_seconds(collective, self._rates.links)
    if opcode == "while":
      return trip_count(instruction) * self.sum(instruction.callees)
    if opcode in ("call", "async-start"):
      return self.sum(instruction.callees)
    if opcode == "conditional":
      return max(self.sum([c]) for c in instruction.callees)
    flops = self._flops.count(instruction)
    products: dict[Precision, float] = {}
    efficiency = self._rates.efficiency
    for kind, count in flops.products.items():
      precision = kind.precision or self._rates.float32_products
      count /= _reached(kind, precision, efficiency)
      products[precision] = products.get(precision, 0.0) + count
    scalar = (
      flops.scalar
      + flops.transcendental / efficiency.transcendental
      + flops.looped / efficiency.looped
      + flops.factorized / efficiency.factorized
    )
    num_bytes = self._traffic.count(instruction)
    strided_bytes = 0.0
    if efficiency.strided.looped < 1:
      strided = self._traffic.strided(instruction)
      reached = _across(strided, efficiency.strided)
      strided_bytes = strided.num_bytes * (1 / reached - 1)
    return self._rates.seconds(
      products,
      scalar,
      num_bytes,
      packed_bytes=flops.packed_bytes,
      strided_bytes=strided_bytes,
    )


def _across(reads: StridedReads, reached: Strided) -> float:
  """Returns what reads across an array reach of the memory rate."""
  if reads.is_lost:
    return reached.lost
  return reached.tiled if reads.is_tiled else reached.looped


def _reached(
  kind: ProductKind, precision: Precision, efficiency: Efficiency
) -> float:
  """Returns what matrix units reach of what they do at their best."""
  if precision == "fp32":
    return 1.0
  if kind.is_misaligned:
    return efficiency.misaligned
  if precision != "tf32":
    # Nothing else that lies across, and no other convolution, was measured.
    return 1.0
  if kind.is_kernel_gradient:
    return efficiency.kernel_gradient
  if kind.is_convolution:
    return efficiency.convolution
  return efficiency.crosswise if kind.is_crosswise else 1.0
