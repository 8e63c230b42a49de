"""The first parts of the demo: plan full-size steps, running nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jaxmem
from jaxmem import targets, units
from jaxmem.demo import sharded
from jaxmem.demo.cases import Case
from jaxmem.report import Communication, Plan, Progress

_ROW = "  {:<30} {:<7} {:>9} {:>9} {:>8} {:>9}  {:<9} {:>8}"
_LIMIT_ROW = "  {:<30} {:<7} {:>9} {:>9} {:>9} {:>10} {:>8} {:>8}"
_SHARDED_ROW = "  {:<30} {:<10} {:>9} {:>10} {:>10} {:>10}"
_NUM_DEVICES, _NUM_BLOCKS = 8, 8


def show_plans(cases: Mapping[str, Sequence[Case]]) -> None:
  """Plans steps and prints a table.

  Args:
    cases: For each target, by its name, what to plan. Targets that this Python
      cannot compile for are left out with a message.
  """
  print(
    _ROW.format(
      "step",
      "device",
      "XLA temp",
      "planned",
      "change",
      "bound",
      "status",
      "planning",
    ),
    flush=True,
  )
  for device, own in cases.items():
    if not is_available(device):
      continue
    for case in own:
      plan = _planned(case.name, device, lambda c=case, d=device: _plan(c, d))
      if plan is None:
        break
      print(_row(case, plan), flush=True)


def show_limit(case: Case, device: str, memory_limit: str) -> Plan | None:
  """Plans a case for a number of bytes, and prints a table.

  Args:
    case: What to plan.
    device: Name of a target.
    memory_limit: Most bytes of the whole program.

  Returns:
    The plan; None if this Python cannot compile for the device.
  """
  print(
    _LIMIT_ROW.format(
      *("step", "device", "XLA total", "limit", "planned"),
      *("recomputed", "to host", "time"),
    ),
    flush=True,
  )
  if not is_available(device):
    return None
  plan = _planned(case.name, device, lambda: _plan(case, device, memory_limit))
  if plan is not None:
    print(_limit_row(case, plan), flush=True)
  return plan


def show_sharded(device: str) -> None:
  """Plans a step over eight devices that are not here, and prints a table."""
  print(
    _SHARDED_ROW.format(
      *(f"step on {_NUM_DEVICES} x {device}", "", "temp", "step"),
      *("exchanged", "waited for"),
    ),
    flush=True,
  )
  if not is_available(device):
    return
  step = sharded.residual_step(
    jaxmem.devices(device, _NUM_DEVICES), _NUM_BLOCKS
  )
  plan = _planned(
    step.name,
    device,
    lambda: jaxmem.plan(step.step, *step.args, donate_argnums=0),
  )
  if plan is None:
    return
  for name, compiler, temp_bytes, own in (
    (
      step.name,
      "jax.jit",
      plan.baseline_temp_bytes,
      plan.baseline_communication,
    ),
    ("", "jaxmem.jit", plan.temp_bytes, plan.communication),
  ):
    print(_sharded_row(name, compiler, temp_bytes, own), flush=True)


def is_available(device: str) -> bool:
  """Whether this Python can compile for a device; says so if not."""
  if targets.is_available(device):
    return True
  print(
    f"  {device} left out: JAX's CUDA plugin is not installed. It needs"
    " neither a GPU nor CUDA: pip install 'jaxmem[gpu-targets]'."
  )
  return False


def _planned(name: str, device: str, make: Callable[[], Plan]) -> Plan | None:
  """Makes a plan, with a line of progress; says why if there is none."""
  progress = Progress()
  progress.show(f"planning {name} for {device}")
  try:
    return make()
  except RuntimeError as error:
    progress.close()
    print(f"  {device} left out: {error}", flush=True)
    return None
  finally:
    progress.close()


def _plan(case: Case, device: str, memory_limit: str | None = None) -> Plan:
  return jaxmem.plan(
    case.step,
    case.state_shapes(),
    *case.batch,
    target=device,
    memory_limit=memory_limit,
    donate_argnums=0,
  )


def _row(case: Case, plan: Plan) -> str:
  change = 100 * (plan.temp_bytes / max(1, plan.baseline_temp_bytes) - 1)
  return _ROW.format(
    case.name,
    plan.target,
    units.format_bytes(plan.baseline_temp_bytes),
    units.format_bytes(plan.temp_bytes),
    f"{change:+.1f} %",
    units.format_bytes(plan.lower_bound_bytes),
    plan.status,
    f"{plan.planning_s:.1f} s",
  )


def _limit_row(case: Case, plan: Plan) -> str:
  assert plan.budget is not None
  rest_bytes = plan.argument_bytes + plan.output_bytes - plan.alias_bytes
  return _LIMIT_ROW.format(
    case.name,
    plan.target,
    units.format_bytes(rest_bytes + plan.baseline_temp_bytes),
    units.format_bytes(plan.budget.limit_bytes),
    units.format_bytes(plan.total_bytes),
    plan.budget.num_recomputed + plan.budget.num_dropped,
    plan.budget.num_offloaded,
    f"{100 * plan.budget.change:+.1f} %",
  )


def _sharded_row(
  name: str, compiler: str, temp_bytes: int, own: Communication | None
) -> str:
  times = (own.step_s, own.seconds, own.exposed_s) if own else ()
  return _SHARDED_ROW.format(
    name,
    compiler,
    units.format_bytes(temp_bytes),
    *(f"{1e3 * seconds:.2f} ms" for seconds in times),
  )
