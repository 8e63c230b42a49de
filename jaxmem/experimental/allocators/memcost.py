"""What a step costs under each strategy, training and forward only.

The question of MXNet's memcost script, for all allocators of this package. What
counts are the values between: arguments and outputs are the caller's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from jax.extend import core

from jaxmem import order
from jaxmem.experimental.allocators.caching import Caching
from jaxmem.experimental.allocators.coarse import by_scope
from jaxmem.experimental.allocators.eager_deletion import EagerDeletion
from jaxmem.experimental.allocators.loop_bodies import with_planned_loops
from jaxmem.experimental.allocators.mxnet import Mxnet, MxnetColoring
from jaxmem.experimental.allocators.nnc import Nnc
from jaxmem.experimental.allocators.paddle import AutoGrowth, NaiveBestFit
from jaxmem.experimental.allocators.parallel import with_sharing_edges
from jaxmem.experimental.allocators.result_check import check_result
from jaxmem.experimental.allocators.static import Static
from jaxmem.experimental.allocators.trace import (
  Allocator,
  OutOfMemoryError,
  Trace,
  from_graph,
)
from jaxmem.experimental.allocators.views import slice_views, with_views
from jaxmem.experimental.jaxpr_order import JaxprGraph, from_jaxpr
from jaxmem.graph import Graph

Pass = Literal["training", "forward"]
BASELINE = "mxnet no sharing"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
  """What one strategy makes of one pass.

  Attributes:
    strategy: Its name.
    reserved_bytes: What it holds of the device at most; None if the device's
      memory, or its limit, does not suffice.
    peak_bytes: The most bytes it hands out at once; None like the former.
    num_segments: How often it takes memory from the device.
    num_added_edges: Precedences that it needs besides the graph's where nodes
      may run in parallel; 0 if it is safe by itself.
  """

  strategy: str
  reserved_bytes: int | None
  peak_bytes: int | None = None
  num_segments: int = 0
  num_added_edges: int = 0

  @property
  def fragmentation(self) -> float | None:
    """The share of the reserved bytes that was never handed out at once."""
    if not self.reserved_bytes or self.peak_bytes is None:
      return None
    return 1 - self.peak_bytes / self.reserved_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
  """The costs of one pass.

  Attributes:
    which: "training" is the whole step.
    num_nodes: Nodes of its graph.
    total_bytes: All values together.
    live_peak_bytes: The values live at once in program order, none written over
      another.
    costs: One per strategy.
  """

  which: Pass
  num_nodes: int
  total_bytes: int
  live_peak_bytes: int
  costs: tuple[Cost, ...]


def strategies(
  available_bytes: int, *, limit_bytes: int | None = None
) -> tuple[Allocator, ...]:
  """Returns the strategies of the table.

  Args:
    available_bytes: Memory of the device.
    limit_bytes: What a dynamic allocator may take of it; None for all.
  """
  limit_bytes = min(available_bytes, limit_bytes or available_bytes)
  return (
    Mxnet(in_place=False, sharing=False),
    Mxnet(in_place=True, sharing=False),
    Mxnet(in_place=False, sharing=True),
    Mxnet(),
    Mxnet(match_range=None),
    MxnetColoring(),
    Mxnet(safety="edges"),
    Mxnet(safety="ancestors"),
    Mxnet(safety="paths"),
    MxnetColoring(safety="ancestors"),
    Nnc(),
    Nnc(in_place=True),
    Nnc(safety="ancestors"),
    Caching(limit_bytes=limit_bytes),
    AutoGrowth(limit_bytes=limit_bytes, in_place=False),
    AutoGrowth(limit_bytes=limit_bytes),
    AutoGrowth(limit_bytes=limit_bytes, fit="best"),
    *(
      AutoGrowth(limit_bytes=limit_bytes, garbage=garbage)
      for garbage in (
        EagerDeletion(threshold_gb=1.0),
        EagerDeletion(fraction=0.6),
        EagerDeletion(fast=False),
        EagerDeletion(threshold_gb=-1),
      )
    ),
    *(
      NaiveBestFit(
        available_bytes=available_bytes,
        fraction=fraction,
        limit_bytes=limit_bytes,
      )
      for fraction in (0.92, 0.4, 0.0)
    ),
    Static(method="tflite"),
    Static(method="xla"),
    Static(method="jaxmem", use_solver=False),
  )


def forward_only(program: JaxprGraph) -> JaxprGraph | None:
  """Returns the part of a step that no backward pass is needed for.

  The outputs that depend on no transposed equation, the loss for example, and
  what these need.

  Args:
    program: The step.

  Returns:
    The graph of that part; None if the step has no such outputs, or no
    backward pass.
  """
  jaxpr = program.closed_jaxpr
  needs_backward: set[core.Var] = set()
  for eqn, is_backward in zip(jaxpr.eqns, program.is_backward, strict=True):
    if is_backward or not needs_backward.isdisjoint(
      atom for atom in eqn.invars if isinstance(atom, core.Var)
    ):
      needs_backward.update(eqn.outvars)
  defined = {var for eqn in jaxpr.eqns for var in eqn.outvars}
  outvars = [
    v for v in jaxpr.outvars if v in defined and v not in needs_backward
  ]
  if not needs_backward or not outvars:
    return None
  # What only the backward pass reads falls away with it.
  return from_jaxpr(
    jaxpr.replace(
      outvars=outvars,
      debug_info=jaxpr.debug_info._replace(result_paths=("",) * len(outvars)),
    ),
    is_donated=program.is_donated,
    model=program.model,
  )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
  """What is made of a program before its values are given memory.

  Attributes:
    is_coarse: Whether the equations of a name scope are one operator.
    has_views: Whether contiguous slices of a value take no memory of their own.
    plans_loops: Whether a strategy also places what is within a loop, instead
      of the loop taking just what is live there at once.
  """

  is_coarse: bool = False
  has_views: bool = False
  plans_loops: bool = False

  def graph(self, program: JaxprGraph, allocator: Allocator | None) -> Graph:
    """Returns the graph of a program.

    Args:
      program: The program.
      allocator: Who plans the loops; None to leave them.

    Raises:
      OutOfMemoryError: If a loop needs more than the allocator may take.
    """
    if self.has_views:
      viewed = with_views(program.graph, slice_views(program))
      program = dataclasses.replace(program, graph=viewed)
    if self.plans_loops and allocator is not None:
      planned = with_planned_loops(program, allocator)
      program = dataclasses.replace(program, graph=planned)
    return by_scope(program) if self.is_coarse else program.graph


def tables(
  program: JaxprGraph,
  allocators: Sequence[Allocator],
  extensions: Extensions | None = None,
  show: Callable[[str], None] = lambda what: None,
) -> Iterator[CostTable]:
  """Yields the table of a step, and that of its forward pass if it has one.

  Args:
    program: The step.
    allocators: The strategies.
    extensions: None for none of them.
    show: Told what is done next.

  Raises:
    ValidationError: If a result is wrong.
  """
  forward = forward_only(program)
  passes: tuple[tuple[Pass, JaxprGraph | None], ...] = (
    ("training", program),
    ("forward", forward),
  )
  for which, found in passes:
    if found is not None:
      yield cost_table(
        found, allocators, which, extensions or Extensions(), show
      )


def cost_table(
  program: JaxprGraph,
  allocators: Sequence[Allocator],
  which: Pass,
  extensions: Extensions,
  show: Callable[[str], None],
) -> CostTable:
  """Runs all strategies on one program, and checks every result.

  The last row is jaxmem's placement in the order that jaxmem plans.

  Args:
    program: The program.
    allocators: The strategies.
    which: What to call the program.
    extensions: What becomes of it before.
    show: Told what is done next.

  Raises:
    ValidationError: If a result is wrong.
  """
  graph = extensions.graph(program, None)
  trace = from_graph(graph, outputs="caller")

  def cost(allocator: Allocator, steps: Sequence[int] | None = None) -> Cost:
    if not extensions.plans_loops:
      own = (
        trace if steps is None else from_graph(graph, steps, outputs="caller")
      )
      return measure(own, allocator)
    try:
      own_graph = extensions.graph(program, allocator)
    except OutOfMemoryError:
      return Cost(strategy=allocator.name, reserved_bytes=None)
    return measure(from_graph(own_graph, steps, outputs="caller"), allocator)

  costs = []
  for number, allocator in enumerate(allocators, 1):
    show(f"{which}, {number} of {len(allocators)}: {allocator.name}")
    costs.append(cost(allocator))
  show(f"{which}: planning the order of {graph.num_nodes} operators")
  # The search's own order packs best: close to the program's, it is flat.
  found = order.plan_order(graph, near_initial=False)
  last = cost(Static(method="jaxmem", use_solver=False), found.order)
  name = f"{last.strategy}, jaxmem order"
  return CostTable(
    which=which,
    num_nodes=graph.num_nodes,
    total_bytes=trace.total_bytes,
    live_peak_bytes=trace.live_peak_bytes,
    costs=(*costs, dataclasses.replace(last, strategy=name)),
  )


def measure(trace: Trace, allocator: Allocator) -> Cost:
  """Runs one strategy, and checks its result: in order and in parallel.

  Raises:
    ValidationError: If the result is wrong.
  """
  try:
    result = allocator.run(trace)
  except OutOfMemoryError:
    return Cost(strategy=allocator.name, reserved_bytes=None)
  check_result(trace, result)
  safe = with_sharing_edges(trace, result)
  check_result(trace, safe, parallel=True)
  return Cost(
    strategy=allocator.name,
    reserved_bytes=result.reserved_bytes,
    peak_bytes=result.peak_bytes,
    num_segments=len(result.segments),
    num_added_edges=len(safe.added_edges),
  )
