"""`python -m jaxmem memcost`: what a step costs under each allocator."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from jaxmem import units

_TITLES = {"training": "The whole step", "forward": "Forward only"}
# This ends both the output and the help.
_COLUMNS = """\
columns:
  held    most bytes that the allocator holds of the device at any time
  of all  held, as a share of the first row, in which no two values share memory
  unused  share of held that is never in use at once: fragmentation
  pieces  how often memory is taken from the device
  waits   pairs of operators of which one has to wait for the other, or memory
          is overwritten, though the program does not order them; 0: safe when
          operators run in parallel
"""
_EPILOG = f"""\
{_COLUMNS}
strategies:
  in-place     an operator writes over an operand that nobody else needs
  sharing      values take the memory of values that are dead
  edges        the waits are added to the program as dependencies
  ancestors    sharing only where the program orders the operators
  paths        sharing only along the same longest path of the program
  threshold, largest, not fast, no eager deletion
               when PaddlePaddle frees what is dead
  fraction     of the device's memory that one piece takes in advance

Each result is checked: nothing is overwritten that is still needed, also when
operators run in parallel and the waits are kept. docs/allocators.md says more.

example:
  python -m jaxmem memcost my_package.train:make_step --coarse
"""


def add_memcost(
  parser: argparse.ArgumentParser, load: Callable[[str], Any]
) -> None:
  """Defines the command.

  Args:
    parser: Its parser.
    load: Imports a factory "pkg.module:name" and returns a step with
      `function`, `args` and `jit_kwargs`.
  """
  parser.description = (
    "Prints how much device memory the values of a step would take under\n"
    "the allocators of other frameworks and of jaxmem: for the whole step,\n"
    "and for its forward pass alone. What counts are the values in between;\n"
    "arguments and outputs are the caller's. Traces the step; compiles and\n"
    "runs nothing."
  )
  parser.epilog = _EPILOG
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  _add_program_options(parser)
  _add_device_options(parser)

  def run(options: argparse.Namespace) -> int:
    step = load(options.factory)
    return _run(step, options)

  parser.set_defaults(run=run)


def _add_program_options(parser: argparse.ArgumentParser) -> None:
  """Defines what says which values there are."""
  parser.add_argument(
    "factory",
    metavar="pkg.module:factory",
    help="as for plan: returns (step, args) or (step, args, jit_kwargs)",
  )
  parser.add_argument(
    "--coarse",
    action="store_true",
    help="one operator for each name scope, as in a framework of layers",
  )
  parser.add_argument(
    "--views",
    action="store_true",
    help="contiguous slices of a value take no memory of their own",
  )
  parser.add_argument(
    "--loops",
    action="store_true",
    help="each strategy also places what is within loops (default: a loop takes"
    " what is live in it at once)",
  )
  parser.add_argument(
    "--model",
    choices=("xla", "eager"),
    default="xla",
    help="xla: reshapes cost nothing, and operations may work in place; eager:"
    " every operation gets memory for its results",
  )


def _add_device_options(parser: argparse.ArgumentParser) -> None:
  """Defines what allocators have, and how the costs are printed."""
  parser.add_argument(
    "--device-memory",
    type=_size,
    default="16GiB",
    metavar="SIZE",
    help="memory of the device, of which some allocators take a fraction in"
    " advance (default: 16GiB)",
  )
  parser.add_argument(
    "--limit",
    type=_size,
    metavar="SIZE",
    help="the most that allocators which take memory while the step runs may"
    " hold (default: all of the device's)",
  )
  parser.add_argument(
    "--json", action="store_true", help="print a JSON row per pass instead"
  )


def _size(text: str) -> int:
  try:
    return units.parse_bytes(text, name="the size")
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def _run(step: Any, options: argparse.Namespace) -> int:
  from jaxmem.experimental import jaxpr_order
  from jaxmem.experimental.allocators import memcost
  from jaxmem.report import Progress

  progress = Progress()
  progress.show("tracing the step")
  program = jaxpr_order.from_function(
    step.function,
    *step.args,
    model=options.model,
    jit_kwargs=dict(step.jit_kwargs),
  )
  allocators = memcost.strategies(
    options.device_memory, limit_bytes=options.limit
  )
  extensions = memcost.Extensions(
    is_coarse=options.coarse,
    has_views=options.views,
    plans_loops=options.loops,
  )
  found = memcost.tables(program, allocators, extensions, progress.show)
  for number, table in enumerate(found):
    progress.close()
    if options.json:
      print(json.dumps(dataclasses.asdict(table)), flush=True)
    else:
      print("\n" * bool(number) + render(table), flush=True)
  progress.close()
  if not options.json:
    print(f"\n{_COLUMNS}", end="")
  return 0


def render(table: Any) -> str:
  """Returns a `memcost.CostTable` as text."""
  from jaxmem.experimental.allocators import memcost

  costs = {cost.strategy: cost for cost in table.costs}
  baseline = costs[memcost.BASELINE].reserved_bytes or 0
  width = max(len(name) for name in costs)
  lines = [
    f"{_TITLES[table.which]}: {table.num_nodes} operators; their values take"
    f" {units.format_bytes(table.total_bytes)}, of which at most"
    f" {units.format_bytes(table.live_peak_bytes)} are needed at once.",
    f"{'strategy':{width}}  {'held':>9}  {'of all':>7}  {'unused':>6}"
    f"  {'pieces':>6}  waits",
  ]
  for name, cost in costs.items():
    if cost.reserved_bytes is None:
      lines.append(f"{name:{width}}  needs more than it may take")
      continue
    share = cost.reserved_bytes / baseline if baseline else 1.0
    lines.append(
      f"{name:{width}}  {units.format_bytes(cost.reserved_bytes):>9}"
      f"  {_share(share):>7}  {cost.fragmentation or 0:>6.1%}"
      f"  {cost.num_segments:>6}  {cost.num_added_edges:>5}"
    )
  held = [c for c in table.costs if c.reserved_bytes is not None]
  least = min(held, key=lambda c: c.reserved_bytes)
  lines.append(
    f"least: {units.format_bytes(least.reserved_bytes)}, {least.strategy}"
  )
  return "\n".join(lines)


def _share(share: float) -> str:
  """Per cent, and multiples where these would not say much."""
  return f"{share:.1%}" if share < 10 else f"{share:.0f} x"
