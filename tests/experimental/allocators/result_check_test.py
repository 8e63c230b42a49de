"""The validator of allocators, against execution on owners of bytes."""

import dataclasses
import itertools
import random
import re

import pytest
import random_graphs

from jaxmem.experimental import allocators
from jaxmem.experimental.allocators import result_check
from jaxmem.experimental.allocators.parallel import with_sharing_edges
from jaxmem.experimental.allocators.result_check import occupied_bytes
from jaxmem.graph import Buffer, ValidationError


def _is_valid(trace, result, **kwargs):
  try:
    allocators.check_result(trace, result, **kwargs)
  except ValidationError:
    return False
  return True


def _cells(trace, result):
  """The bytes of each buffer that has any."""
  return {
    buffer: {
      (place.segment, place.offset_bytes + byte)
      for byte in range(trace.buffers[buffer].size_bytes)
    }
    for buffer, place in enumerate(result.placements)
    if place is not None
  }


def _runs(trace, result, order):
  """Executes nodes one by one; whether all that is read is still there."""
  graph = trace.graph
  owner = {}
  placed = _cells(trace, result)

  def is_intact(buffer):
    return all(owner.get(cell) == buffer for cell in placed[buffer])

  for node in order:
    touched = [b for b in placed if node in trace.buffers[b].touchers]
    outputs = [b for b in touched if trace.buffers[b].definer == node]
    operands = [b for b in touched if b not in outputs]
    if not all(map(is_intact, operands)):
      return False
    for output in outputs:
      for operand in operands:
        is_over = result.placements[operand] == result.placements[output]
        may_be = (operand, output) in graph.nodes[node].shares and is_over
        if not may_be and not placed[output].isdisjoint(placed[operand]):
          return False
      owner |= dict.fromkeys(placed[output], output)
    if not all(map(is_intact, outputs)):
      return False
  return all(is_intact(b) for b in placed if trace.buffers[b].live_at_end)


def _races(trace, result, orders):
  """Whether nodes that may run at the same time touch bytes in common."""
  placed = _cells(trace, result)
  ordered = {
    (a, b)
    for a, b in itertools.permutations(orders[0], 2)
    if all(order.index(a) < order.index(b) for order in orders)
  }
  for a, b in itertools.combinations(orders[0], 2):
    if (a, b) in ordered or (b, a) in ordered:
      continue
    for one, other in itertools.permutations(placed, 2):
      if (
        a in trace.buffers[one].touchers
        and b in trace.buffers[other].touchers
        and not placed[one].isdisjoint(placed[other])
      ):
        return True
  return False


def _random_result(trace, seed):
  """Places buffers at random, with a bias to the places of operands."""
  rng = random.Random(seed)
  offsets = {}
  for buffer in trace.requested:
    operands = [o for o in trace.reusable.get(buffer, ()) if o in offsets]
    if operands and rng.random() < 0.6:
      offsets[buffer] = offsets[rng.choice(operands)]
    else:
      offsets[buffer] = rng.randrange(trace.total_bytes + 1)
  return allocators.arena_result(trace, "random", offsets)


def test_accepts_exactly_what_runs_in_every_order():
  num_serial = num_parallel = 0
  for seed in range(1500):
    graph = random_graphs.random_graph(seed % 100, 5)
    trace = allocators.from_graph(
      graph, random_graphs.sample_orders(graph, 1, seed)[0]
    )
    result = _random_result(trace, seed)
    serial = _runs(trace, result, trace.order)
    orders = list(random_graphs.all_orders(graph))
    parallel = not _races(trace, result, orders) and all(
      _runs(trace, result, order) for order in orders
    )
    assert _is_valid(trace, result) == serial, seed
    assert _is_valid(trace, result, parallel=True) == parallel, seed
    num_serial += serial
    num_parallel += parallel
  # Many are safe in the trace's order only.
  assert num_parallel > 30
  assert num_serial > num_parallel + 30


