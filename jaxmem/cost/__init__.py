"""What instructions cost: operations, bytes, and seconds on a device."""

from jaxmem.cost.collectives import collective_seconds, moved_bytes
from jaxmem.cost.factorizations import FACTORIZATIONS, factorization_flops
from jaxmem.cost.flops import FlopCounter, Flops
from jaxmem.cost.links import Links
from jaxmem.cost.rates import (
  CPU,
  DATA_SHEETS,
  Caches,
  Device,
  Efficiency,
  Precision,
  Rates,
  Strided,
  device_for,
  for_target,
)
from jaxmem.cost.roofline import instruction_seconds
from jaxmem.cost.schedule_time import (
  Link,
  LinkClock,
  ScheduleTimer,
  ScheduleTrace,
  StepTime,
  Transfer,
  has_transfers,
  step_time,
)
from jaxmem.cost.traffic import TrafficCounter, array_bytes, trip_count

__all__ = [
  "CPU",
  "DATA_SHEETS",
  "FACTORIZATIONS",
  "Caches",
  "Device",
  "Efficiency",
  "FlopCounter",
  "Flops",
  "Link",
  "LinkClock",
  "Links",
  "Precision",
  "Rates",
  "ScheduleTimer",
  "ScheduleTrace",
  "StepTime",
  "Strided",
  "TrafficCounter",
  "Transfer",
  "array_bytes",
  "collective_seconds",
  "device_for",
  "factorization_flops",
  "for_target",
  "has_transfers",
  "instruction_seconds",
  "moved_bytes",
  "step_time",
  "trip_count",
]
