"""What a device is: its name, and the description that XLA compiles for."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import math
import os
import pathlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from jaxmem.targets import cuda_plugin

if TYPE_CHECKING:
  from jax.experimental import topologies

Platform = Literal["cpu", "cuda"]
FlopsKind = Literal["fp32", "tf32", "fp16", "bf16"]

# What XLA divides by, or loops up to.
_NEEDED = (
  *("threads_per_block_limit", "threads_per_warp", "threads_per_core_limit"),
  *("shared_memory_per_block", "shared_memory_per_core", "core_count"),
  *("fpus_per_core", "block_dim_limit_x", "block_dim_limit_y"),
  *("block_dim_limit_z", "memory_bandwidth", "l2_cache_size"),
  *("clock_rate_ghz", "registers_per_core_limit"),
  "registers_per_block_limit",
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
# Where jax reads its pool's fraction of a GPU's memory, and what it is else.
_FRACTION_VARIABLES = (
  "XLA_CLIENT_MEM_FRACTION",
  "XLA_PYTHON_CLIENT_MEM_FRACTION",
)
_DEFAULT_FRACTION = 0.75
_TEXT_SUFFIXES = (".txtpb", ".pbtxt", ".textproto")
# Characters of a wrong name that its error shows.
_MAX_SHOWN = 60

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


def pool_fraction() -> float:
  """Returns the fraction of a GPU's memory that jax takes for its pool.

  As `jaxlib.xla_client.generate_pjrt_gpu_plugin_options` reads it.

  Raises:
    ValueError: If the environment says something else than a fraction.
  """
  for name in _FRACTION_VARIABLES:
    written = os.environ.get(name)
    if not written:
      continue
    try:
      fraction = float(written)
    except ValueError:
      fraction = 0.0
    if not 0.0 < fraction <= 1.0:
      raise ValueError(
        f"{name} must be a fraction in (0, 1], got {written!r}; a limit that"
        " is a share is one of jax's pool, which this is of the GPU's memory."
      )
    return fraction
  return _DEFAULT_FRACTION


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

  @property
  def nvlink_lanes(self) -> int | None:
    """The lanes of NVLink that the description gives; None if it has none."""
    lanes = _number(self.config_text, "active_links")
    return int(lanes) if lanes else None

  def topology(self) -> topologies.TopologyDescription:
    """Returns the topology of one such device, built once per description.

    Raises:
      ValueError: If the target is the CPU, or XLA cannot read `config_text`,
        or it lacks a figure that XLA needs.
      RuntimeError: If JAX's CUDA plugin is missing or did not load.
    """
    self.check_described()
    return cuda_plugin.topology(self.config_text)

  def check_described(self) -> None:
    """Checks that XLA can compile for the description.

    Raises:
      ValueError: As `topology`.
    """
    if self.platform != "cuda":
      raise ValueError(
        f"a topology needs a described GPU, got target {self.name!r}; use "
        f"e.g. targets.get('h200')."
      )
    _check_complete(self.config_text)


# A target, or what a user writes for one; see `get`.
TargetLike = Target | str | os.PathLike[str] | None

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


def get(target: TargetLike = None) -> Target:
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
  if target.endswith(_TEXT_SUFFIXES) or _is_file(target):
    return _from_file(pathlib.Path(target))
  shown = target if len(target) <= _MAX_SHOWN else f"{target[:_MAX_SHOWN]}..."
  raise ValueError(
    f"target must be one of {', '.join(known_names())}, got {shown!r}; for "
    "another GPU give the path of its GpuTargetConfigProto text, which XLA "
    "writes to DIR/*.gpu_target_config.pbtxt when a program is compiled there "
    "with XLA_FLAGS=--xla_dump_to=DIR."
  )


def _is_file(path: str) -> bool:
  try:
    return pathlib.Path(path).is_file()
  except OSError:  # Such as a name that is longer than any file's.
    return False


def _from_file(path: pathlib.Path) -> Target:
  try:
    text = path.read_text(encoding="utf-8")
  except (OSError, ValueError) as error:  # No such path, or no text.
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
  memory_bytes = int(_number(text, "device_memory_size") or 0)
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
    memory_bytes=memory_bytes,
    memory_bandwidth_bytes_per_s=_number(text, "memory_bandwidth"),
    host_bandwidth_bytes_per_s=_number(text, "pcie_bandwidth"),
  )


def _check_complete(text: str) -> None:
  """Checks a description for what XLA divides by when it compiles.

  XLA does not check it, and an incomplete one ends the process.

  Raises:
    ValueError: If a figure is missing or not positive.
  """
  missing = [field for field in _NEEDED if not (_number(text, field) or 0) > 0]
  if missing:
    raise ValueError(
      "target must be a GpuTargetConfigProto text with positive figures; it has"
      f" no {', '.join(missing)}. Save the whole description with"
      " XLA_FLAGS=--xla_dump_to=DIR on the GPU."
    )


def _number(text: str, field: str) -> float | None:
  """Returns a figure of a description; None if there is no such number."""
  match = re.search(rf"\b{field}:\s*([-+.0-9eE]+)", text)
  try:
    number = float(match[1]) if match else -1.0
  except ValueError:
    return None
  return number if 0 <= number < math.inf else None


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
