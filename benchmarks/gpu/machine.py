"""The machine that a campaign runs on, seen without touching its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.row_output import versions

_QUERY = "driver_version,memory.total"
_TIMEOUT_S = 120


def identity(
  environment: Mapping[str, str], *, is_rehearsal: bool
) -> dict[str, Any]:
  """Returns what has to be equal for two rows to be of the same campaign.

  A process of its own asks jax for its device: whoever asks takes most of a
  GPU's memory until the process ends.

  Args:
    environment: Of that process, as of the cases'.
    is_rehearsal: Whether rows are of a rehearsal.

  Raises:
    RuntimeError: If jax finds no device, or none that fits.
  """
  try:
    probe = subprocess.run(
      [sys.executable, "-m", "benchmarks.gpu.worker", "--probe"],
      env=dict(environment),
      capture_output=True,
      text=True,
      timeout=_TIMEOUT_S,
      check=False,
    )
  except subprocess.TimeoutExpired as error:
    raise RuntimeError(
      f"jax has not found its device after {_TIMEOUT_S} s; see whether"
      " nvidia-smi answers."
    ) from error
  if probe.returncode:
    lines = probe.stderr.strip().splitlines() or ["no word"]
    raise RuntimeError(f"jax finds no device: {lines[-1]}")
  device = json.loads(probe.stdout.strip().splitlines()[-1])
  if not is_rehearsal and device["platform"] != "gpu":
    raise RuntimeError(
      f"jax finds no GPU, but {device['kind']!r}; unset JAX_PLATFORMS, install"
      " JAX's CUDA plugin, or give --rehearse to try the campaign on a CPU."
    )
  return {
    "rehearsal": is_rehearsal,
    "device": {**device, **_driver()},
    "versions": versions("jax", "jaxlib", "jaxmem"),
  }


def describe_device() -> str:
  """Returns the device that jax uses, as JSON; starts jax's backend."""
  import jax

  device = jax.devices()[0]
  return json.dumps({"platform": device.platform, "kind": device.device_kind})


def _driver() -> dict[str, Any]:
  """Asks nvidia-smi for the driver and the card's memory, if it is there."""
  nothing = {"driver": "", "memory_bytes": None}
  command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
  try:
    answer = subprocess.run(
      [*command, "--id=0"],
      capture_output=True,
      text=True,
      timeout=_TIMEOUT_S,
      check=True,
    )
    driver, memory = answer.stdout.strip().split(", ")
    return {"driver": driver, "memory_bytes": int(memory.split()[0]) << 20}
  except (OSError, subprocess.SubprocessError, ValueError):
    return nothing
