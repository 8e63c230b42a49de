"""Device descriptions, so that a step can be compiled without its device.

A `Target` names the device a plan is for. For a GPU it holds the text of XLA's
`GpuTargetConfigProto`; XLA's GPU compiler runs from that text alone, on any
host with the CUDA plugin of JAX and no GPU, and reports the memory of the
program it would run (see `jax.experimental.topologies`).

For a GPU that is not listed here, compile anything on it once with
`XLA_FLAGS=--xla_dump_to=DIR`: XLA writes the description to
`DIR/*.gpu_target_config.pbtxt`, a path that `get` takes.

Importing this module neither imports jax nor initialises its backends.
"""

import contextlib
import contextvars
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.resources
import importlib.util
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
  import jax
  from jax.experimental import topologies

Platform = Literal["cpu", "cuda"]
FlopsKind = Literal["fp32", "tf32", "fp16", "bf16"]

_planned_platform: contextvars.ContextVar[Platform | None] = (
  contextvars.ContextVar("planned_platform", default=None)
)

# Names a user may write, besides the name of each file in data/targets. Plain
# "a100" is left out: 40 and 80 GB cards share it.
_ALIASES = {
  "h200-sxm": "h200",
  "h200-141gb": "h200",
  "h100-sxm": "h100",
  "h100-80": "h100",
  "h100-80gb": "h100",
  "a100-80gb": "a100-80",
  "a100-sxm-80": "a100-80",
  "a100-sxm4-80gb": "a100-80",
}
_CUDA_PLUGINS = ("xla_cuda13", "xla_cuda12")
_TEXT_SUFFIXES = (".txtpb", ".pbtxt", ".textproto")
_SKIP_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"

# The unit and the key (an XLA PrimitiveType) of each rate in the description.
_RATE_KEYS: Mapping[FlopsKind, tuple[str, int]] = {
  "fp32": ("scalar_unit_description", 11),
  "tf32": ("matrix_unit_description", 11),
  "fp16": ("matrix_unit_description", 10),
  "bf16": ("matrix_unit_description", 16),
}

