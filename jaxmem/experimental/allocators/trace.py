"""What an allocator is asked for, and what it answers.

    trace = from_graph(graph, order)
    result = SomeAllocator(...).run(trace)
    check_result(trace, result)

A trace is the sequence of allocations and deallocations that a step makes when
its nodes run one after another. An allocator of the literature, dynamic or
static, answers with a place in a segment of device memory for each buffer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from jaxmem.graph import Buffer, Graph, check_order, live_ranges
from jaxmem.order import reachability

Owner = Literal["caller", "allocator"]


class OutOfMemoryError(MemoryError):
  """An allocator cannot serve a request within its limit.

  Attributes:
    buffer: Name of the buffer that was asked for.
    requested_bytes: Its size.
    reserved_bytes: What the allocator held of the device.
    limit_bytes: What it may hold.
  """

  def __init__(
    self,
    allocator: str,
    buffer: str,
    *,
    requested_bytes: int,
    reserved_bytes: int,
    limit_bytes: int,
  ):
    super().__init__(
      f"{allocator}: out of memory: {buffer!r} needs {requested_bytes} bytes,"
      f" {reserved_bytes} are reserved already and the limit is {limit_bytes}."
      " Raise the limit, or plan the step with jaxmem."
    )
    self.buffer = buffer
    self.requested_bytes = requested_bytes
    self.reserved_bytes = reserved_bytes
    self.limit_bytes = limit_bytes


class Event(NamedTuple):
  """One call of an allocator.

  Attributes:
    kind: Whether memory is asked for or given back.
    buffer: Which of the trace's buffers.
    size_bytes: Its size, positive.
    step: The step of the order during which it happens: allocations before the
      node runs, deallocations after it.
  """

  kind: Literal["alloc", "free"]
  buffer: int
  size_bytes: int
  step: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
  """The allocations of a step, in the order in which they happen.

  Attributes:
    graph: The program.
    order: The order in which its nodes run.
    buffers: The graph's buffers, then one for the extra bytes of each node that
      has any, touched by that node only.
    events: Every buffer is allocated at most once, and freed at most once,
      afterwards. What is not the allocator's has no event: empty buffers, and
      the caller's inputs or outputs.
    reusable: For buffers that may be written over an operand: the operands that
      die at the node which defines it, in the graph's order. Both have events.
  """

  graph: Graph
  order: tuple[int, ...]
  buffers: tuple[Buffer, ...]
  events: tuple[Event, ...]
  reusable: dict[int, tuple[int, ...]]

  @property
  def requested(self) -> tuple[int, ...]:
    """The buffers that are allocated, in the order of their allocation."""
    return tuple(e.buffer for e in self.events if e.kind == "alloc")

  @functools.cached_property
  def live_steps(self) -> np.ndarray:
    """Half-open range of steps of each buffer, int64 `[num_buffers, 2]`."""
    ranges = np.zeros((len(self.buffers), 2), np.int64)
    for event in self.events:
      if event.kind == "alloc":
        ranges[event.buffer] = event.step, len(self.order)
      else:
        ranges[event.buffer, 1] = event.step + 1
    return ranges

  @functools.cached_property
  def closure(self) -> tuple[list[int], list[int]]:
    """The graph's ancestors and descendants; see `reachability.closure`."""
    return reachability.closure(self.graph)

  @property
  def total_bytes(self) -> int:
    """The bytes of all requests: what is needed if no memory is reused."""
    return sum(e.size_bytes for e in self.events if e.kind == "alloc")

  @functools.cached_property
  def live_peak_bytes(self) -> int:
    """The most bytes live at once, if nothing is written over an operand."""
    live, peak = 0, 0
    for event in self.events:
      live += event.size_bytes if event.kind == "alloc" else -event.size_bytes
      peak = max(peak, live)
    return peak


class Segment(NamedTuple):
  """A piece of device memory that an allocator holds for some time.

  Attributes:
    size_bytes: Its size.
    start: The event of the trace at which it is taken from the device.
    end: The event at which it is given back; the number of events if never.
      Half-open: while event `end` is served, the segment is gone.
  """

  size_bytes: int
  start: int
  end: int