@pytest.mark.parametrize("num_pairs", [1, 7, 1000])
def test_every_pair_is_named_however_many_are_compared_at_once(
  monkeypatch, num_pairs
):
  monkeypatch.setattr(result_check, "_NUM_PAIRS", num_pairs)
  values = [(f"v{number}", 1 + number % 5, "") for number in range(12)]
  trace = allocators.from_graph(random_graphs.dataflow(values))
  # Two of three values meet: places are 3 bytes apart, sizes up to 5.
  offsets = {number: 3 * (number // 2) for number in range(12)}
  result = allocators.arena_result(trace, "crowded", offsets)
  ends = [offsets[n] + size for n, (_, size, _) in enumerate(values)]
  meeting = {
    frozenset((f"v{a}", f"v{b}"))
    for a, b in itertools.combinations(range(12), 2)
    if offsets[a] < ends[b] and offsets[b] < ends[a]
  }
  with pytest.raises(ValidationError) as caught:
    allocators.check_result(trace, result, parallel=True)
  named = [
    frozenset(re.findall("'(.*?)'", fault)) for fault in caught.value.faults
  ]
  assert len(named) == len(meeting)
  assert {*named} == meeting
  allocators.check_result(trace, result)


def test_what_is_covered_is_the_most_over_all_events():
  for seed in range(200):
    graph = random_graphs.random_graph(seed % 50, 7)
    trace = allocators.from_graph(
      graph, random_graphs.sample_orders(graph, 1, seed)[0]
    )
    for result in (
      _random_result(trace, seed),
      allocators.Mxnet().run(trace),
      allocators.AutoGrowth().run(trace),
    ):
      cells, live, most = _cells(trace, result), set(), 0
      for event in trace.events:
        if event.kind == "alloc":
          live.add(event.buffer)
        else:
          live.remove(event.buffer)
        most = max(most, len(set().union(*(cells[b] for b in live))))
      assert occupied_bytes(trace, result) == most


def test_edges_are_obeyed_and_checked_for_cycles():
  graph = random_graphs.dataflow([("a", 4, ""), ("b", 4, "")])
  trace = allocators.from_graph(graph)
  result = allocators.arena_result(trace, "same place", {0: 0, 1: 0})
  allocators.check_result(trace, result)
  with pytest.raises(ValidationError, match="'a' and 'b' share bytes"):
    allocators.check_result(trace, result, parallel=True)
  safe = with_sharing_edges(trace, result)
  assert safe.added_edges == ((0, 1),)
  allocators.check_result(trace, safe, parallel=True)
  cyclic = dataclasses.replace(result, added_edges=((0, 1), (1, 0)))
  with pytest.raises(ValidationError, match="cycle"):
    allocators.check_result(trace, cyclic, parallel=True)


def _chain():
  """x (8 bytes) -> y (4) -> z (2, an output)."""
  nodes = [("x", 8, ""), ("y", 4, "x"), ("z", 2, "y")]
  graph = random_graphs.dataflow(nodes)
  buffers = (
    *graph.buffers[:2],
    dataclasses.replace(graph.buffers[2], live_at_end=True),
  )
  return dataclasses.replace(graph, buffers=buffers)


def test_a_trace_allocates_before_and_frees_after_a_node():
  trace = allocators.from_graph(_chain())
  # x, y, then x goes; z, then y goes; z stays.
  assert [e[:3] for e in trace.events] == [
    ("alloc", 0, 8),
    ("alloc", 1, 4),
    ("free", 0, 8),
    ("alloc", 2, 2),
    ("free", 1, 4),
  ]
  assert [e.step for e in trace.events] == [0, 1, 1, 2, 2]
  assert (trace.total_bytes, trace.live_peak_bytes) == (14, 12)
  assert trace.live_steps.tolist() == [[0, 2], [1, 3], [2, 3]]
  inner = allocators.from_graph(_chain(), outputs="caller")
  assert inner.total_bytes == 12


def test_a_trace_owns_inputs_and_scratch_on_demand():
  given = Buffer(
    name="w", size_bytes=5, touchers=(0,), definer=None, live_at_start=True
  )
  graph = random_graphs.build([()], [given], extra_bytes=[3])
  assert allocators.from_graph(graph).total_bytes == 3
  trace = allocators.from_graph(graph, inputs="allocator")
  assert [e[:2] for e in trace.events] == [
    ("alloc", 0),
    ("alloc", 1),
    ("free", 0),
    ("free", 1),
  ]
  assert trace.buffers[1].name == "n0 scratch"


def _good():
  trace = allocators.from_graph(_chain())
  return trace, allocators.arena_result(trace, "good", {0: 0, 1: 8, 2: 0})


def _at(result, buffer, *place):
  places = list(result.placements)
  places[buffer] = allocators.Placement(*place) if place else None
  return dataclasses.replace(result, placements=tuple(places))


MUTATIONS = {
  "overlap": (lambda r: _at(r, 1, 0, 4), "'x' and 'y' share bytes"),
  "missing": (lambda r: _at(r, 1), "'y' has no place"),
  "outside": (lambda r: _at(r, 1, 0, 9), "takes bytes 9 to 13 of a segment"),
  "negative": (lambda r: _at(r, 1, 0, -1), "takes bytes -1"),
  "no segment": (lambda r: _at(r, 1, 1, 0), "segment 1, which does not exist"),
  "late": (
    lambda r: dataclasses.replace(
      r, segments=(r.segments[0]._replace(start=1),)
    ),
    "'x' is live from event 0 to 2, but its segment is there from 1",
  ),
  "early": (
    lambda r: dataclasses.replace(r, segments=(r.segments[0]._replace(end=4),)),
    "'y' is live from event 1 to 4",
  ),
  "too good": (
    lambda r: dataclasses.replace(r, peak_bytes=11),
    "from the 12 bytes that buffers cover",
  ),
  "too bad": (
    lambda r: dataclasses.replace(r, peak_bytes=13),
    "to the 12 reserved, got 13",
  ),
  "short": (
    lambda r: dataclasses.replace(r, placements=r.placements[:2]),
    "3 buffers, 2 placements",
  ),
}


def test_a_good_result_passes():
  trace, result = _good()
  allocators.check_result(trace, result)
  allocators.check_result(trace, result, parallel=True)
  assert result.reserved_bytes == occupied_bytes(trace, result) == 12


@pytest.mark.parametrize("name", MUTATIONS)
def test_names_each_fault(name):
  trace, result = _good()
  mutate, message = MUTATIONS[name]
  with pytest.raises(ValidationError, match=message):
    allocators.check_result(trace, mutate(result))


def test_reserved_bytes_are_the_most_held_at_once():
  segments = (
    allocators.Segment(10, 0, 3),
    allocators.Segment(7, 3, 5),
    allocators.Segment(2, 2, 4),
  )
  result = allocators.Result(
    allocator="", placements=(), segments=segments, peak_bytes=9
  )
  # Events 0-1: 10; 2: 12; 3: 9; 4: 7.
  assert result.reserved_bytes == 12
  assert result.fragmentation_bytes == 3
  assert result.fragmentation == pytest.approx(0.25)