# Fused multiply-adds per core and clock of the matrix units of compute
# capability 8.0, whose description has no table of rates. From the data sheet:
# 156 Tflops in tf32 and 312 in bf16, over 108 cores at 1.41 GHz.
_FMAS_PER_CORE_8_0: Mapping[FlopsKind, int] = {
  "tf32": 512,
  "fp16": 1024,
  "bf16": 1024,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
  """A device to plan for.

  Attributes:
    name: What reports call it, e.g. "h200".
    platform: "cuda" for a described GPU, "cpu" for this machine's CPU.
    config_text: A `GpuTargetConfigProto` in text form; empty for the CPU.
    memory_bytes: The memory of the device; None if unknown.
    memory_bandwidth_bytes_per_s: To and from that memory; None if unknown.
    host_bandwidth_bytes_per_s: To and from the host, one direction; None if
      unknown.
  """

  name: str
  platform: Platform
  config_text: str = dataclasses.field(default="", repr=False)
  memory_bytes: int | None = None
  memory_bandwidth_bytes_per_s: float | None = None
  host_bandwidth_bytes_per_s: float | None = None

  def flops_per_s(self, kind: FlopsKind = "tf32") -> float | None:
    """Returns the peak dense rate the description gives, in flops per second.

    Args:
      kind: "fp32" is the rate of the scalar units, the others those of the
        matrix units.

    Returns:
      Multiplications and additions per second; None if not described.

    Raises:
      ValueError: If `kind` is unknown.
    """
    if kind not in _RATE_KEYS:
      raise ValueError(
        f"kind must be one of {sorted(_RATE_KEYS)}, got {kind!r}."
      )
    return _flops_per_s(self.config_text, kind)

  def topology(self) -> "topologies.TopologyDescription":
    """Returns the topology of one such device, built once per description.

    Raises:
      ValueError: If the target is the CPU, or XLA cannot read `config_text`.
      RuntimeError: If JAX's CUDA plugin is missing or did not load.
    """
    if self.platform != "cuda":
      raise ValueError(
        f"a topology needs a described GPU, got target {self.name!r}; use "
        f"e.g. targets.get('h200')."
      )
    return _topology(self.config_text)


CPU = Target(name="cpu", platform="cpu")


def known_names() -> tuple[str, ...]:
  """Returns the names that `get` knows, sorted."""
  files = importlib.resources.files("jaxmem").joinpath("data", "targets")
  names = [
    file.name.removesuffix(".txtpb")
    for file in files.iterdir()
    if file.name.endswith(".txtpb")
  ]
  return ("cpu", *sorted(names))


def get(target: "Target | str | os.PathLike[str] | None" = None) -> Target:
  """Returns the target that a user named.

  Args:
    target: None or "cpu" for this machine's CPU; a known name in any case
      ("h200", "H100", "a100-80"); a path to a `GpuTargetConfigProto` in text
      form; or that text itself. A `Target` is returned as it is.

  Raises:
    ValueError: If the name is unknown, the file is missing, or the text does
      not describe an NVIDIA GPU.
  """
  if isinstance(target, Target):
    return target
  if target is None:
    return CPU
  if isinstance(target, os.PathLike):
    return _from_file(pathlib.Path(target))
  if not isinstance(target, str):
    raise ValueError(
      f"target must be a name, a path or a description, got {target!r}; use "
      f"one of {', '.join(known_names())}."
    )
  if "{" in target:
    return _from_text(target, name="")
  name = re.sub(r"[\s_]+", "-", target.strip().lower()).removeprefix("nvidia-")
  name = _ALIASES.get(name, name)
  if name == "cpu":
    return CPU
  if name in known_names():
    return _packaged(name)
  if target.endswith(_TEXT_SUFFIXES) or pathlib.Path(target).is_file():
    return _from_file(pathlib.Path(target))
  raise ValueError(
    f"target must be one of {', '.join(known_names())}, got {target!r}; for "
    "another GPU give the path of its GpuTargetConfigProto text, which XLA "
    "writes to DIR/*.gpu_target_config.pbtxt when a program is compiled there "
    "with XLA_FLAGS=--xla_dump_to=DIR."
  )


def is_available(target: "Target | str | os.PathLike[str] | None") -> bool:
  """Returns whether this Python can compile for `target`.

  Only looks for the CUDA plugin; does not load it.
  """
  return get(target).platform == "cpu" or _plugin_name() is not None


def compile_options(
  target: "Target | str | os.PathLike[str] | None",
) -> dict[str, Any]:
  """Returns the `compiler_options` a compile for `target` needs.

  Autotuning runs kernels on the device, so it is off where there is none. The
  scratch memory of cuDNN can therefore differ from that on a real card.
  """
  if get(target).platform == "cuda":
    return {"xla_gpu_autotune_level": 0}
  return {}


def lower(
  jitted: Any,
  args: Sequence[Any] = (),
  kwargs: Mapping[str, Any] | None = None,
  target: "Target | str | os.PathLike[str] | None" = None,
) -> "jax.stages.Lowered":
  """Returns `jitted` lowered for one device of `target`.

  Args:
    jitted: What `jax.jit` returned.
    args: Arguments, see `trace`.
    kwargs: Keyword arguments, treated alike.
    target: See `get`.

  Returns:
    The lowered step; compile it with `compile_options(target)`.

  Raises:
    ValueError: See `trace`.
    RuntimeError: See `trace`.
  """
  target = get(target)
  return lower_traced(trace(jitted, args, kwargs, target), target)


def trace(
  jitted: Any,
  args: Sequence[Any] = (),
  kwargs: Mapping[str, Any] | None = None,
  target: "Target | str | os.PathLike[str] | None" = None,
) -> "jax.stages.Traced":
  """Returns `jitted` traced for one device of `target`.

  Args:
    jitted: What `jax.jit` returned.
    args: Arguments: arrays or ShapeDtypeStructs are placed on the target, as
      shapes only; everything else (static arguments, Python and numpy scalars)
      is passed on untouched.
    kwargs: Keyword arguments, treated alike.
    target: See `get`.

  Raises:
    ValueError: If the target is unknown or unreadable, or an argument is spread
      over more than one device while the target describes one.
    RuntimeError: If the CUDA plugin is missing or did not load.
  """
  import jax

  target = get(target)
  kwargs = dict(kwargs or {})
  device = _described_device(target)
  if device is not None:
    sharding = jax.sharding.SingleDeviceSharding(device)
    place = functools.partial(_place, sharding=sharding, name=target.name)
    args = jax.tree.map(place, tuple(args))
    kwargs = {name: jax.tree.map(place, a) for name, a in kwargs.items()}
  with _planned_for(target):
    return jitted.trace(*args, **kwargs)


def lower_traced(
  traced: "jax.stages.Traced", target: "Target"
) -> "jax.stages.Lowered":
  """Returns what `trace` returned, lowered for its target."""
  import jax

  device = _described_device(target)
  if device is None:
    return traced.lower()
  # A step without array arguments has no sharding to go by. The context is
  # entered after tracing, so that nothing runs eagerly on a described device.
  with jax.default_device(device):
    return traced.lower()


def current_platform() -> str:
  """Returns "cpu" or "cuda": what a step that is traced now will run on."""
  import jax

  planned = _planned_platform.get() or jax.default_backend()
  return "cpu" if planned == "cpu" else "cuda"


@contextlib.contextmanager
def _planned_for(target: "Target") -> Iterator[None]:
  before = _planned_platform.set(target.platform)
  try:
    yield
  finally:
    _planned_platform.reset(before)


def _described_device(target: "Target") -> Any:
  """Returns the device of a target; None if jax uses it by default."""
  import jax

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


def _from_file(path: pathlib.Path) -> Target:
  try:
    text = path.read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(
      f"target must be a readable GpuTargetConfigProto text, got "
      f"{str(path)!r}: {error}; use one of {', '.join(known_names())}, or save "
      "the description with XLA_FLAGS=--xla_dump_to=DIR on the GPU."
    ) from error
  return _from_text(text, name=path.stem)


@functools.cache
def _packaged(name: str) -> Target:
  files = importlib.resources.files("jaxmem").joinpath("data", "targets")
  text = files.joinpath(f"{name}.txtpb").read_text(encoding="utf-8")
  return _from_text(text, name=name)


def _from_text(text: str, name: str) -> Target:
  memory_bytes = _number(text, "device_memory_size")
  platform = _string(text, "platform_name")
  if "gpu_device_info" not in text or not memory_bytes or platform != "CUDA":
    raise ValueError(
      "target must be a GpuTargetConfigProto text with gpu_device_info, "
      'device_memory_size and platform_name: "CUDA", got '
      f"{text[:60]!r}...; use one of {', '.join(known_names())}, or save the "
      "description with XLA_FLAGS=--xla_dump_to=DIR on the GPU."
    )
  return Target(
    name=name or _string(text, "device_description_str") or "custom",
    platform="cuda",
    config_text=text,
    memory_bytes=int(memory_bytes),
    memory_bandwidth_bytes_per_s=_number(text, "memory_bandwidth"),
    host_bandwidth_bytes_per_s=_number(text, "pcie_bandwidth"),
  )


def _number(text: str, field: str) -> float | None:
  match = re.search(rf"\b{field}:\s*([-+.0-9eE]+)", text)
  return float(match[1]) if match else None


def _string(text: str, field: str) -> str | None:
  match = re.search(rf'\b{field}:\s*"([^"]*)"', text)
  return match[1] if match else None


def _flops_per_s(text: str, kind: FlopsKind) -> float | None:
  num_cores = _number(text, "core_count")
  clock_ghz = _number(text, "clock_rate_ghz")
  if num_cores is None or clock_ghz is None:
    return None
  unit, key = _RATE_KEYS[kind]
  rates = text.partition(unit)[2].partition("_unit_description")[0]
  rate = re.search(rf"\bkey:\s*{key}\b(.*)", rates, re.DOTALL)
  if rate is not None:
    clock_ghz = _number(rate[1], "clock_rate_ghz") or clock_ghz
    units_per_core = _number(rate[1], "units_per_core") or 0
    fmas_per_core = units_per_core * (_number(rate[1], "ops_per_clock") or 0)
  elif kind == "fp32":
    fmas_per_core = _number(text, "fpus_per_core") or 0
  elif re.search(r"cuda_compute_capability\s*{\s*major: 8\s+[^m]", text):
    fmas_per_core = _FMAS_PER_CORE_8_0[kind]
  else:
    fmas_per_core = 0
  return 2e9 * num_cores * fmas_per_core * clock_ghz or None


def _plugin_name() -> str | None:
  """Returns the module of the installed CUDA plugin, None if there is none."""
  for name in _CUDA_PLUGINS:
    try:
      if importlib.util.find_spec(f"jax_plugins.{name}") is not None:
        return f"jax_plugins.{name}"
    except ModuleNotFoundError:
      return None
  return None


def _pip_command() -> str:
  try:
    version = f"=={importlib.metadata.version('jaxlib')}"
  except importlib.metadata.PackageNotFoundError:
    version = ""
  return f"pip install 'jax-cuda13-plugin{version}'"


@functools.cache
def _topology(config_text: str) -> "topologies.TopologyDescription":
  import jax
  from jax.experimental import topologies

  plugin = _plugin_name()
  if plugin is None:
    raise RuntimeError(
      "compiling for a GPU target needs JAX's CUDA plugin, which is not "
      f"installed; run: {_pip_command()} (no GPU and no CUDA is needed)."
    )
  build = functools.partial(
    topologies.get_topology_desc,
    platform="cuda",
    target_config=config_text,
    topology="1x1x1",
  )
  with _without_cuda_library_check():
    try:
      try:
        return build()
      except NotImplementedError:
        # jax already tried the plugin, with the check, and gave it up. It may
        # be registered late; the backends that run are not touched.
        importlib.import_module(plugin).initialize()
        return build()
    except jax.errors.JaxRuntimeError as error:
      if "Failed to parse" not in str(error):
        raise _load_error(plugin, error) from error
      raise ValueError(
        "target must be a GpuTargetConfigProto in text form, got "
        f"{config_text[:60]!r}...; XLA logged which line it could not read."
      ) from error
    except Exception as error:
      raise _load_error(plugin, error) from error


def _load_error(plugin: str, error: Exception) -> RuntimeError:
  return RuntimeError(
    f"JAX's CUDA plugin ({plugin}) did not load: {error}. It must have the "
    f"version of jaxlib; run: {_pip_command()}. If it has, set "
    f"{_SKIP_CHECK}=1 and JAX_PLATFORMS=cpu in the environment, before "
    "anything uses jax, and start again."
  )


@contextlib.contextmanager
def _without_cuda_library_check() -> Iterator[None]:
  """Lets the plugin register without NVIDIA's libraries.

  They run programs; compiling one does not need them. The plugin reads the
  variable when it registers, so it is set only that long: a program that does
  use a GPU keeps its check.
  """
  before = os.environ.get(_SKIP_CHECK)
  os.environ[_SKIP_CHECK] = before or "1"
  try:
    yield
  finally:
    if before is None:
      del os.environ[_SKIP_CHECK]
    else:
      os.environ[_SKIP_CHECK] = before
