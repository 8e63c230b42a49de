"""How fast devices exchange bytes, inside of a host and between hosts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Links:
  """The links between the devices of a program, each in one direction.

  The figures are those that XLA estimates with: of NVLink 20 GB/s a lane, of
  which a ring reaches 92 %, and 5 microseconds to launch a collective
  (`gpu_collective_performance_model.cc`); 1.5 microseconds for a barrier over
  NVLink, and 55.56 GB/s and 68.89 microseconds between hosts, both times the
  0.45 by which XLA corrects them (`sol_gpu_cost_model.cc`, "NVIDIA H100 80GB
  HBM3"). Every device has a network card of its own.

  Attributes:
    within_host_bytes_per_s: Of one device to the others of its host.
    between_hosts_bytes_per_s: Of one device's network card.
    devices_per_host: Partition p is on host p // devices_per_host.
    ring_efficiency: Fraction of the rate within a host that rings reach.
    launch_s: To start a collective.
    within_host_hop_s: For the first byte from device to device.
    between_hosts_hop_s: The same between hosts.
  """

  within_host_bytes_per_s: float
  between_hosts_bytes_per_s: float = 25e9
  devices_per_host: int = 8
  ring_efficiency: float = 0.92
  launch_s: float = 5e-6
  within_host_hop_s: float = 1.5e-6
  between_hosts_hop_s: float = 31e-6

  def seconds(
    self, kind: str, size_bytes: float, groups: Sequence[Sequence[int]]
  ) -> float:
    """Estimates how long a collective takes on links that are idle else.

    Rings pass the bytes of all-gathers, reduce-scatters and broadcasts once,
    those of all-reduces twice; a small all-reduce goes up and down a tree. All
    network cards of a host that a group uses share what leaves the host.

    Args:
      kind: Its opcode, as "all-gather".
      size_bytes: Of the whole array: what a gather returns, what others read.
      groups: The devices that work together; all of one host if empty.
    """
    groups = groups or [range(self.devices_per_host)]
    return self.launch_s + max(
      self._group_seconds(kind, size_bytes, group) for group in groups
    )

  def _group_seconds(
    self, kind: str, size_bytes: float, group: Sequence[int]
  ) -> float:
    size = len(group)
    if size < 2 or (kind == "collective-permute" and group[0] == group[1]):
      return 0.0
    on_host: dict[int, int] = {}
    for device in group:
      host = device // self.devices_per_host
      on_host[host] = on_host.get(host, 0) + 1
    local = min(on_host.values())
    is_local = len(on_host) == 1
    within = self.within_host_bytes_per_s * self.ring_efficiency
    hop_s = self.within_host_hop_s if is_local else self.between_hosts_hop_s
    if kind == "collective-permute":
      rate = within if is_local else self.between_hosts_bytes_per_s
      return hop_s + size_bytes / rate
    part_bytes = size_bytes / size
    if kind.endswith("all-to-all"):
      outward = (size - local) * part_bytes / self.between_hosts_bytes_per_s
      return hop_s + max((local - 1) * part_bytes / within, outward)
    rate = within
    if not is_local:
      rate = min(rate, local * self.between_hosts_bytes_per_s)
    rounds = 2 if kind == "all-reduce" else 1
    ring_s = rounds * (size - 1) * (part_bytes / rate + hop_s)
    if kind != "all-reduce":
      return ring_s
    tree_s = 2 * (size_bytes / rate + math.ceil(math.log2(size)) * hop_s)
    return min(ring_s, tree_s)
