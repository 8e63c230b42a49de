"""Servers to simulate: how fast they compute, and how fast they move data.

Rates of single devices are those of `jaxmem.cost`. The P100 and the A100 with
40 GB, which the paper has, are added here, from NVIDIA's data sheets "Tesla
P100" (SXM2, 16 GB; it has no tensor cores, so that products of float32 run at
the rate of the scalar units) and "A100 Tensor Core GPU" (40 GB, SXM).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxmem.cost import DATA_SHEETS, Rates

# Transfers per second and lane are those of the PCI Express base specifications
# 3.0 to 5.0; 128 of 130 bits are data.
_PCIE_TRANSFERS_PER_S = {3: 8e9, 4: 16e9, 5: 32e9}


def pcie_bytes_per_s(generation: int, num_lanes: int = 16) -> float:
  """Returns what a PCI Express link moves in one direction, at its peak.

  Raises:
    ValueError: If the generation is not 3, 4 or 5.
  """
  if generation not in _PCIE_TRANSFERS_PER_S:
    raise ValueError(
      f"generation must be one of {sorted(_PCIE_TRANSFERS_PER_S)}, got"
      f" {generation}."
    )
  return _PCIE_TRANSFERS_PER_S[generation] * num_lanes * 128 / 130 / 8


_P100 = Rates(
  memory_bytes_per_s=732e9,
  tf32_flops_per_s=10.6e12,
  bf16_flops_per_s=21.2e12,
  fp32_flops_per_s=10.6e12,
)
_A100_40 = dataclasses.replace(
  DATA_SHEETS["a100-80"], memory_bytes_per_s=1.555e12
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
  """Equal devices in one host.

  Attributes:
    name: What rows call it.
    rates: Of one device.
    num_devices: How many there are.
    memory_bytes: Memory of one device.
    pcie_generation: Of the link between the host and each device, x16.
    peer_bytes_per_s: Between two devices, one direction.
    transfer_efficiency: Fraction of the peak that transfers reach.
    transfer_latency_s: Seconds that starting a transfer adds.
  """

  name: str
  rates: Rates
  num_devices: int
  memory_bytes: int
  pcie_generation: int
  peer_bytes_per_s: float
  transfer_efficiency: float = 0.8
  transfer_latency_s: float = 1e-5

  @property
  def host_bytes_per_s(self) -> float:
    """What reaches a device from the host, or the host from a device."""
    return pcie_bytes_per_s(self.pcie_generation) * self.transfer_efficiency

  @property
  def peer_rate_bytes_per_s(self) -> float:
    """What reaches a device from another."""
    return self.peer_bytes_per_s * self.transfer_efficiency


# The paper's two servers come first: four P100, of which nothing is said about
# NVLink, and Amazon's p4d.24xlarge. NVLink 3 moves 300 GB/s per direction,
# NVLink 4 450 GB/s.
SERVERS: Mapping[str, Server] = {
  server.name: server
  for server in (
    Server(
      name="p100x4",
      rates=_P100,
      num_devices=4,
      memory_bytes=16 * 10**9,
      pcie_generation=3,
      peer_bytes_per_s=pcie_bytes_per_s(3),
    ),
    Server(
      name="a100x8",
      rates=_A100_40,
      num_devices=8,
      memory_bytes=40 * 10**9,
      pcie_generation=4,
      peer_bytes_per_s=300e9,
    ),
    Server(
      name="h100x8",
      rates=DATA_SHEETS["h100"],
      num_devices=8,
      memory_bytes=80 * 10**9,
      pcie_generation=5,
      peer_bytes_per_s=450e9,
    ),
    Server(
      name="h200x8",
      rates=DATA_SHEETS["h200"],
      num_devices=8,
      memory_bytes=141 * 10**9,
      pcie_generation=5,
      peer_bytes_per_s=450e9,
    ),
  )
}
