"""What is asked of the planner, and its answer to a module that XLA shows."""

from __future__ import annotations

import dataclasses

import jax
from jaxmem_hlo.module import Module, apply_late_passes

from jaxmem import cost, targets
from jaxmem.options import Options
from jaxmem.planning.collector import paused_collector
from jaxmem.planning.decided import DecidedModules
from jaxmem.planning.decision import Decision, PlannedModule
from jaxmem.planning.fit import LimitPlanner
from jaxmem.planning.reorder import plan_module
from jaxmem.rewrite import fetch_arguments


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
  """What is asked of the planner for one module.

  Attributes:
    options: Planning options.
    limit_bytes: Most bytes of the whole program; None for no limit.
    target: The described device that one is planned for; None where the step
      is compiled for the devices of its arguments, or for jax's own.
    group: These devices, if they are known.
  """

  options: Options
  limit_bytes: int | None = None
  target: targets.Target | None = None
  group: targets.DeviceGroup | None = None

  def device(self, platform: str) -> cost.Device:
    """Returns the device planned for.

    Args:
      platform: "cpu" or "cuda": what XLA compiles for.
    """
    if self.target is not None or self.group is None:
      return cost.device_for(self.target or _local_target(platform))
    group = self.group
    target = group.target or _known_like(platform, group.kind)
    return cost.device_for(target, group.per_host, group.num_devices)

  @property
  def num_devices(self) -> int:
    """How many devices run the program."""
    return self.group.num_devices if self.group and not self.target else 1

  @property
  def platform(self) -> str:
    """What XLA is to compile for, before it shows a module: "cpu", "cuda"."""
    if self.described is not None:
      return self.described.platform
    of = self.group.platform if self.group else jax.default_backend()
    return "cuda" if of == "gpu" else of

  @property
  def runs_as_scheduled(self) -> bool:
    """Whether XLA must not recompute anything once it has scheduled a program.

    It does so on GPUs, where a program takes more than a share of the device's
    memory. What was planned to meet a limit has been made small already.
    """
    return self.limit_bytes is not None

  @property
  def described(self) -> targets.Target | None:
    """What is planned for, where that is only described."""
    return self.target or (self.group.target if self.group else None)

  @property
  def device_name(self) -> str:
    """What reports call the device, or devices."""
    if self.target is not None:
      return self.target.name
    if self.group is None or self.group.target is None:
      return jax.default_backend()
    return self.group.name

  def planner(self, module: Module, platform: str) -> LimitPlanner:
    """Returns what plans a module for any limit."""
    return LimitPlanner(module, self.device(platform), self.options)

  def read(self, data: bytes, platform: str) -> tuple[Module, bool]:
    """Reads the module that XLA shows, as buffers will be assigned to it.

    To a described device arguments on the host do not show as such; see
    `rewrite.fetch_arguments`.

    Returns:
      The module as it would be if the target were here, and whether XLA has to
      be given it for that, even if no plan changes it.
    """
    with paused_collector():
      given = apply_late_passes(Module.from_bytes(data), platform)
    if self.described is None or platform != "cuda":
      return given, False
    module = fetch_arguments(given)
    return module, module is not given

  def decide(
    self,
    module: Module,
    platform: str,
    decided: DecidedModules | None = None,
  ) -> PlannedModule[Decision]:
    """Plans a module.

    Args:
      module: A scheduled module.
      platform: "cpu" or "cuda".
      decided: Plans of this request that were made already.

    Raises:
      InfeasibleError: If no plan was found that meets the limit.
    """
    known = decided.find(module, platform) if decided else None
    if known is not None:
      return PlannedModule.of(module, known)
    if self.limit_bytes is None:
      return plan_module(module, self.device(platform), self.options)
    planner = self.planner(module, platform)
    return planner.finished(planner.fit(self.limit_bytes))

  def answer(
    self, data: bytes, platform: str, decided: DecidedModules
  ) -> tuple[PlannedModule[Decision], bytes | None]:
    """Plans the module that XLA shows.

    Args:
      data: The module, serialized.
      platform: "cpu" or "cuda".
      decided: Plans of this request that were made already.

    Returns:
      The planned module, and its bytes if XLA has to be given them.

    Raises:
      InfeasibleError: If no plan was found that meets the limit.
    """
    module, is_changed = self.read(data, platform)
    planned = self.decide(module, platform, decided)
    is_changed = is_changed or planned.decision.is_changed
    return planned, planned.module.to_bytes() if is_changed else None


def _local_target(platform: str) -> str:
  """Names the known target that is most like the device here."""
  kind = "" if platform == "cpu" else jax.devices()[0].device_kind
  return _known_like(platform, kind)


def _known_like(platform: str, kind: str) -> str:
  """Names the known target that is most like devices of a kind."""
  if platform == "cpu":
    return "cpu"
  known = [name for name in targets.known_names() if name != "cpu"]
  alike = [name for name in known if name.split("-")[0] in kind.lower()]
  # Plans depend on the ratio of arithmetic to bandwidth, alike for all.
  return (alike or ["h100"])[0]
