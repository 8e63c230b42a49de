"""Memory of the host for what was offloaded, with a limit.

TURNIP keeps one large block with an allocator of its own (appendix A). Here a
block is used where host and device memory are alike, that is on the CPU; on
GPUs the arrays live in jax's pinned host memory, which transfers at full speed,
and only the bytes are counted.

Places are handed out and taken back by the event loop, one thread; data is
moved by worker threads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

# `jax.devices()` returns these; jax exports no type for it that checkers
# accept.
Device = Any

_ALIGNMENT_BYTES = 64
_PINNED = "pinned_host"


class HostMemory(Protocol):
  """Where offloaded tensors are kept. Handles are opaque."""

  @property
  def used_bytes(self) -> int:
    """Bytes that are handed out."""
    ...

  @property
  def peak_bytes(self) -> int:
    """The most bytes that were ever handed out."""
    ...

  def allocate(self, size_bytes: int) -> Any | None:
    """Returns a place for a tensor, or None if there is no room now."""
    ...

  def free(self, handle: Any) -> None:
    """Takes a place back."""
    ...

  def store(self, handle: Any, array: jax.Array) -> None:
    """Copies an array to its place; returns when that is done."""
    ...

  def load(self, handle: Any, device: Device) -> jax.Array:
    """Returns a copy on a device, once it is there."""
    ...

  def read(self, handle: Any) -> Any:
    """Returns the tensor as an array that outlives its place."""
    ...


@dataclasses.dataclass(slots=True, eq=False)
class _Range:
  """A range of the block, and how to see it as an array."""

  begin: int
  end: int
  view: np.ndarray | None = None
  rewrap: Callable[[Any], Any] = lambda array: array


class HostBlock:
  """One block of ordinary memory, handed out first fit.

  Args:
    capacity_bytes: Its size. The system backs it by real memory where it is
      written.
  """

  def __init__(self, capacity_bytes: int):
    size_bytes = _aligned(capacity_bytes)
    # Arrays begin at multiples of the alignment, whatever numpy returns.
    raw = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT_BYTES
    self._block = raw[first : first + size_bytes]
    self._free = [(0, size_bytes)] if size_bytes else []
    self._used_bytes = 0
    self._peak_bytes = 0

  @property
  def used_bytes(self) -> int:
    """Bytes that are handed out, aligned."""
    return self._used_bytes

  @property
  def peak_bytes(self) -> int:
    """The most bytes that were ever handed out."""
    return self._peak_bytes

  def allocate(self, size_bytes: int) -> _Range | None:
    """Returns the lowest free range that is large enough, or None."""
    size_bytes = _aligned(size_bytes)
    if not size_bytes:
      return _Range(0, 0)
    for index, (begin, end) in enumerate(self._free):
      if end - begin < size_bytes:
        continue
      rest = [(begin + size_bytes, end)] if end - begin > size_bytes else []
      self._free[index : index + 1] = rest
      self._used_bytes += size_bytes
      self._peak_bytes = max(self._peak_bytes, self._used_bytes)
      return _Range(begin, begin + size_bytes)
    return None

  def free(self, handle: _Range) -> None:
    """Takes a range back and joins it with its free neighbours."""
    self._used_bytes -= handle.end - handle.begin
    ranges = sorted([*self._free, (handle.begin, handle.end)])
    self._free = []
    for begin, end in ranges:
      if begin == end:
        continue
      if self._free and self._free[-1][1] == begin:
        self._free[-1] = (self._free[-1][0], end)
      else:
        self._free.append((begin, end))

  def store(self, handle: _Range, array: jax.Array) -> None:
    """Copies an array into its range."""
    plain, handle.rewrap = _unwrap(array)
    source = np.asarray(plain)
    there = self._block[handle.begin : handle.begin + source.nbytes]
    view = there.view(source.dtype).reshape(source.shape)
    np.copyto(view, source)
    handle.view = view

  def load(self, handle: _Range, device: Device) -> jax.Array:
    """Returns a copy on a device, once it is there."""
    # The block is reused, and jax may keep the memory of what it is given.
    copied = jax.device_put(self._copy(handle), device)
    return jax.block_until_ready(handle.rewrap(copied))

  def read(self, handle: _Range) -> Any:
    """Returns a copy."""
    return handle.rewrap(self._copy(handle))

  def _copy(self, handle: _Range) -> np.ndarray:
    if handle.view is None:
      raise AssertionError("nothing was stored here")
    return np.array(handle.view)


@dataclasses.dataclass(slots=True, eq=False)
class _Pinned:
  """An array in pinned memory, once it is stored."""

  size_bytes: int
  array: jax.Array | None = None


class PinnedHost:
  """jax's pinned host memory, of which it counts the bytes.

  Args:
    capacity_bytes: How many may be handed out.
  """

  def __init__(self, capacity_bytes: int):
    self._capacity_bytes = capacity_bytes
    self._used_bytes = 0
    self._peak_bytes = 0

  @property
  def used_bytes(self) -> int:
    """Bytes that are handed out."""
    return self._used_bytes

  @property
  def peak_bytes(self) -> int:
    """The most bytes that were ever handed out."""
    return self._peak_bytes

  def allocate(self, size_bytes: int) -> _Pinned | None:
    """Returns a place, or None if the limit would be exceeded."""
    if self._used_bytes + size_bytes > self._capacity_bytes:
      return None
    self._used_bytes += size_bytes
    self._peak_bytes = max(self._peak_bytes, self._used_bytes)
    return _Pinned(size_bytes)

  def free(self, handle: _Pinned) -> None:
    """Takes a place back and frees its memory."""
    self._used_bytes -= handle.size_bytes
    handle.array = None

  def store(self, handle: _Pinned, array: jax.Array) -> None:
    """Copies an array to pinned memory of the host of its device."""
    (device,) = array.devices()
    handle.array = jax.block_until_ready(
      jax.device_put(array, pinned_sharding(device))
    )

  def load(self, handle: _Pinned, device: Device) -> jax.Array:
    """Returns a copy on a device, once it is there."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.block_until_ready(jax.device_put(self.read(handle), sharding))

  def read(self, handle: _Pinned) -> jax.Array:
    """Returns the array in pinned memory."""
    if handle.array is None:
      raise AssertionError("nothing was stored here")
    return handle.array


