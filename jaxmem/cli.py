"""`python -m jaxmem`: run a script, plan a step, place buffers, or see a demo.

Nothing here touches jax's backends before a command asks for them, so that
planning for a device that is not here can keep jax on the CPU.

Exit codes:
  0: Done.
  1: It does not fit: no plan the memory limit, or no placement the capacity.
    Also if the demo's outputs differ.
  2: The command was wrong; one line on stderr says how.
  3: The factory or the step raised an error; the traceback is on stderr.
  4: The step fits, but takes more than `check` allows it to have grown.
  5: jaxmem failed, or XLA did; the traceback is on stderr.

`run` ends as its script does.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from jaxmem import exit_codes, plan_commands
from jaxmem.factories import FactoryStep, StepFailedError, UsageError, load
from jaxmem.plan_commands import stay_on_cpu, write
from jaxmem.version import __version__


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
    return exit_codes.WRONG_COMMAND
  except BrokenPipeError:  # As in `python -m jaxmem plan ... | head`.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_codes.JAXMEM_FAILED
  except StepFailedError as failed:
    # Left to itself, Python would exit with 1: "it does not fit".
    traceback.print_exception(failed.__cause__)
    return exit_codes.STEP_FAILED
  except Exception:
    traceback.print_exc()
    return exit_codes.JAXMEM_FAILED


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
    ("plan", plan_commands.add_plan, "plan a step and print the plan"),
    (
      "check",
      plan_commands.add_check,
      "plan a step and fail if it grew since a saved plan",
    ),
    ("diff", plan_commands.add_diff, "say what grew between two plans"),
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
    return exit_codes.DOES_NOT_FIT
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
  return 0 if fits else exit_codes.DOES_NOT_FIT


def _run_pools(options: argparse.Namespace) -> int:
  from jaxmem import placement

  if options.capacity is not None:
    raise UsageError("--capacity and --pools exclude each other")
  capacities = _capacities(options.pools)
  try:
    problem = placement.from_csv(_read(options.problem))
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


def _capacities(written: str) -> list[int]:
  try:
    return [int(text) for text in written.split(",")]
  except ValueError as error:
    raise UsageError(
      "--pools must be the capacities of pools in bytes, such as 4096,65536,"
      f" got {written[:60]!r}"
    ) from error


def _run_demo(options: argparse.Namespace) -> int:
  stay_on_cpu()
  from jaxmem.demo import main as demo

  return demo.run(quick=options.quick)


def _load_on_cpu(path: str) -> FactoryStep:
  """Loads a factory for a command that only traces its step."""
  stay_on_cpu()
  step = load(path)
  if hasattr(step.function, "lower"):
    raise UsageError(
      f"{path}: the step is already jitted; return the function itself, and"
      " jit's keywords as the third element"
    )

  @functools.wraps(step.function)
  def function(*args: Any, **kwargs: Any) -> Any:
    try:
      return step.function(*args, **kwargs)
    except Exception as error:
      raise StepFailedError from error

  return step._replace(function=function)


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

  write(path, save)
