"""Seconds that a card itself says its kernels take, from jax's profiler."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax

_DEVICES = "/device:GPU:"
# The others say the same once more, by module and by operation.
_KERNELS = "Stream"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
  """A kernel that ran.

  Attributes:
    module: The HLO module it belongs to.
    name: Of the kernel.
    seconds: What it took.
  """

  module: str
  name: str
  seconds: float


def kernels_of(run: Callable[[], Any]) -> list[Ran]:
  """Returns the kernels that run while a function is called.

  Args:
    run: Is called once, and must wait for what it started.

  Returns:
    In the order of their start; none where jax finds no card.
  """
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      run()
    found = [
      event
      for path in pathlib.Path(folder).rglob("*.xplane.pb")
      for event in _events(path)
    ]
  return [kernel for _, kernel in sorted(found, key=lambda pair: pair[0])]


def _events(path: pathlib.Path) -> list[tuple[float, Ran]]:
  """Returns starts and kernels of a profile."""
  profile = jax.profiler.ProfileData.from_file(str(path))
  return [
    (
      event.start_ns,
      Ran(
        module=str(dict(event.stats).get("hlo_module", "")),
        name=event.name,
        seconds=1e-9 * event.duration_ns,
      ),
    )
    for plane in profile.planes
    if plane.name.startswith(_DEVICES)
    for line in plane.lines
    if line.name.startswith(_KERNELS)
    for event in line.events
  ]
