"""The check that every allocator's result has to pass.

Recomputes all from the graph and the places, and looks at every pair of buffers
with bytes in common; of what the allocators share it takes the data only.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence

import numpy as np

from jaxmem.experimental.allocators.trace import Placement, Result, Trace
from jaxmem.graph import ValidationError, topological_order

# So many pairs of buffers are looked at together: bounds what that takes.
_NUM_PAIRS = 1 << 17


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
      after = _descendants(trace, result, parallel)
    except ValidationError as error:
      faults.extend(error.faults)
    else:
      faults.extend(_overwritten(trace, result, after))
    faults.extend(_miscounted(trace, result))
  if faults:
    raise ValidationError(faults)


def occupied_bytes(trace: Trace, result: Result) -> int:
  """Returns the most bytes that live buffers cover at once.

  Bytes that two of them share, at the step where one is written over the other,
  count once.
  """
  spans = _spans(trace, result)
  starts, ends = _live_events(trace)
  starts, ends = starts[spans[:, 2]], ends[spans[:, 2]]
  live_bytes = itertools.accumulate(
    (1 if e.kind == "alloc" else -1) * e.size_bytes for e in trace.events
  )
  # No more is covered than is live: where most is live, most may be covered.
  most = 0
  for live, event in sorted(
    ((live, event) for event, live in enumerate(live_bytes)), reverse=True
  ):
    if live <= most:
      break
    is_live = (starts <= event) & (event < ends)
    most = max(most, _covered_bytes(spans[is_live]))
  return most


def _covered_bytes(spans: np.ndarray) -> int:
  """Returns how many bytes spans cover, ascending as `_spans` returns them."""
  low, high = spans[:, 0], spans[:, 1]
  reached = np.maximum.accumulate(high)
  reached = np.concatenate([low[:1], reached[:-1]])
  return int(np.maximum(high - np.maximum(low, reached), 0).sum())


def _live_events(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
  """Returns from which event on each buffer is live, and from which not."""
  starts = np.zeros(len(trace.buffers), np.int64)
  ends = np.full(len(trace.buffers), len(trace.events), np.int64)
  for index, event in enumerate(trace.events):
    (starts if event.kind == "alloc" else ends)[event.buffer] = index
  return starts, ends


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


def _descendants(trace: Trace, result: Result, parallel: bool) -> list[int]:
  """Returns, per node, which ones run after it: bit v for node v."""
  nodes = trace.graph.nodes
  descendants = [0] * len(nodes)
  if not parallel:
    later = 0
    for node in reversed(trace.order):
      descendants[node] = later
      later |= 1 << node
    return descendants
  before = [set(node.predecessors) for node in nodes]
  for earlier, later in result.added_edges:
    before[later].add(earlier)
  order = topological_order(before)
  if len(order) < len(nodes):
    stuck = next(n for n in range(len(nodes)) if n not in set(order))
    raise ValidationError(
      [f"the added edges form a cycle, with or before {nodes[stuck].name!r}"]
    )
  for node in reversed(order):
    found = descendants[node] | 1 << node
    for earlier in before[node]:
      descendants[earlier] |= found
  return descendants


def _overwritten(
  trace: Trace, result: Result, descendants: list[int]
) -> Iterator[str]:
  done = [
    _after_all(descendants, () if b.live_at_end else b.touchers)
    for b in trace.buffers
  ]

  def is_over(first: int, second: int) -> bool:
    """Whether the second may lie over the first, which only its node needs."""
    buffer, writer = trace.buffers[first], trace.buffers[second].definer
    if buffer.live_at_end or writer is None or writer not in buffer.touchers:
      return False
    others = tuple(t for t in buffer.touchers if t != writer)
    return (
      (first, second) in trace.graph.nodes[writer].shares
      and (not others or bool(_after_all(descendants, others) >> writer & 1))
      and result.placements[first] == result.placements[second]
    )

  for a, b in _unordered_pairs(trace, _spans(trace, result), done):
    if not (is_over(a, b) or is_over(b, a)):
      names = f"{trace.buffers[a].name!r} and {trace.buffers[b].name!r}"
      yield f"{names} share bytes while both are needed"


def _after_all(descendants: list[int], nodes: Sequence[int]) -> int:
  """Returns as bits what runs after all of some nodes; nothing for none."""
  if not nodes:
    return 0
  return functools.reduce(operator.and_, (descendants[n] for n in nodes))


def _unordered_pairs(
  trace: Trace, spans: np.ndarray, done: list[int]
) -> Iterator[tuple[int, int]]:
  """Yields the buffers that share bytes, without one before the other.

  Args:
    trace: What was asked for.
    spans: See `_spans`.
    done: Per buffer, as bits the nodes that run when it is done with.
  """
  width = trace.graph.num_nodes // 8 + 1
  rows = b"".join(nodes.to_bytes(width, "little") for nodes in done)
  bits = np.frombuffer(rows, np.uint8).reshape(len(done), width)
  # The number after the last node is in no set.
  definers = np.array(
    [
      trace.graph.num_nodes if b.definer is None else b.definer
      for b in trace.buffers
    ],
    np.int64,
  )

  def is_done(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    writer = definers[second]
    return (bits[first, writer >> 3] >> (writer & 7)) & 1 != 0

  # Each span meets those after it that begin below its end.
  low, high, buffers = spans.T
  counts = np.searchsorted(low, high) - np.arange(len(low)) - 1
  ends = np.cumsum(counts)
  begin = 0
  while begin < len(low):
    # As many spans as have some thousand pairs, and at least one.
    before = ends[begin] - counts[begin]
    end = max(int(np.searchsorted(ends, before + _NUM_PAIRS)), begin + 1)
    here = counts[begin:end]
    one = np.repeat(np.arange(begin, end), here)
    skipped = np.repeat(ends[begin:end] - here, here) - before
    other = one + 1 + np.arange(len(one)) - skipped
    a, b = buffers[one], buffers[other]
    left = ~(is_done(a, b) | is_done(b, a))
    yield from zip(a[left].tolist(), b[left].tolist(), strict=True)
    begin = end


def _miscounted(trace: Trace, result: Result) -> Iterator[str]:
  occupied = occupied_bytes(trace, result)
  if not occupied <= result.peak_bytes <= result.reserved_bytes:
    yield (
      f"the peak must be from the {occupied} bytes that buffers cover to the"
      f" {result.reserved_bytes} reserved, got {result.peak_bytes}"
    )


def _spans(trace: Trace, result: Result) -> np.ndarray:
  """Returns where the requested buffers lie, ascending.

  Args:
    trace: What was asked for.
    result: What was answered; no buffer is outside of its segment.

  Returns:
    Per buffer (low, high, buffer), int64, half-open, in bytes from the begin of
    all segments side by side.
  """
  begins = [0, *itertools.accumulate(s.size_bytes for s in result.segments)]
  spans = []
  for buffer in trace.requested:
    place = result.placements[buffer]
    assert place is not None
    low = begins[place.segment] + place.offset_bytes
    spans.append((low, low + trace.buffers[buffer].size_bytes, buffer))
  return np.array(sorted(spans), np.int64).reshape(-1, 3)