def for_device(device: Device, capacity_bytes: int) -> HostMemory:
  """Returns the kind of host memory that suits a device."""
  if device.platform == "cpu":
    return HostBlock(capacity_bytes)
  return PinnedHost(capacity_bytes)


def pinned_sharding(device: Device) -> jax.sharding.SingleDeviceSharding:
  """Returns the host memory from which a device copies at full speed."""
  return jax.sharding.SingleDeviceSharding(device, memory_kind=_PINNED)


def stage(array: Any, device: Device) -> Any:
  """Returns an input where a device can fetch it fast, on the host."""
  if device.platform == "cpu":
    return array
  return jax.device_put(array, pinned_sharding(device))


def fetch(array: Any, device: Device) -> jax.Array:
  """Returns a copy of an input on a device, never the input itself."""
  if isinstance(array, jax.Array) and _is_there(array, device):
    return jax.block_until_ready(jax.numpy.array(array, copy=True))
  if device.platform == "cpu":
    plain, rewrap = _unwrap(array)
    copied = jax.device_put(np.array(plain), device)
    return jax.block_until_ready(rewrap(copied))
  sharding = jax.sharding.SingleDeviceSharding(device)
  return jax.block_until_ready(jax.device_put(array, sharding))


def _is_there(array: jax.Array, device: Device) -> bool:
  kind = array.sharding.memory_kind
  return array.devices() == {device} and kind in (
    None,
    device.default_memory().kind,
  )


def _unwrap(array: Any) -> tuple[Any, Callable[[Any], Any]]:
  """Returns an array that numpy can hold, and how to undo that.

  PRNG keys are held as their words.
  """
  dtype = jax.numpy.result_type(array)
  if not jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
    return array, lambda same: same
  implementation = jax.random.key_impl(array)
  return jax.random.key_data(array), functools.partial(
    jax.random.wrap_key_data, impl=implementation
  )


def _aligned(size_bytes: int) -> int:
  return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
