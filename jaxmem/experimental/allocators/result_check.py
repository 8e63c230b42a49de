"""The check that every allocator's result has to pass.

Recomputes all from the graph and the places, in the most naive way; of what the
allocators share it takes the data only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jaxmem.experimental.allocators.trace import Placement, Result, Trace
from jaxmem.graph import ValidationError, topological_order


def check_result(
  trace: Trace, result: Result, *, parallel: bool = False
) -> None:
  """Checks that no buffer is overwritten while somebody needs it.

  Two buffers may have bytes in common if one is done with before the other
  begins: every node that touches the first runs before the one that defines the
  second. At that node itself, the second may lie over the first if the graph
  lists the pair as a share and both begin at the same byte.

  Args:
    trace: What was asked for.
    result: What was answered.
    parallel: What "before" means: false, in the trace's order; true, in every
      order, and with nodes at the same time, that the graph's precedences
      and the result's added edges allow.

  Raises:
    ValidationError: Names every fault: buffers without a place, or in a segment
      that is too small or not there yet or any more; buffers that overwrite one
      another; added edges that form a cycle; bytes that are counted wrong.
  """
  faults = [*_misplaced(trace, result)]
  if not faults:
    try:
      before = _ancestors(trace, result, parallel)
    except ValidationError as error:
      faults.extend(error.faults)
    else:
      faults.extend(_overwritten(trace, result, before))
    faults.extend(_miscounted(trace, result))
  if faults:
    raise ValidationError(faults)


def occupied_bytes(trace: Trace, result: Result) -> int:
  """Returns the most bytes that live buffers cover at once.

  Bytes that two of them share, at the step where one is written over the other,
  count once.
  """
  most = 0
  for live in _live_sets(trace):
    spans = sorted(_span(trace, result, buffer) for buffer in live)
    covered, reached = 0, (-1, 0)
    for segment, low, high in spans:
      if segment != reached[0]:
        reached = (segment, 0)
      covered += max(0, high - max(low, reached[1]))
      reached = (segment, max(high, reached[1]))
    most = max(most, covered)
  return most


def _misplaced(trace: Trace, result: Result) -> Iterator[str]:
  if len(result.placements) != len(trace.buffers):
    yield (f"{len(trace.buffers)} buffers, {len(result.placements)} placements")
    return
  starts = {e.buffer: t for t, e in enumerate(trace.events) if e[0] == "alloc"}
  ends = {e.buffer: t for t, e in enumerate(trace.events) if e[0] == "free"}
  for index, place in enumerate(result.placements):
    name = trace.buffers[index].name
    if (place is None) == (index in starts):
      yield f"{name!r} has {'no' if place is None else 'a needless'} place"
    elif place is not None:
      fault = _outside(trace, result, index, place)
      if fault:
        yield f"{name!r} {fault}"
        continue
      segment = result.segments[place.segment]
      end = ends.get(index, len(trace.events) - 1)
      if not segment.start <= starts[index] <= end < segment.end:
        yield (
          f"{name!r} is live from event {starts[index]} to {end}, but its"
          f" segment is there from {segment.start} to {segment.end}"
        )


def _outside(trace: Trace, result: Result, index: int, place: Placement) -> str:
  if not 0 <= place.segment < len(result.segments):
    return f"is in segment {place.segment}, which does not exist"
  size_bytes = result.segments[place.segment].size_bytes
  end = place.offset_bytes + trace.buffers[index].size_bytes
  if place.offset_bytes < 0 or end > size_bytes:
    return (
      f"takes bytes {place.offset_bytes} to {end} of a segment of {size_bytes}"
    )
  return ""


def _ancestors(trace: Trace, result: Result, parallel: bool) -> list[int]:
  """Returns, per node, which ones run before it: bit v for node v."""
  nodes = trace.graph.nodes
  before: list[set[int]] = [set() for _ in nodes]
  if parallel:
    before = [set(node.predecessors) for node in nodes]
    for earlier, later in result.added_edges:
      before[later].add(earlier)
  else:
    for earlier, later in itertools.pairwise(trace.order):
      before[later].add(earlier)
  order = topological_order([sorted(b) for b in before])
  if len(order) < len(nodes):
    stuck = next(n for n in range(len(nodes)) if n not in set(order))
    raise ValidationError(
      [f"the added edges form a cycle, with or before {nodes[stuck].name!r}"]
    )
  ancestors = [0] * len(nodes)
  for node in order:
    for earlier in before[node]:
      ancestors[node] |= ancestors[earlier] | 1 << earlier
  return ancestors


def _overwritten(
  trace: Trace, result: Result, ancestors: list[int]
) -> Iterator[str]:
  touchers = [sum(1 << t for t in b.touchers) for b in trace.buffers]

  def is_done(first: int, second: int) -> bool:
    """Whether nobody needs the first when the second is written."""
    buffer, writer = trace.buffers[first], trace.buffers[second].definer
    if buffer.live_at_end or writer is None or not buffer.touchers:
      return False
    if touchers[first] & ~ancestors[writer] == 0:
      return True
    return (
      touchers[first] & ~ancestors[writer] == 1 << writer
      and (first, second) in trace.graph.nodes[writer].shares
      and result.placements[first] == result.placements[second]
    )

  spans = sorted((*_span(trace, result, b), b) for b in trace.requested)
  for number, (segment, _, high, a) in enumerate(spans):
    for other in range(number + 1, len(spans)):
      other_segment, low, _, b = spans[other]
      if other_segment != segment or low >= high:
        break
      if not (is_done(a, b) or is_done(b, a)):
        names = f"{trace.buffers[a].name!r} and {trace.buffers[b].name!r}"
        yield f"{names} share bytes while both are needed"


def _miscounted(trace: Trace, result: Result) -> Iterator[str]:
  occupied = occupied_bytes(trace, result)
  if not occupied <= result.peak_bytes <= result.reserved_bytes:
    yield (
      f"the peak must be from the {occupied} bytes that buffers cover to the"
      f" {result.reserved_bytes} reserved, got {result.peak_bytes}"
    )


def _live_sets(trace: Trace) -> Iterator[set[int]]:
  live: set[int] = set()
  for event in trace.events:
    if event.kind == "alloc":
      live.add(event.buffer)
      yield live
    else:
      live.remove(event.buffer)


def _span(trace: Trace, result: Result, buffer: int) -> tuple[int, int, int]:
  place = result.placements[buffer]
  assert place is not None
  end = place.offset_bytes + trace.buffers[buffer].size_bytes
  return place.segment, place.offset_bytes, end
