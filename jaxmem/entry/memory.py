"""How many bytes a device really offers to a program.

jax takes a share of a GPU's memory for its pool, 75 % unless the environment
says otherwise; shares such as "80%" are shares of that pool. The pool of a GPU
that is described and not here is the same share of its memory. On a CPU the
pool is the machine's memory, or what the process's control group leaves of it.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, Any

import jax

from jaxmem import targets, units
from jaxmem.compiler import arrays_in

if TYPE_CHECKING:
  from jaxmem.report import LimitShare

_CGROUP = pathlib.Path("/sys/fs/cgroup")
_MEMINFO = pathlib.Path("/proc/meminfo")


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryLimit:
  """A limit as the user wrote it: bytes, "24GiB", a share, or "auto".

  Attributes:
    written: The limit as it was given.
  """

  written: units.ByteQuantity

  def in_bytes(self, devices: list[Any], argument_bytes: int) -> int:
    """Returns the limit for a program on given devices.

    Args:
      devices: The devices that it runs on, each with its share.
      argument_bytes: Of the program's arguments on one device; they are in use
        already when it runs.

    Raises:
      ValueError: If the devices do not say how much memory they have.
    """
    if self.written == "auto":
      return min(free_bytes(device, argument_bytes) for device in devices)
    if not self.is_share:
      return units.parse_bytes(self.written)
    total = min(pool_bytes(device) for device in devices)
    return units.parse_bytes(self.written, total_bytes=total)

  @property
  def is_share(self) -> bool:
    """Whether it depends on the device."""
    if isinstance(self.written, str):
      return "%" in self.written
    return isinstance(self.written, float) and 0 < self.written <= 1

  @classmethod
  def of(
    cls, written: units.ByteQuantity, *, name: str = "memory_limit"
  ) -> MemoryLimit:
    """Reads a limit; raises ValueError on a malformed one."""
    units.check_limit(written, name=name)
    return cls(written)

  def planned_for(
    self, target: targets.Target | None, arguments: Any = ()
  ) -> tuple[int, LimitShare | None]:
    """Returns the limit of a plan in bytes, and what that is a share of.

    Args:
      target: The device planned for, of whose memory nothing is in use; None
        for the one that jax would use.
      arguments: The step's; arrays among them are in use already.

    Raises:
      ValueError: If the device does not say how much memory it has.
    """
    if self.written != "auto" and not self.is_share:
      return units.parse_bytes(self.written), None
    device_bytes = None if target is None else target.memory_bytes
    if device_bytes is not None:
      pool = int(targets.pool_fraction() * device_bytes)
      written = "100%" if self.written == "auto" else self.written
      limit_bytes = units.parse_bytes(written, total_bytes=pool)
    else:
      devices = jax.devices(None if target is None else target.platform)[:1]
      pool = pool_bytes(devices[0])
      given = [a for a in arrays_in(arguments) if isinstance(a, jax.Array)]
      limit_bytes = self.in_bytes(devices, sum(a.nbytes for a in given))
    # Not loaded where nothing is planned.
    from jaxmem.report import LimitShare

    share = LimitShare(
      written=str(self.written), pool_bytes=pool, device_bytes=device_bytes
    )
    return limit_bytes, share


def pool_bytes(device: Any) -> int:
  """Returns the bytes of the pool that programs on a device take theirs from.

  Raises:
    ValueError: If the device does not say.
  """
  stats = device.memory_stats() or {}
  if "bytes_limit" in stats:
    return int(stats["bytes_limit"])
  if device.platform == "cpu":
    return _machine_bytes()
  raise ValueError(
    f"{device} does not say how much memory it has; give the limit in bytes."
  )


def free_bytes(device: Any, argument_bytes: int) -> int:
  """Returns the bytes of a device's pool that a program may take.

  Args:
    device: The device.
    argument_bytes: Of the program's own arguments, which are in use already.
  """
  stats = device.memory_stats() or {}
  if "bytes_limit" in stats:
    others = max(0, int(stats.get("bytes_in_use", 0)) - argument_bytes)
    return int(stats["bytes_limit"]) - others
  return min(_available_bytes() + argument_bytes, pool_bytes(device))


def _machine_bytes() -> int:
  """Bytes of memory of the machine, or of the control group if that is less."""
  total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  limit = _cgroup_number("memory.max")
  return total if limit is None else min(total, limit)


def _available_bytes() -> int:
  """Bytes that the machine can give without taking them from others."""
  available = _machine_bytes()
  try:
    text = _MEMINFO.read_text(encoding="ascii")
  except OSError:
    text = ""
  for line in text.splitlines():
    if line.startswith("MemAvailable:"):
      available = min(available, int(line.split()[1]) * 1024)
  limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
  if limit is not None and used is not None:
    available = min(available, max(0, limit - used))
  return available


def _cgroup_number(name: str) -> int | None:
  try:
    text = (_CGROUP / name).read_text(encoding="ascii").strip()
    return int(text)
  except (OSError, ValueError):
    return None
