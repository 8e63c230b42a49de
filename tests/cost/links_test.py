"""Tests of the time that collectives take, against figures made by hand."""

import pytest

from jaxmem import cost, targets
from jaxmem.cost import Links

# A byte takes a second within a host and ten between hosts, whatever is sent
# a tenth to arrive, a collective a hundredth to launch.
_LINKS = Links(
  within_host_bytes_per_s=1.0,
  between_hosts_bytes_per_s=0.1,
  devices_per_host=4,
  ring_efficiency=1.0,
  launch_s=0.01,
  within_host_hop_s=0.1,
  between_hosts_hop_s=0.1,
)
_ONE_HOST = ((0, 1, 2, 3),)
_TWO_HOSTS = (tuple(range(8)),)


@pytest.mark.parametrize(
  ("kind", "size_bytes", "groups", "expected_s"),
  [
    # Three of four parts pass each link.
    ("all-gather", 80, _ONE_HOST, 3 * (20 + 0.1)),
    ("reduce-scatter", 80, _ONE_HOST, 3 * (20 + 0.1)),
    # Twice for an all-reduce.
    ("all-reduce", 80, _ONE_HOST, 6 * (20 + 0.1)),
    # A small one is faster up and down a tree of two levels.
    ("all-reduce", 0, _ONE_HOST, 4 * 0.1),
    # Each device sends three quarters of what it has.
    ("all-to-all", 80, _ONE_HOST, 3 * 20 + 0.1),
    ("collective-permute", 80, ((0, 1), (1, 2)), 80 + 0.1),
    # One that stays where it is takes nothing but its launch.
    ("collective-permute", 80, ((0, 0),), 0),
    # Without groups, the devices of a host.
    ("all-gather", 80, (), 3 * (20 + 0.1)),
    ("all-gather", 80, ((0,), (1,)), 0),
    # Four network cards of a host share what leaves it: 0.4 bytes a second.
    ("all-gather", 80, _TWO_HOSTS, 7 * (10 / 0.4 + 0.1)),
    # A pair of devices on two hosts has one card each.
    ("all-gather", 80, ((0, 4),), 40 / 0.1 + 0.1),
    # Four of eight parts leave the host, each over its device's own card.
    ("all-to-all", 80, _TWO_HOSTS, 4 * 10 / 0.1 + 0.1),
    ("collective-permute", 80, ((3, 4),), 80 / 0.1 + 0.1),
    # The slowest group counts.
    ("all-gather", 80, ((0, 1), (3, 4)), 40 / 0.1 + 0.1),
  ],
)
def test_seconds(kind, size_bytes, groups, expected_s):
  found = _LINKS.seconds(kind, size_bytes, groups)
  assert found == pytest.approx(0.01 + expected_s)


def test_rates_of_known_devices():
  # 18 lanes of 20 GB/s, by XLA's figures.
  for name in ("h100", "h200"):
    links = cost.for_target(name).links
    assert links is not None and links.within_host_bytes_per_s == 360e9
  assert targets.get("h200").nvlink_lanes == 18
  a100 = cost.for_target("a100-80").links
  assert a100 is not None and a100.within_host_bytes_per_s == 240e9
  assert cost.for_target("cpu").links is None


def test_devices_of_a_host():
  links = cost.device_for("h200", per_host=4).rates.links
  assert links is not None and links.devices_per_host == 4