class Placement(NamedTuple):
  """Where a buffer is: a segment, and the offset in it in bytes."""

  segment: int
  offset_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What an allocator made of a trace.

  Attributes:
    allocator: Its name and what it was set to.
    placements: Per buffer of the trace; None for those without events.
    segments: The device memory that was held; never moved nor resized.
    peak_bytes: The most bytes handed out at once, with what the allocator
      rounds up and what it has not yet taken back; of each place that several
      buffers share, once.
    added_edges: Pairs of nodes (earlier, later): precedences that the sharing
      needs where nodes may run in parallel. See `check_result`.
  """

  allocator: str
  placements: tuple[Placement | None, ...]
  segments: tuple[Segment, ...]
  peak_bytes: int
  added_edges: tuple[tuple[int, int], ...] = ()

  @property
  def reserved_bytes(self) -> int:
    """The most bytes held of the device at any time."""
    changes = [(s.start, s.size_bytes) for s in self.segments]
    changes += [(s.end, -s.size_bytes) for s in self.segments]
    held, peak = 0, 0
    # What ends at an event is gone before that event takes more.
    for _, change in sorted(changes):
      held += change
      peak = max(peak, held)
    return peak

  @property
  def fragmentation_bytes(self) -> int:
    """Bytes reserved beyond those handed out at the peak."""
    return self.reserved_bytes - self.peak_bytes

  @property
  def fragmentation(self) -> float:
    """The share of the reserved bytes that was never handed out at once."""
    reserved = self.reserved_bytes
    return self.fragmentation_bytes / reserved if reserved else 0.0


class Allocator(Protocol):
  """A way to find memory for the buffers of a trace; deterministic."""

  @property
  def name(self) -> str:
    """What to call it in tables, settings included."""
    ...

  def run(self, trace: Trace) -> Result:
    """Serves a trace.

    Raises:
      OutOfMemoryError: If the allocator has a limit, and it does not suffice.
    """
    ...


def from_graph(
  graph: Graph,
  order: Sequence[int] | None = None,
  *,
  inputs: Owner = "caller",
  outputs: Owner = "allocator",
) -> Trace:
  """Returns the allocations of a program in an order.

  Before a node runs, what it defines and its extra bytes are allocated; after
  it has run, what it was the last to touch is freed, in the order in which it
  was allocated. Outputs stay.

  Args:
    graph: The program.
    order: A topological order of its nodes; the compiler's if None.
    inputs: Who owns the memory of what is live at the start. The allocator's
      inputs are allocated before everything else, and freed after their last
      use if they are not live at the end.
    outputs: Who owns the memory of what is live at the end and is not an input.

  Raises:
    ValidationError: If the order is not topological.
  """
  order = tuple(range(graph.num_nodes) if order is None else order)
  check_order(graph, order)
  buffers = graph.buffers + tuple(
    Buffer(
      name=f"{node.name} scratch",
      size_bytes=node.extra_bytes,
      touchers=(index,),
      definer=index,
      source=node.source,
    )
    for index, node in enumerate(graph.nodes)
    if node.extra_bytes
  )
  events = _events(graph, order, buffers, inputs, outputs)
  freed_at = {e.buffer: e.step for e in events if e.kind == "free"}
  return Trace(
    graph=graph,
    order=order,
    buffers=buffers,
    events=events,
    reusable=_reusable(graph, order, events, freed_at),
  )


def arena_result(
  trace: Trace,
  allocator: str,
  offsets: dict[int, int],
  *,
  added_edges: Sequence[tuple[int, int]] = (),
) -> Result:
  """Returns the result of a static plan: one segment for the whole step.

  Args:
    trace: What was planned.
    allocator: The planner's name.
    offsets: Buffer -> offset in bytes, for all that are requested.
    added_edges: See `Result`.
  """
  height_bytes = max(
    (o + trace.buffers[b].size_bytes for b, o in offsets.items()), default=0
  )
  return Result(
    allocator=allocator,
    placements=tuple(
      Placement(0, offsets[b]) if b in offsets else None
      for b in range(len(trace.buffers))
    ),
    segments=(Segment(height_bytes, 0, len(trace.events)),),
    peak_bytes=height_bytes,
    added_edges=tuple(added_edges),
  )


def _events(
  graph: Graph,
  order: tuple[int, ...],
  buffers: tuple[Buffer, ...],
  inputs: Owner,
  outputs: Owner,
) -> tuple[Event, ...]:
  ranges = live_ranges(graph, order)
  positions = {node: step for step, node in enumerate(order)}
  calls = []
  for index, buffer in enumerate(buffers):
    owner = inputs if buffer.live_at_start else "allocator"
    if buffer.live_at_end and not buffer.live_at_start:
      owner = outputs
    if owner == "caller" or not buffer.size_bytes:
      continue
    if index < graph.num_buffers:
      start, end = ranges[index].tolist()
    else:
      start = positions[buffer.touchers[0]]
      end = start + 1
    # Inputs are allocated before what the first step defines.
    when = -1 if buffer.live_at_start else start
    calls.append((when, 0, when, index, max(start, 0)))
    if not buffer.live_at_end and buffer.touchers:
      calls.append((end - 1, 1, when, index, end - 1))
  return tuple(
    Event(("alloc", "free")[kind], index, buffers[index].size_bytes, step)  # pyright: ignore
    for _, kind, _, index, step in sorted(calls)
  )


def _reusable(
  graph: Graph,
  order: tuple[int, ...],
  events: tuple[Event, ...],
  freed_at: dict[int, int],
) -> dict[int, tuple[int, ...]]:
  requested = {e.buffer for e in events}
  found: dict[int, list[int]] = {}
  for step, node in enumerate(order):
    for operand, output in graph.nodes[node].shares:
      if output in requested and freed_at.get(operand) == step:
        found.setdefault(output, []).append(operand)
  return {output: tuple(operands) for output, operands in found.items()}
