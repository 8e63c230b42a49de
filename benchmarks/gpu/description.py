"""Descriptions of devices as XLA writes them, with measured rates put in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jaxmem import cost, targets

# The block of a description and XLA's key of the type, for each product rate.
_UNITS: Mapping[str, tuple[str, int]] = {
  "fp32_flops_per_s": ("scalar_unit_description", 11),
  "tf32_flops_per_s": ("matrix_unit_description", 11),
  "bf16_flops_per_s": ("matrix_unit_description", 16),
}
# Of the peaks, that kernels are taken to reach: the same for all GPUs.
_FRACTIONS = cost.DATA_SHEETS["h100"]
_COMMENT = """\
# Rates measured by benchmarks/gpu_campaign.py, each divided by the fraction of
# a peak that jaxmem takes kernels to reach: estimates for this target multiply
# by that, and so meet what was measured.
"""


def packaged_name(device_kind: str) -> str:
  """Returns the known target most like a device, by the name of its card."""
  known = [name for name in targets.known_names() if name != "cpu"]
  kind = device_kind.lower()
  return next((n for n in known if n.split("-")[0] in kind), "h100")


def packaged(name: str) -> str:
  """Returns the description of a known target."""
  return targets.get(name).config_text


def rates(text: str) -> dict[str, float]:
  """Returns what a description says of memory, link and products, per second.

  Rates that it does not give are left out.
  """
  target = targets.get(text)
  link = target.host_bandwidth_bytes_per_s
  found = {
    "memory_bytes_per_s": target.memory_bandwidth_bytes_per_s,
    "to_host_bytes_per_s": link,
    "from_host_bytes_per_s": link,
    "fp32_flops_per_s": target.flops_per_s("fp32"),
    "tf32_flops_per_s": target.flops_per_s("tf32"),
    "bf16_flops_per_s": target.flops_per_s("bf16"),
  }
  return {name: rate for name, rate in found.items() if rate}


def with_rates(text: str, measured: Mapping[str, float | None]) -> str:
  """Returns a description with measured rates in place of its own.

  Args:
    text: A `GpuTargetConfigProto` in text form.
    measured: What kernels reached, under the names of `rates`. Of the two
      directions of the link, the slower counts: a description has one. None,
      and what is missing, leaves a rate as it is.
  """
  described = rates(text)
  found = {name: rate for name, rate in measured.items() if rate}
  memory = found.get("memory_bytes_per_s")
  if memory is not None:
    memory /= _FRACTIONS.efficiency.memory
    text = _with_number(text, "memory_bandwidth", round(memory))
  link = [found[name] for name in found if "_host_" in name]
  if link:
    slower = min(link) / _FRACTIONS.efficiency.link
    text = _with_number(text, "pcie_bandwidth", round(slower))
  for name, (block, key) in _UNITS.items():
    if name in found and name in described:
      factor = found[name] / _FRACTIONS.efficiency.flops / described[name]
      text = _with_clock(text, block, key, factor)
  return _COMMENT + text


def _with_number(text: str, field: str, value: int) -> str:
  changed, count = re.subn(
    rf"\b{field}:\s*[-+.0-9eE]+", f"{field}: {value}", text, count=1
  )
  return changed if count else text


def _with_clock(text: str, block: str, key: int, factor: float) -> str:
  """Multiplies the clock of one type's units, and so its rate."""
  head, name, tail = text.partition(block)
  pattern = rf"(\bkey:\s*{key}\b.*?clock_rate_ghz:\s*)([-+.0-9eE]+)"

  def scaled(match: re.Match[str]) -> str:
    return f"{match[1]}{float(match[2]) * factor:.9g}"

  return head + name + re.sub(pattern, scaled, tail, count=1, flags=re.DOTALL)
