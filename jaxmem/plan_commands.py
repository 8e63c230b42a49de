"""The commands that plan steps: `plan`, `check`, and `diff` of two of them.

`check` is a gate for continuous integration: a plan of a step that was saved
before is the baseline, and the step may not have grown by more than is allowed.
Where GITHUB_STEP_SUMMARY names a file, what changed is written there, too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxmem import exit_codes, units
from jaxmem.factories import FactoryStep, StepFailedError, UsageError, load
from jaxmem.options import EFFORT_ARGUMENT

if TYPE_CHECKING:
  from jaxmem import Plan

_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


def add_plan(parser: argparse.ArgumentParser) -> None:
  """Defines the arguments of `plan`."""
  parser.description = (
    "Compiles a step twice, with XLA's own order and with jaxmem's, and prints"
    " what was saved. Runs nothing on the device."
  )
  _add_step(parser)
  parser.add_argument(
    "--frontier",
    nargs="?",
    const="",
    metavar="PATH",
    help="print what smaller and smaller byte limits would cost in time; with a"
    " path, also draw it there as a page",
  )
  parser.add_argument(
    "--explain",
    action="store_true",
    help="also print where the bytes at the peak come from",
  )
  parser.add_argument(
    "--html", metavar="PATH", help="write a page that draws every buffer"
  )
  parser.add_argument(
    "--xprof", metavar="DIR", help="write both plans for XProf's memory viewer"
  )
  parser.set_defaults(run=_run_plan)


def add_check(parser: argparse.ArgumentParser) -> None:
  """Defines the arguments of `check`."""
  parser.description = (
    "Plans a step and compares it with a plan that was saved before; fails,"
    f" with code {exit_codes.GREW}, if the whole program grew by more than is"
    f" allowed. Appends what changed to the file that {_SUMMARY_VARIABLE}"
    " names, if any."
  )
  _add_step(parser)
  parser.add_argument(
    "--baseline",
    metavar="PATH",
    required=True,
    help="the plan to compare with, as `plan --json` wrote it",
  )
  parser.add_argument(
    "--max-growth",
    metavar="SIZE",
    default="0",
    help="by how much the whole program may have grown: 1%%, 16MiB; default:"
    " not at all",
  )
  parser.set_defaults(run=_run_check)


def add_diff(parser: argparse.ArgumentParser) -> None:
  """Defines the arguments of `diff`."""
  parser.description = (
    "Compares two plans: what grew and what shrank at the peak, by kind,"
    " module, line and argument. Each is a file that `plan --json` wrote, or a"
    " factory, pkg.module:factory, whose step is planned now, as the options"
    " say."
  )
  parser.add_argument("before", metavar="BEFORE")
  parser.add_argument("after", metavar="AFTER")
  _add_planning(parser)
  parser.set_defaults(run=_run_diff)


def _add_step(parser: argparse.ArgumentParser) -> None:
  """Defines which step is planned, and how."""
  parser.add_argument(
    "factory",
    metavar="pkg.module:factory",
    help="a function of nothing, or of --devices, that returns (step, args) or"
    " (step, args, jit_kwargs); the step may be jitted, args be shapes",
  )
  _add_planning(parser)
  parser.add_argument("--json", metavar="PATH", help="write the plan as JSON")


def _add_planning(parser: argparse.ArgumentParser) -> None:
  """Defines how steps are planned."""
  parser.add_argument(
    "--target",
    help="h200, h100, a100-80, cpu, or the path of a GpuTargetConfigProto text;"
    " default: the device that jax would use",
  )
  parser.add_argument(
    "--devices",
    type=int,
    metavar="N",
    help="plan for N such devices on a host, which the factory is given",
  )
  parser.add_argument(
    "--hosts", type=int, default=1, help="how many hosts of N devices"
  )
  parser.add_argument(
    "--memory-limit",
    metavar="SIZE",
    help="make the whole step fit, or fail: 24GiB, 80%% of what jax takes of"
    " the target's memory, or auto: all that is free",
  )
  parser.add_argument("--effort", **EFFORT_ARGUMENT)


def _run_plan(options: argparse.Namespace) -> int:
  plan = _planned_and_saved(options)
  if plan is None:
    return exit_codes.DOES_NOT_FIT
  print(plan)
  if options.html is not None:
    write(options.html, plan.save_html)
  if options.xprof is not None:
    write(options.xprof, plan.save_xprof)
  frontier = None
  if options.frontier is not None:
    frontier = plan.frontier()
    print(frontier)
    if options.frontier:
      write(options.frontier, frontier.save_html)
  if options.explain:
    print(plan.explain(frontier))
  return 0


def _run_diff(options: argparse.Namespace) -> int:
  before = _saved_or_planned(options.before, options)
  after = before and _saved_or_planned(options.after, options)
  if before is None or after is None:
    return exit_codes.DOES_NOT_FIT
  print(after.diff(before))
  return 0


def _saved_or_planned(name: str, options: argparse.Namespace) -> Plan | None:
  """Returns the plan of a file or of a factory; None if it does not fit."""
  if ":" in name and not os.path.exists(name):
    return _planned(name, options)
  return _saved(name)


def _run_check(options: argparse.Namespace) -> int:
  baseline = _saved(options.baseline)
  if baseline.budget is not None and options.memory_limit is None:
    limit_bytes = baseline.budget.limit_bytes
    raise UsageError(
      f"{options.baseline} was planned under a limit of {limit_bytes} bytes,"
      " and without one this step would take more; give --memory-limit"
      f" {limit_bytes}, or plan the baseline again without"
    )
  allowed_bytes = _growth(options.max_growth, baseline.total_bytes)
  plan = _planned_and_saved(options)
  if plan is None:
    limit = options.memory_limit
    _summarize(f"### {baseline.name}\n\nDoes not fit {limit}.\n")
    return exit_codes.DOES_NOT_FIT
  if plan.target != baseline.target:
    raise UsageError(
      f"{options.baseline} is a plan for {baseline.target}, this is one for"
      f" {plan.target}; give --target, or plan the baseline again"
    )
  found = plan.diff(baseline)
  grown_bytes = found.total.bytes
  is_within = grown_bytes <= allowed_bytes
  verdict = (
    f"{'OK' if is_within else 'FAILED'}: the whole program"
    f" {'grew' if grown_bytes > 0 else 'shrank'} by"
    f" {units.format_bytes(abs(grown_bytes))} ({100 * found.growth:+.2f} %);"
    f" {units.format_bytes(allowed_bytes)} are allowed"
  )
  print(f"{found}\n{verdict}")
  _summarize(f"{found.to_markdown()}\n**{verdict}**\n")
  return 0 if is_within else exit_codes.GREW


def _planned_and_saved(options: argparse.Namespace) -> Plan | None:
  """Plans the step of a command, and writes the plan where that says."""
  plan = _planned(options.factory, options)
  if plan is not None and options.json is not None:
    write(options.json, plan.save)
  return plan


def _planned(factory: str, options: argparse.Namespace) -> Plan | None:
  """Plans the step of a factory; None if it does not fit.

  Raises:
    StepFailedError: If the factory or the step raised an error.
  """
  import jaxmem

  _check_target(options.target, options.memory_limit)
  step = load(factory, *_described(options))
  try:
    return jaxmem.plan(
      step.function,
      *step.args,
      target=options.target,
      memory_limit=options.memory_limit,
      options=jaxmem.Options(effort=options.effort),
      **step.jit_kwargs,
    )
  except jaxmem.InfeasibleError as error:
    print(error, file=sys.stderr)
    return None
  except Exception as error:
    if _fails_alone(step, error):
      raise StepFailedError from error
    raise


def _fails_alone(step: FactoryStep, error: Exception) -> bool:
  """Whether a step fails in the same way without jaxmem, by being traced."""
  import jax

  function: Any = step.function
  if not hasattr(function, "lower"):
    function = jax.jit(function, **step.jit_kwargs)
  try:
    getattr(function, "trace", function.lower)(*step.args)
  except Exception as found:
    return type(found) is type(error)
  return False


def _growth(text: str, total_bytes: int) -> int:
  """Returns the bytes that are allowed, from what the user wrote."""
  if not text.strip(" 0.%"):
    return 0
  try:
    return units.parse_bytes(text, total_bytes=total_bytes, name="--max-growth")
  except ValueError as error:
    raise UsageError(error) from error


def _saved(path: str) -> Plan:
  from jaxmem import Plan

  try:
    with open(path, encoding="utf-8") as file:
      return Plan.from_json(file.read())
  except OSError as error:
    raise UsageError(f"cannot read {path}: {error.strerror}") from error
  except ValueError as error:
    raise UsageError(f"{path}: {error}") from error


def _summarize(markdown: str) -> None:
  """Appends to the summary of the CI run, if there is one."""
  path = os.environ.get(_SUMMARY_VARIABLE)
  if not path:
    return
  try:
    with open(path, "a", encoding="utf-8") as file:
      file.write(markdown)
  except OSError as error:
    # The gate's answer is its exit code.
    print(f"cannot write {path}: {error.strerror}", file=sys.stderr)


def _described(options: argparse.Namespace) -> list[Any]:
  """Returns what the factory is given: the described devices, if any."""
  if options.devices is None:
    return []
  from jaxmem import targets

  try:
    return [
      targets.devices(
        options.target, hosts=options.hosts, per_host=options.devices
      )
    ]
  except ValueError as error:
    raise UsageError(error) from error


def _check_target(name: str | None, memory_limit: str | None) -> None:
  """Checks the options that jax is not needed for, then prepares jax."""
  from jaxmem import targets, units

  try:
    target = None if name is None else targets.get(name)
    if memory_limit is not None:
      units.check_limit(memory_limit)
      targets.pool_fraction()
  except ValueError as error:
    raise UsageError(error) from error
  if target is None:
    return
  stay_on_cpu()
  if target.platform == "cuda":
    try:
      target.topology()
    except (RuntimeError, ValueError) as error:
      raise UsageError(error) from error


def stay_on_cpu() -> None:
  """Keeps jax off any accelerator, unless the user chose a platform."""
  import jax

  if "JAX_PLATFORMS" not in os.environ:
    # The variable is for child processes; jax has read it by now.
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")
  if os.environ["JAX_PLATFORMS"] == "cpu":
    # The CUDA plugin only compiles here, which takes none of NVIDIA's
    # libraries; without this it would complain that they are missing.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")


def write(path: str, save: Callable[[str], object]) -> None:
  """Writes a file by calling `save` with its path.

  Raises:
    UsageError: If it cannot be written.
  """
  try:
    save(path)
  except OSError as error:
    raise UsageError(f"cannot write {path}: {error.strerror}") from error
