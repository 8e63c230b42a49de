"""What happens to a module between XLA's scheduler and code generation."""

from __future__ import annotations

import dataclasses
import hashlib

import jax
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.module import Module, apply_late_passes
from jaxmem_hlo.proto import hlo_pb2

from jaxmem import cost, targets
from jaxmem.errors import InfeasibleError
from jaxmem.options import Options
from jaxmem.planning.decision import ModulePlan
from jaxmem.planning.fit import LimitPlan, LimitPlanner
from jaxmem.planning.reorder import plan_module
from jaxmem.rewrite import fetch_arguments

Decided = ModulePlan | LimitPlan

# A plan is a list of ids. Where more are asked for, modules are planned anew.
_MAX_REMEMBERED = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
  """What is asked of the planner for one module.

  Attributes:
    options: Planning options.
    limit_bytes: Most bytes of the whole program; None for no limit.
    target: The device that estimates of time are made for; None for the one
      that jax would use.
    remembered: The latest plans, or why there is none, by what they were made
      for. Copies of a request share them.
  """

  options: Options
  limit_bytes: int | None = None
  target: targets.Target | None = None
  remembered: dict[object, LimitPlan | InfeasibleError] = dataclasses.field(
    default_factory=dict, compare=False, repr=False
  )

  def decide(self, module: Module, platform: str) -> Decided:
    """Plans a module.

    Raises:
      InfeasibleError: If no plan was found that meets the limit.
    """
    if self.limit_bytes is None:
      rates = self.rates(platform)
      return plan_module(module, platform, self.options, rates)
    if self.remembered:
      found = self.remembered.get(self._key(module, platform))
      if isinstance(found, InfeasibleError):
        raise found
      if found is not None:
        return found
    return self.planner(module, platform).fit(self.limit_bytes)

  def remember(
    self, module: Module, platform: str, found: LimitPlan | InfeasibleError
  ) -> None:
    """Spares `decide` the planning of a module.

    Args:
      module: The module, whatever its functions are called.
      platform: "cpu" or "cuda".
      found: What `decide` would return or raise.
    """
    self.remembered[self._key(module, platform)] = found
    while len(self.remembered) > _MAX_REMEMBERED:
      self.remembered.pop(next(iter(self.remembered)), None)

  def _key(self, module: Module, platform: str) -> object:
    return _fingerprint(module), platform, self.limit_bytes, self.options

  def planner(self, module: Module, platform: str) -> LimitPlanner:
    """Returns what plans a module for any limit."""
    return LimitPlanner(module, platform, self.options, self.rates(platform))

  def read(self, data: bytes, platform: str) -> tuple[Module, bool]:
    """Reads the module that XLA shows, as buffers will be assigned to it.

    To a described device arguments on the host do not show as such; see
    `rewrite.fetch_arguments`.

    Returns:
      The module as it would be if the target were here, and whether XLA has to
      be given it for that, even if no plan changes it.
    """
    given = apply_late_passes(Module.from_bytes(data), platform)
    if self.target is None or platform != "cuda":
      return given, False
    module = fetch_arguments(given)
    return module, module is not given

  def rates(self, platform: str) -> cost.Rates:
    """Returns the rates of the device that estimates of time are made for."""
    return cost.for_target(self.target or _local_target(platform))

  def rewrite(self, data: bytes, platform: str) -> bytes | None:
    """Handles a serialized module, as `transform.Handler` says.

    Raises:
      CompileRefusedError: If the limit cannot be met: then the program must
        not run.
    """
    module, is_changed = self.read(data, platform)
    try:
      decided = self.decide(module, platform)
      return apply(module, decided, always=is_changed)
    except InfeasibleError as error:
      raise compiler_hook.CompileRefusedError(
        f"InfeasibleError: {error}"
      ) from None


def _fingerprint(module: Module) -> bytes:
  """Returns a hash of all that a plan depends on.

  The names of the function and of scopes, which hold the mark, and what the
  messages here do not know differ between compiles of one step.
  """
  proto = hlo_pb2.Module()
  proto.CopyFrom(module.proto)
  proto.ClearField("name")
  proto.ClearField("id")
  proto.ClearField("stack_frame_index")
  for computation in proto.computations:
    for instruction in computation.instructions:
      instruction.ClearField("metadata")
  proto.DiscardUnknownFields()
  data = proto.SerializeToString(deterministic=True)
  return hashlib.sha256(data).digest()


def apply(
  module: Module, decided: Decided, always: bool = False
) -> bytes | None:
  """Returns the planned module, serialized.

  Args:
    module: The module that was planned.
    decided: The plan.
    always: Whether to do so even if the plan changes nothing; else None.
  """
  if not decided.is_changed and not always:
    return None
  return decided.apply(module).to_bytes()


def _local_target(platform: str) -> str:
  """Names the known target that is most like the device here."""
  if platform == "cpu":
    return "cpu"
  kind = jax.devices()[0].device_kind.lower()
  known = [name for name in targets.known_names() if name != "cpu"]
  alike = [name for name in known if name.split("-")[0] in kind]
  # Plans depend on the ratio of arithmetic to bandwidth, alike for all.
  return (alike or ["h100"])[0]
