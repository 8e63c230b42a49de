"""`python -m jaxmem memcost`: what a step costs under each allocator."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from jaxmem import units

_TITLES = {"training": "The whole step", "forward": "Forward only"}


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
    "Prints how much memory the values of a step take under the allocators of"
    " the literature, for the whole step and for its forward pass. Arguments"
    " and outputs do not count. Traces the step; compiles and runs nothing."
  )
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
    "--model",
    choices=("xla", "eager"),
    default="xla",
    help="xla: reshapes cost nothing, and operations may work in place; eager:"
    " every operation gets memory for its results",
  )
  parser.add_argument(
    "--device-memory",
    type=_size,
    default="16GiB",
    metavar="SIZE",
    help="of which chunks are taken in advance (default: 16GiB)",
  )
  parser.add_argument(
    "--limit",
    type=_size,
    metavar="SIZE",
    help="what dynamic allocators may take (default: all of it)",
  )
  parser.add_argument(
    "--json", action="store_true", help="print a JSON row per pass instead"
  )

  def run(options: argparse.Namespace) -> int:
    step = load(options.factory)
    return _run(step, options)

  parser.set_defaults(run=run)


def _size(text: str) -> int:
  try:
    return units.parse_bytes(text, name="the size")
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def _run(step: Any, options: argparse.Namespace) -> int:
  from jaxmem import jaxpr
  from jaxmem.allocators import memcost

  program = jaxpr.from_function(
    step.function,
    *step.args,
    model=options.model,
    jit_kwargs=dict(step.jit_kwargs),
  )
  allocators = memcost.strategies(
    options.device_memory, limit_bytes=options.limit
  )
  found = memcost.tables(program, allocators, is_coarse=options.coarse)
  for number, table in enumerate(found):
    if options.json:
      print(json.dumps(dataclasses.asdict(table)), flush=True)
    else:
      print("\n" * bool(number) + render(table), flush=True)
  return 0


def render(table: Any) -> str:
  """Returns a `memcost.CostTable` as text."""
  from jaxmem.allocators import memcost

  costs = {cost.strategy: cost for cost in table.costs}
  baseline = costs[memcost.BASELINE].reserved_bytes or 0
  width = max(len(name) for name in costs)
  lines = [
    f"{_TITLES[table.which]}: {table.num_nodes} nodes,"
    f" {units.format_bytes(table.total_bytes)} in all values,"
    f" {units.format_bytes(table.live_peak_bytes)} live at once",
    f"{'strategy':{width}}  {'reserved':>9}  {'of none':>7}  {'unused':>6}"
    f"  {'takes':>5}  edges",
  ]
  for name, cost in costs.items():
    if cost.reserved_bytes is None:
      lines.append(f"{name:{width}}  out of memory")
      continue
    share = cost.reserved_bytes / baseline if baseline else 1.0
    lines.append(
      f"{name:{width}}  {units.format_bytes(cost.reserved_bytes):>9}"
      f"  {share:>7.1%}  {cost.fragmentation or 0:>6.1%}"
      f"  {cost.num_segments:>5}  {cost.num_added_edges:>5}"
    )
  return "\n".join(lines)
