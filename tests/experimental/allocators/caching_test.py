"""PyTorch's caching allocator: its rules, worked out by hand."""

import pytest
import random_graphs
from allocator_traces import make_trace, places_of

from jaxmem.experimental import allocators
from jaxmem.experimental.allocators.caching import (
  Caching,
  rounded,
  segment_bytes,
)
from jaxmem.graph import Buffer

_KIB = 1 << 10
_MIB = 1 << 20


def _run(trace, **settings):
  result = Caching(**settings).run(trace)
  allocators.check_result(trace, result)
  return result


def _segments(result):
  return [segment.size_bytes for segment in result.segments]


@pytest.mark.parametrize(
  ("asked", "block", "segment"),
  [
    (1, 512, 2 * _MIB),
    (512, 512, 2 * _MIB),
    (513, 1024, 2 * _MIB),
    (_MIB, _MIB, 2 * _MIB),
    # One byte more, and it is large.
    (_MIB + 1, _MIB + 512, 20 * _MIB),
    (10 * _MIB - 1, 10 * _MIB, 10 * _MIB),
    (10 * _MIB - 512, 10 * _MIB - 512, 20 * _MIB),
    (10 * _MIB + 1, 10 * _MIB + 512, 12 * _MIB),
    (34 * _MIB, 34 * _MIB, 34 * _MIB),
  ],
)
def test_sizes(asked, block, segment):
  assert rounded(asked) == block
  assert segment_bytes(block) == segment


def test_small_requests_split_a_segment():
  # b0, b1 and b2 lie side by side. When b3 comes, b0 and b1 are free and
  # joined: it takes their 1536 bytes rather than what is free behind b2.
  trace = make_trace((1000, 0, 0), (300, 0, 0), (512, 0, 2), (1200, 1, 1))
  result = _run(trace)
  assert places_of(result) == [(0, 0), (0, 1024), (0, 1536), (0, 0)]
  assert _segments(result) == [2 * _MIB]
  # 1024 + 512 + 512 at step 0; 512 + 1536 at step 1.
  assert result.peak_bytes == 2048


def test_the_smallest_block_is_taken():
  # Free at step 1: 2 KiB at 0, 1 KiB at 2.5 KiB, and all behind 4 KiB.
  trace = make_trace(
    (2 * _KIB, 0, 0),
    (512, 0, 2),
    (_KIB, 0, 0),
    (512, 0, 2),
    (1000, 1, 1),
  )
  assert places_of(_run(trace))[-1] == (0, 2 * _KIB + 512)


def test_large_remainders_are_split_off_above_a_mebibyte_only():
  # After 2 and 9 of 20 MiB, 9 remain. 8 leave exactly 1, which stays with them.
  trace = make_trace((2 * _MIB, 0, 0), (9 * _MIB, 0, 0), (8 * _MIB, 0, 0))
  result = _run(trace)
  assert places_of(result) == [(0, 0), (0, 2 * _MIB), (0, 11 * _MIB)]
  assert _segments(result) == [20 * _MIB]
  assert result.peak_bytes == 20 * _MIB
  # A block less for the last leaves more than 1 MiB.
  trace = make_trace((2 * _MIB, 0, 0), (9 * _MIB, 0, 0), (8 * _MIB - 512, 0, 0))
  assert _run(trace).peak_bytes == 19 * _MIB - 512


def test_pools_do_not_mix():
  # A free large block does not serve a small request.
  result = _run(make_trace((5 * _MIB, 0, 0), (_KIB, 1, 1)))
  assert places_of(result) == [(0, 0), (1, 0)]
  assert _segments(result) == [20 * _MIB, 2 * _MIB]


def test_segments_do_not_join():
  # 12 and 14 MiB are free, in two segments: 26 MiB need a third.
  result = _run(
    make_trace((12 * _MIB, 0, 0), (14 * _MIB, 0, 0), (26 * _MIB, 1, 1))
  )
  assert _segments(result) == [12 * _MIB, 14 * _MIB, 26 * _MIB]
  assert result.peak_bytes == 26 * _MIB
  assert result.reserved_bytes == 52 * _MIB
  assert result.fragmentation == 0.5


def test_a_full_device_gets_free_segments_back():
  # As above, on a device of 30 MiB: both cached segments are given back.
  values = (12 * _MIB, 0, 0), (14 * _MIB, 0, 0), (26 * _MIB, 1, 1)
  result = _run(make_trace(*values), limit_bytes=30 * _MIB)
  assert result.reserved_bytes == 26 * _MIB
  assert [(s.start, s.end) for s in result.segments] == [(0, 4), (1, 4), (4, 6)]


def test_what_is_in_use_is_not_given_back():
  values = (12 * _MIB, 0, 0), (14 * _MIB, 0, 1), (26 * _MIB, 1, 1)
  with pytest.raises(allocators.OutOfMemoryError, match="'b2' needs") as info:
    _run(make_trace(*values), limit_bytes=30 * _MIB)
  # The free 12 MiB were given back before it gave up.
  assert info.value.reserved_bytes == 14 * _MIB


def test_random_steps_are_served_validly():
  for seed in range(40):
    graph = random_graphs.random_graph(seed, 4 + seed % 12)
    (order,) = random_graphs.sample_orders(graph, 1, seed)
    for inputs in ("caller", "allocator"):
      trace = allocators.from_graph(graph, order, inputs=inputs)
      for in_place in (False, True):
        result = _run(trace, in_place=in_place)
        again = _run(trace, in_place=in_place)
        assert result == again


def test_random_sizes_of_both_pools():
  for seed in range(10):
    graph = random_graphs.train_step(6, seed=seed, num_branches=2)
    buffers = tuple(
      Buffer(
        name=b.name,
        size_bytes=b.size_bytes * (_MIB // 7),
        touchers=b.touchers,
        definer=b.definer,
        live_at_end=b.live_at_end,
      )
      for b in graph.buffers
    )
    graph = random_graphs.build([n.predecessors for n in graph.nodes], buffers)
    trace = allocators.from_graph(graph)
    result = _run(trace)
    assert result.reserved_bytes >= trace.live_peak_bytes
    assert {s.size_bytes % (2 * _MIB) for s in result.segments} == {0}


if __name__ == "__main__":
  raise SystemExit(pytest.main([__file__]))
