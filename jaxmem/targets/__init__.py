"""Device descriptions, so that a step can be compiled without its device.

A `Target` names the device a plan is for. For a GPU it holds the text of XLA's
`GpuTargetConfigProto`; XLA's GPU compiler runs from that text alone, on any
host with the CUDA plugin of JAX and no GPU, and reports the memory of the
program it would run (see `jax.experimental.topologies`).

For a GPU that is not listed here, compile anything on it once with
`XLA_FLAGS=--xla_dump_to=DIR`: XLA writes the description to
`DIR/*.gpu_target_config.pbtxt`, a path that `get` takes.

Importing this package neither imports jax nor initialises its backends.
"""

from jaxmem.targets.description import (
  CPU,
  Target,
  TargetLike,
  get,
  known_names,
  pool_fraction,
)
from jaxmem.targets.device_group import DeviceGroup, devices, planned_on
from jaxmem.targets.deviceless import (
  compile_options,
  current_platform,
  is_available,
  lower,
  lower_traced,
  planned_for,
  trace,
)

__all__ = [
  "CPU",
  "DeviceGroup",
  "Target",
  "TargetLike",
  "compile_options",
  "current_platform",
  "devices",
  "get",
  "is_available",
  "known_names",
  "lower",
  "lower_traced",
  "planned_for",
  "planned_on",
  "pool_fraction",
  "trace",
]
