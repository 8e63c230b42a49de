"""Steps traced and lowered for a device that need not be here."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxmem.targets import cuda_plugin
from jaxmem.targets.description import Platform, TargetLike, get

if TYPE_CHECKING:
  import jax

_planned_platform: contextvars.ContextVar[Platform | None] = (
  contextvars.ContextVar("planned_platform", default=None)
)


def is_available(target: TargetLike) -> bool:
  """Returns whether this Python can compile for `target`.

  Only looks for the CUDA plugin; does not load it.
  """
  return get(target).platform == "cpu" or cuda_plugin.find_plugin() is not None


def compile_options(target: TargetLike) -> dict[str, Any]:
  """Returns the `compiler_options` a compile for `target` needs.

  Autotuning runs kernels on the device, so it is off where there is none. The
  scratch memory of cuDNN can therefore differ from that on a real card.
  """
  if get(target).platform == "cuda":
    return {"xla_gpu_autotune_level": 0}
  return {}


def trace(
  jitted: Any,
  args: Sequence[Any] = (),
  kwargs: Mapping[str, Any] | None = None,
  target: TargetLike = None,
) -> jax.stages.Traced:
  """Returns `jitted` traced for one device of `target`.

  Args:
    jitted: What `jax.jit` returned.
    args: Arguments: arrays or ShapeDtypeStructs are placed on the target, as
      shapes only; everything else (static arguments, Python and numpy scalars)
      is passed on untouched.
    kwargs: Keyword arguments, treated alike.
    target: What `get` takes; None for the device that jax would use, where
      arguments stay as they are.

  Raises:
    ValueError: If the target is unknown or unreadable, or an argument is spread
      over more than one device while the target describes one.
    RuntimeError: If the CUDA plugin is missing or did not load.
  """
  import jax

  kwargs = dict(kwargs or {})
  device = _described_device(target)
  if device is not None:
    sharding = jax.sharding.SingleDeviceSharding(device)
    place = functools.partial(_place, sharding=sharding, name=get(target).name)
    args = jax.tree.map(place, tuple(args))
    kwargs = {name: jax.tree.map(place, a) for name, a in kwargs.items()}
  with planned_for(target):
    return jitted.trace(*args, **kwargs)


def lower_traced(
  traced: jax.stages.Traced, target: TargetLike
) -> jax.stages.Lowered:
  """Returns what `trace` returned, lowered for its target."""
  import jax

  device = _described_device(target)
  if device is None:
    return traced.lower()
  # A step without array arguments has no sharding to go by. The context is
  # entered after tracing, so that nothing runs eagerly on a described device.
  with jax.default_device(device):
    return traced.lower()


def lower(
  jitted: Any,
  args: Sequence[Any] = (),
  kwargs: Mapping[str, Any] | None = None,
  target: TargetLike = None,
) -> jax.stages.Lowered:
  """Returns `jitted` lowered for one device of `target`; see `trace`."""
  return lower_traced(trace(jitted, args, kwargs, target), target)


def current_platform() -> str:
  """Returns "cpu" or "cuda": what a step that is traced now will run on."""
  import jax

  planned = _planned_platform.get() or jax.default_backend()
  return "cpu" if planned == "cpu" else "cuda"


@contextlib.contextmanager
def planned_for(target: TargetLike) -> Iterator[None]:
  """Lets steps that are traced inside see the platform of a target."""
  before = _planned_platform.set(
    None if target is None else get(target).platform
  )
  try:
    yield
  finally:
    _planned_platform.reset(before)


def _described_device(target: TargetLike) -> Any:
  """Returns the device of a target; None if jax uses it by default."""
  import jax

  if target is None:
    return None
  target = get(target)
  if target.platform != "cpu":
    return target.topology().devices[0]
  return None if jax.default_backend() == "cpu" else jax.devices("cpu")[0]


def _place(leaf: Any, sharding: Any, name: str) -> Any:
  import jax
  import numpy as np

  if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray):
    return leaf
  own = getattr(leaf, "sharding", None)
  if own is not None and own.num_devices > 1:
    raise ValueError(
      f"target {name!r} describes one device, got an argument of shape "
      f"{leaf.shape} spread over {own.num_devices} devices; pass the step of "
      "one device, or plan without a target on the devices themselves."
    )
  return jax.ShapeDtypeStruct(
    leaf.shape,
    leaf.dtype,
    sharding=sharding,
    weak_type=getattr(leaf, "weak_type", False),
  )
