"""The first half of the demo: plan full-size steps, running nothing."""

from __future__ import annotations

from collections.abc import Sequence

import jaxmem
from jaxmem import targets, units
from jaxmem.demo.cases import Case
from jaxmem.report import Plan

_ROW = "  {:<30} {:<7} {:>9} {:>9} {:>8} {:>9}  {:<9} {:>8}"


def show_plans(cases: Sequence[Case], devices: Sequence[str]) -> None:
  """Plans every case for every device and prints a table.

  Args:
    cases: What to plan.
    devices: Names of targets; those that this Python cannot compile for are
      left out with a message.
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
  for device in devices:
    if not targets.is_available(device):
      print(
        f"  {device} left out: JAX's CUDA plugin is not installed. It needs"
        " neither a GPU nor CUDA: pip install 'jaxmem[gpu-targets]'."
      )
      continue
    for case in cases:
      try:
        plan = _plan(case, device)
      except RuntimeError as error:
        print(f"  {device} left out: {error}", flush=True)
        break
      print(_row(case, plan), flush=True)


def _plan(case: Case, device: str) -> Plan:
  return jaxmem.plan(
    case.step,
    case.state_shapes(),
    *case.batch,
    target=device,
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
