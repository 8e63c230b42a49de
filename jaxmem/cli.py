"""`python -m jaxmem`: run a script, plan a step, place buffers, or see a demo.

Nothing here touches jax's backends before a command asks for them, so that
planning for a device that is not here can keep jax on the CPU.

Exit codes:
  0: Done.
  1: It does not fit: no plan the memory limit, or no placement the capacity.
    Also if the demo's outputs differ.
  2: The command was wrong; one line on stderr says how.
  3: It failed: the factory or the step raised an error, or jaxmem did. The
    traceback is on stderr.

`run` ends as its script does.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from jaxmem.factories import FactoryStep, UsageError, load
from jaxmem.version import __version__

_EXIT_DOES_NOT_FIT = 1
_EXIT_WRONG_COMMAND = 2
_EXIT_FAILED = 3
# Keywords that jaxmem.jit has and jax.jit has not: options say them here.


class _CommandParser(argparse.ArgumentParser):
  """Defines a command's arguments when it is used, so that others load less.

  Args:
    define: Adds the arguments.
    **kwargs: As for `argparse.ArgumentParser`.
  """

  def __init__(
    self, *, define: Callable[[argparse.ArgumentParser], None], **kwargs: Any
  ):
    super().__init__(**kwargs)
    self._define = define

  def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
    """Defines the arguments and parses them."""
    self._define(self)
    return super().parse_known_args(args, namespace)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command.

  Args:
    argv: Arguments without the program's name; those of the process if None.

  Returns:
    The exit code, as the module says.
  """
  parser = _parser()
  try:
    options = parser.parse_args(argv)
  except SystemExit as done:  # argparse has printed the help or the error.
    return int(done.code or 0)
  try:
    return options.run(options)
  except UsageError as error:
    print(f"{parser.prog}: error: {error}", file=sys.stderr)
    return _EXIT_WRONG_COMMAND
  except BrokenPipeError:  # As in `python -m jaxmem plan ... | head`.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _EXIT_FAILED
  except Exception:
    # Left to itself, Python would exit with 1: "it does not fit".
    traceback.print_exc()
    return _EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="jaxmem",
    description="Plans the memory of JAX train steps.",
  )
  parser.add_argument(
    "--version", action="version", version=f"jaxmem {__version__}"
  )
  commands = parser.add_subparsers(
    required=True, metavar="COMMAND", parser_class=_CommandParser
  )
  for name, define, text in (
    ("run", _add_run, "run a script as it is, with its steps planned"),
    ("plan", _add_plan, "plan a step and print the plan"),
    ("place", _add_place, "place buffers of a CSV file in an arena"),
    (
      "memcost",
      _add_memcost,
      "compare the allocators of the literature on a step",
    ),
    ("demo", _add_demo, "plan GPT-2 and ResNet-50, run smaller ones"),
  ):
    commands.add_parser(name, define=define, help=text)
  return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
  from jaxmem.script import add_run

  add_run(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
  parser.description = (
    "Compiles a step twice, with XLA's own order and with jaxmem's, and prints"
    " what was saved. Runs nothing on the device."
  )
  parser.add_argument(
    "factory",
    metavar="pkg.module:factory",
    help="a function of nothing, or of --devices, that returns (step, args) or"
    " (step, args, jit_kwargs); the step may be jitted, args be shapes",
  )
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
  parser.add_argument(
    "--frontier",
    nargs="?",
    const="",
    metavar="PATH",
    help="print what smaller and smaller byte limits would cost in time; with a"
    " path, also draw it there as a page",
  )
  parser.add_argument(
    "--effort", choices=("fast", "normal", "prove"), default="normal"
  )
  parser.add_argument("--json", metavar="PATH", help="write the plan as JSON")
  parser.add_argument(
    "--html", metavar="PATH", help="write a page that draws every buffer"
  )
  parser.set_defaults(run=_run_plan)


def _add_place(parser: argparse.ArgumentParser) -> None:
  parser.description = (
    "Finds offsets for buffers of known live ranges, as low as possible or"
    " within a capacity. Reads and writes MiniMalloc's CSV."
  )
  parser.add_argument("problem", metavar="problem.csv")
  parser.add_argument(
    "--capacity", type=int, help="bytes of the arena; stop once they suffice"
  )
  parser.add_argument(
    "--pools",
    metavar="BYTES,...",
    help="capacities of pools; leave out what costs least (column cost)",
  )
  parser.add_argument("--output", metavar="PATH", help="write the offsets here")
  parser.set_defaults(run=_run_place)


def _add_memcost(parser: argparse.ArgumentParser) -> None:
  from jaxmem.experimental.allocators import add_memcost

  add_memcost(parser, _load_on_cpu)


def _add_demo(parser: argparse.ArgumentParser) -> None:
  parser.description = (
    "Plans GPT-2 small and ResNet-50 for this CPU and for an H200, then runs"
    " smaller ones under jax.jit and jaxmem.jit. Takes a few minutes."
  )
  parser.add_argument(
    "--quick", action="store_true", help="tiny models, this CPU only"
  )
  parser.set_defaults(run=_run_demo)


def _run_place(options: argparse.Namespace) -> int:
  from jaxmem import placement

  if options.pools is not None:
    return _run_pools(options)
  try:
    problem = placement.from_csv(_read(options.problem))
    solution = placement.place(problem, options.capacity)
  except placement.InfeasiblePlacementError as error:
    print(error, file=sys.stderr)
    return _EXIT_DOES_NOT_FIT
  except ValueError as error:
    raise UsageError(f"{options.problem}: {error}") from error
  print(
    f"{len(problem.buffers)} buffers in {solution.height_bytes} bytes,"
    f" {solution.status}: no placement needs less than"
    f" {solution.lower_bound_bytes} ({solution.method},"
    f" {solution.seconds:.2f} s)"
  )
  if options.output is not None:
    _save(options.output, placement.to_csv(problem, solution))
  fits = options.capacity is None or solution.fits(options.capacity)
  if not fits:
    print(
      f"no placement within {options.capacity} bytes was found, nor shown to be"
      " impossible",
      file=sys.stderr,
    )
  return 0 if fits else _EXIT_DOES_NOT_FIT


def _run_pools(options: argparse.Namespace) -> int:
  from jaxmem import placement

  if options.capacity is not None:
    raise UsageError("--capacity and --pools exclude each other")
  try:
    problem = placement.from_csv(_read(options.problem))
    capacities = [int(text) for text in options.pools.split(",")]
    solution = placement.fill_pools(problem, capacities)
  except ValueError as error:
    raise UsageError(f"{options.problem}: {error}") from error
  num_inside = sum(spot is not None for spot in solution.places)
  print(
    f"{num_inside} of {len(problem.buffers)} buffers in pools, the others cost"
    f" {solution.cost}, {solution.status}: no choice costs less than"
    f" {solution.lower_bound} ({solution.method}, {solution.seconds:.2f} s)"
  )
  if options.output is not None:
    _save(options.output, placement.to_csv(problem, solution))
  return 0


def _run_demo(options: argparse.Namespace) -> int:
  _stay_on_cpu()
  from jaxmem.demo import main as demo

  return demo.run(quick=options.quick)


def _run_plan(options: argparse.Namespace) -> int:
  import jaxmem

  _check_target(options.target, options.memory_limit)
  step = load(options.factory, *_described(options))
  try:
    plan = jaxmem.plan(
      step.function,
      *step.args,
      target=options.target,
      memory_limit=options.memory_limit,
      options=jaxmem.Options(effort=options.effort),
      **step.jit_kwargs,
    )
  except jaxmem.InfeasibleError as error:
    print(error, file=sys.stderr)
    return _EXIT_DOES_NOT_FIT
  print(plan)
  if options.json is not None:
    _write(options.json, plan.save)
  if options.html is not None:
    _write(options.html, plan.save_html)
  if options.frontier is not None:
    frontier = plan.frontier()
    print(frontier)
    if options.frontier:
      _write(options.frontier, frontier.save_html)
  return 0


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
  _stay_on_cpu()
  if target.platform == "cuda":
    try:
      target.topology()
    except (RuntimeError, ValueError) as error:
      raise UsageError(error) from error


def _stay_on_cpu() -> None:
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


def _load_on_cpu(path: str) -> FactoryStep:
  """Loads a factory for a command that only traces its step."""
  _stay_on_cpu()
  step = load(path)
  if hasattr(step.function, "lower"):
    raise UsageError(
      f"{path}: the step is already jitted; return the function itself, and"
      " jit's keywords as the third element"
    )
  return step


def _write(path: str, save: Callable[[str], None]) -> None:
  try:
    save(path)
  except OSError as error:
    raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _read(path: str) -> str:
  try:
    with open(path, encoding="utf-8") as file:
      return file.read()
  except OSError as error:
    raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _save(path: str, text: str) -> None:
  def save(path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
      file.write(text)

  _write(path, save)
