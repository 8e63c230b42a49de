"""The devices of a program over several of them, here or only described."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from jaxmem.targets import cuda_plugin
from jaxmem.targets.description import Target, TargetLike, get

# Targets whose devices were handed out, by the kind that the devices name.
_targets: dict[str, Target] = {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
  """What a program runs on.

  Attributes:
    kind: Of the devices, as jax names it: "NVIDIA H200 141GB HBM3e".
    platform: As jax names it: "cpu" or "gpu".
    num_devices: How many there are.
    per_host: How many share a host.
    target: Their description, if `devices` made them.
  """

  kind: str
  platform: str
  num_devices: int
  per_host: int
  target: Target | None = None

  @classmethod
  def of(cls, devices: Iterable[Any]) -> DeviceGroup | None:
    """Describes some of jax's devices; None if there are none.

    Raises:
      ValueError: If they are of several kinds.
    """
    devices = list(devices)
    if not devices:
      return None
    kinds = sorted({d.device_kind for d in devices})
    if len(kinds) > 1:
      raise ValueError(
        f"a step is planned for devices of one kind, got {' and '.join(kinds)};"
        " make the mesh of jaxmem.devices(...) or of jax.devices() alone."
      )
    on_host = collections.Counter(d.process_index for d in devices)
    return cls(
      kind=kinds[0],
      platform=devices[0].platform,
      num_devices=len(devices),
      per_host=max(on_host.values()),
      target=_targets.get(kinds[0]),
    )

  @property
  def name(self) -> str:
    """What reports call it: "8 x h200"."""
    name = self.target.name if self.target else self.kind
    return f"{self.num_devices} x {name}" if self.num_devices > 1 else name


def devices(
  target: TargetLike,
  count: int | None = None,
  *,
  hosts: int = 1,
  per_host: int = 8,
) -> list[Any]:
  """Returns described devices, to make a mesh of: none of them is here.

  `jax.make_mesh(..., devices=jaxmem.devices("h200", 8))` is a mesh of any axes;
  steps whose arguments are `jax.ShapeDtypeStruct`s with shardings on it can be
  compiled and planned, but not run.

  Args:
    target: A described GPU: "h200", or what `jaxmem.plan` takes.
    count: How many, on one host; instead of `hosts` and `per_host`.
    hosts: How many hosts.
    per_host: How many devices each of them has.

  Raises:
    ValueError: If the target is no described GPU, or there would be no device.
    RuntimeError: If JAX's CUDA plugin is missing or did not load.
  """
  if target is None:
    raise ValueError(
      "devices need a target, a described GPU such as 'h200', got None."
    )
  described = get(target)
  if count is not None:
    if hosts != 1:
      raise ValueError(
        f"count is of one host, got count={count} with hosts={hosts}; write"
        " per_host for the devices of each host."
      )
    per_host = count
  for name, number in (("hosts", hosts), ("devices per host", per_host)):
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
      raise ValueError(
        f"the number of {name} must be at least 1, got {number!r}."
      )
  return list(_described(described, hosts, per_host))


@functools.cache
def _described(target: Target, hosts: int, per_host: int) -> tuple[Any, ...]:
  target.check_described()
  shape = f"1x{hosts}x{per_host}"
  found = tuple(cuda_plugin.topology(target.config_text, shape).devices)
  _targets[found[0].device_kind] = target
  return found


def planned_on(
  target: TargetLike, arguments: Any
) -> tuple[Target | None, DeviceGroup | None]:
  """Returns what a step is planned for: one described device, or many.

  Args:
    target: What the user named, or None.
    arguments: The step's, a tree of arrays and shapes.

  Returns:
    The target, None if the arguments say what they are on; and the devices that
    they are spread over, if they are over several.

  Raises:
    ValueError: If the two differ, or the target is unknown.
  """
  device = None if target is None else get(target)
  group = _of_arguments(arguments)
  if device is None or group is None or group.target is None:
    return device, group
  if group.target != device:
    raise ValueError(
      f"target {device.name!r} is not what the arguments are spread over,"
      f" {group.name}; leave target out, or make the mesh of"
      f" jaxmem.devices({device.name!r}, {group.num_devices})."
    )
  return None, group


def _of_arguments(arguments: Any) -> DeviceGroup | None:
  """Returns the devices that arguments are spread over, if they are over many.

  Args:
    arguments: A tree of arrays and shapes.

  Raises:
    ValueError: If they are on different groups, or on devices of two kinds.
  """
  import jax

  groups: dict[frozenset[Any], None] = {}
  for leaf in jax.tree.leaves(arguments):
    sharding = getattr(leaf, "sharding", None)
    found = getattr(sharding, "device_set", None)
    if found is not None and len(found) > 1:
      groups[frozenset(found)] = None
  if len(groups) > 1:
    sizes = " and ".join(str(len(g)) for g in groups)
    raise ValueError(
      f"arguments are spread over different groups of devices, of {sizes}; a"
      " step runs on one mesh."
    )
  return DeviceGroup.of(next(iter(groups), ()))
