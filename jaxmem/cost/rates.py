"""How fast a device computes, moves bytes, and starts kernels.

Rates are peaks: of the data sheet, or of the device description that XLA
compiles for. What real kernels reach of them is a fraction that is stated
beside them, and that the estimates apply.

Data sheets: NVIDIA H200, H100 (SXM) and A100 80GB (SXM) Tensor Core GPU;
dense rates, that is half of those printed "with sparsity", and PCIe figures
per direction, half of the printed totals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from jaxmem import targets
from jaxmem.cost.links import Links

Precision = Literal["fp32", "tf32", "bf16"]

# Of NVLink and of PCIe, as in XLA's gpu_collective_performance_model.cc.
_LANE_BYTES_PER_S = 20e9
_PCIE_BYTES_PER_S = 12e9
# Temporaries that the operating system maps and clears. On one core it takes 2
# GB a second (system time, `benchmarks.executed_time_benchmark`); steps with
# their arena kept are faster by 6 (`benchmarks.kernel_time_benchmark`). What
# takes less also stays in caches: programs of one step compare best in between.
_MAPPED_BYTES_PER_S = 3e9
# What is smaller, glibc's malloc keeps (DEFAULT_MMAP_THRESHOLD_MAX).
_MOST_KEPT_BYTES = 32 << 20


def _check_fractions(rates: Efficiency | Strided) -> None:
  for field in dataclasses.fields(rates):
    value = getattr(rates, field.name)
    if isinstance(value, float) and not 0 < value <= 1:
      raise ValueError(f"{field.name} must be in (0, 1], got {value}.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Strided:
  """What reads across the order in which an array lies reach, as fractions.

  Of what is reached of the memory rate; see `StridedReads`.

  Attributes:
    looped: By kernels that are plain loops.
    tiled: By kernels that go through the array tile by tile.
    lost: In loops where lines leave the cache before all of them is read.
  """

  looped: float = 1.0
  tiled: float = 1.0
  lost: float = 1.0

  def __post_init__(self):
    _check_fractions(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
  """What kernels and copies reach of a device's rates, as fractions.

  Attributes:
    flops: Of the flops rates.
    memory: Of the memory rate.
    link: Of the rates to and from the host.
    misaligned: Products of matrices whose rows are not aligned (see
      `ProductKind`), of what is reached of the flops rates of matrix units.
    crosswise: The same, of products of tf32 whose factors lie across.
    convolution: The same, of convolutions of tf32.
    kernel_gradient: The same, of those that give the gradient of a kernel.
    transcendental: Evaluations of transcendental functions, of what is reached
      of `fp32_flops_per_s`.
    looped: Operations of convolutions that XLA computes in plain loops, of the
      same.
    factorized: Operations of factorizations and triangular solves, of the same.
      LAPACK takes one core of a CPU: Cholesky, LU, QR and symmetric eigenvalues
      of 400 by 400 and 800 by 800 reached 20 to 45 Gflops of 190 there. On GPUs
      it was not measured.
    strided: Bytes that are read across the order in which an array lies.
  """

  flops: float = 0.7
  memory: float = 0.85
  link: float = 0.8
  misaligned: float = 0.42
  crosswise: float = 0.55
  convolution: float = 0.72
  kernel_gradient: float = 0.33
  transcendental: float = 0.1
  looped: float = 1.0
  factorized: float = 1.0
  strided: Strided = Strided()

  def __post_init__(self):
    _check_fractions(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
  """What kernels find in caches.

  Attributes:
    most_bytes: At most so much of what one reads and writes.
    bytes_per_s: To and from there.
  """

  most_bytes: float = 0.0
  bytes_per_s: float = math.inf


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
  """Rates of a device.

  Attributes:
    memory_bytes_per_s: To and from its own memory.
    tf32_flops_per_s: Dense matrix products of float32 rounded to tf32.
    bf16_flops_per_s: Dense matrix products in bfloat16 or float16.
    fp32_flops_per_s: Everything else, matrix products in full float32 too.
    to_host_bytes_per_s: Copies to the host; 0 if there is no such link.
    from_host_bytes_per_s: Copies from the host; 0 if there is no such link.
    packed_bytes_per_s: Factors and results of products that a library arranges
      anew before and after it multiplies; infinity where that goes on
      meanwhile.
    caches: What counts as in a cache, of what a kernel reads and writes.
    launch_s: Seconds that starting a kernel adds.
    float32_products: Which rate matrix products of float32 run at, unless the
      program asks for the highest precision. "tf32" is what XLA does on GPUs;
      "fp32" is the rate of the scalar units.
    efficiency: What kernels and copies reach of all that.
    links: To other devices; None where collectives are priced by the bytes that
      they read and write.
  """

  memory_bytes_per_s: float
  tf32_flops_per_s: float
  bf16_flops_per_s: float
  fp32_flops_per_s: float
  to_host_bytes_per_s: float = 0.0
  from_host_bytes_per_s: float = 0.0
  packed_bytes_per_s: float = math.inf
  caches: Caches = Caches()
  launch_s: float = 2.5e-6
  float32_products: Precision = "tf32"
  efficiency: Efficiency = Efficiency()
  links: Links | None = None

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if isinstance(value, float) and value < 0:
        raise ValueError(f"{field.name} must not be negative, got {value}.")
    if self.float32_products not in ("fp32", "tf32", "bf16"):
      raise ValueError(
        "float32_products must be 'fp32', 'tf32' or 'bf16', got "
        f"{self.float32_products!r}."
      )

  def seconds(
    self,
    products: Mapping[Precision, float],
    scalar_flops: float,
    bytes_accessed: float,
    *,
    packed_bytes: float = 0.0,
    strided_bytes: float = 0.0,
  ) -> float:
    """Returns the roofline time of one kernel, its launch included.

    Args:
      products: Flops of matrix products and convolutions, by precision.
      scalar_flops: All other flops.
      bytes_accessed: Bytes read and written.
      packed_bytes: Bytes of the factors and results of products.
      strided_bytes: As many bytes as take what reading across the order in
        which an array lies takes more.
    """
    peaks: dict[Precision, float] = {
      "fp32": self.fp32_flops_per_s,
      "tf32": self.tf32_flops_per_s,
      "bf16": self.bf16_flops_per_s,
    }
    compute_s = scalar_flops / self.fp32_flops_per_s + sum(
      flops / peaks[precision] for precision, flops in products.items()
    )
    packing_s = packed_bytes / self.packed_bytes_per_s
    cached_bytes = min(bytes_accessed, self.caches.most_bytes)
    far_bytes = bytes_accessed - cached_bytes + strided_bytes
    memory_s = (
      cached_bytes / self.caches.bytes_per_s
      + far_bytes / self.memory_bytes_per_s
    )
    return self.launch_s + max(
      compute_s / self.efficiency.flops + packing_s,
      memory_s / self.efficiency.memory,
    )


def _nvlink(num_lanes: int) -> Links:
  return Links(within_host_bytes_per_s=num_lanes * _LANE_BYTES_PER_S)


_H100 = Rates(
  memory_bytes_per_s=3.35e12,
  tf32_flops_per_s=494.5e12,
  bf16_flops_per_s=989.5e12,
  fp32_flops_per_s=67e12,
  to_host_bytes_per_s=64e9,
  from_host_bytes_per_s=64e9,
  links=_nvlink(18),
)
DATA_SHEETS: Mapping[str, Rates] = {
  "h100": _H100,
  "h200": dataclasses.replace(_H100, memory_bytes_per_s=4.8e12),
  "a100-80": Rates(
    memory_bytes_per_s=2.039e12,
    tf32_flops_per_s=156e12,
    bf16_flops_per_s=312e12,
    fp32_flops_per_s=19.5e12,
    to_host_bytes_per_s=32e9,
    from_host_bytes_per_s=32e9,
    links=_nvlink(12),
  ),
}

# Fitted to kernels of the zoo's train steps on two cores of a server
# (`benchmarks.kernel_time_benchmark`), their arena kept. Other CPUs differ; the
# ratio of arithmetic to memory less so. What is packed was fitted to products
# of held-out steps, 64 by 32 by 64 in a batch and larger: the smaller they are,
# the less of the rate of large ones they reach. What is cached, tiled and
# strided was fitted to how long their programs take by `jax.jit`'s
# (`benchmarks.executed_time_benchmark`), on servers of two kinds.
CPU = Rates(
  memory_bytes_per_s=24e9,
  tf32_flops_per_s=190e9,
  bf16_flops_per_s=190e9,
  fp32_flops_per_s=190e9,
  packed_bytes_per_s=12e9,
  caches=Caches(most_bytes=4e6, bytes_per_s=48e9),
  launch_s=1.5e-6,
  float32_products="fp32",
  efficiency=Efficiency(
    flops=1.0,
    memory=1.0,
    transcendental=1 / 150,
    looped=1 / 170,
    factorized=0.2,
    strided=Strided(looped=0.12, tiled=0.4, lost=0.07),
  ),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
  """A device to plan for.

  Attributes:
    platform: "cpu" or "cuda": how XLA assigns buffers, and whether values can
      move to the host.
    rates: How fast it computes and copies; estimates of time are made of them.
    num_devices: How many such devices a program runs on. What is not divided
      between them yet is taken to be divided evenly.
  """

  platform: str
  rates: Rates
  num_devices: int = 1

  def mapping_s(self, temp_bytes: int) -> float:
    """Returns the seconds that a run waits until its temporaries are mapped.

    XLA allocates a program's temporaries anew in each run. On a CPU every page
    of them is then mapped and cleared when it is first written, and nothing of
    them is in a cache.

    Args:
      temp_bytes: Of the program.
    """
    if self.platform != "cpu" or temp_bytes <= self.most_kept_bytes:
      return 0.0
    return temp_bytes / _MAPPED_BYTES_PER_S

  @property
  def most_kept_bytes(self) -> int:
    """Most temporaries of a program that an allocator keeps between runs."""
    return _MOST_KEPT_BYTES - 1


def device_for(
  target: targets.Target | str | None = None,
  per_host: int | None = None,
  num_devices: int = 1,
) -> Device:
  """Returns the device that a target describes; see `for_target`.

  Args:
    target: As there.
    per_host: How many devices share a host, if that is known.
    num_devices: How many there are.
  """
  target = targets.get(target)
  rates = for_target(target)
  if rates.links is not None and per_host is not None:
    links = dataclasses.replace(rates.links, devices_per_host=per_host)
    rates = dataclasses.replace(rates, links=links)
  return Device(platform=target.platform, rates=rates, num_devices=num_devices)


def for_target(target: targets.Target | str | None = None) -> Rates:
  """Returns the rates of a target.

  Args:
    target: What `targets.get` takes; None for the CPU. Of a GPU, the device
      description gives what it holds, the data sheet of the same name the rest.

  Raises:
    ValueError: If the target is unknown, or neither its description nor a data
      sheet gives a rate.
  """
  target = targets.get(target)
  if target.platform == "cpu":
    return CPU
  host = target.host_bandwidth_bytes_per_s
  found: dict[str, float | None] = {
    "memory_bytes_per_s": target.memory_bandwidth_bytes_per_s,
    "tf32_flops_per_s": target.flops_per_s("tf32"),
    "bf16_flops_per_s": target.flops_per_s("bf16"),
    "fp32_flops_per_s": target.flops_per_s("fp32"),
    "to_host_bytes_per_s": host,
    "from_host_bytes_per_s": host,
  }
  given: dict[str, Any] = {k: value for k, value in found.items() if value}
  if target.nvlink_lanes:
    given["links"] = _nvlink(target.nvlink_lanes)
  if target.name in DATA_SHEETS:
    return dataclasses.replace(DATA_SHEETS[target.name], **given)
  optional = {"to_host_bytes_per_s", "from_host_bytes_per_s"}
  missing = found.keys() - given.keys() - optional
  if missing:
    raise ValueError(
      f"target {target.name!r} describes no {', '.join(sorted(missing))}; pass"
      " Rates with the figures of its data sheet."
    )
  given.setdefault(
    "links", Links(within_host_bytes_per_s=host or _PCIE_BYTES_PER_S)
  )
  return Rates(**given)
