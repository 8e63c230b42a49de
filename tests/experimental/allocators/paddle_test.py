"""PaddlePaddle's strategies: the cases of its guide, worked out by hand."""

import pytest
import random_graphs
from allocator_traces import make_trace, places_of

from jaxmem.experimental import allocators
from jaxmem.experimental.allocators.eager_deletion import EagerDeletion
from jaxmem.experimental.allocators.heap import FreeBytes
from jaxmem.experimental.allocators.paddle import AutoGrowth, NaiveBestFit
from jaxmem.graph import Buffer

_GIB = 1 << 30


def _run(allocator, trace):
  result = allocator.run(trace)
  allocators.check_result(trace, result)
  return result


def test_auto_growth_splits_what_it_cached():
  # b0 is freed; b1 and b2 split its block; b3 does not fit any more.
  trace = make_trace((10, 0, 0), (4, 1, 2), (6, 2, 3), (5, 3, 4))
  result = _run(AutoGrowth(), trace)
  assert places_of(result) == [(0, 0), (0, 0), (0, 4), (1, 0)]
  assert [s.size_bytes for s in result.segments] == [10, 5]
  # Nothing is returned: the last segment ends with the trace.
  assert {s.end for s in result.segments} == {len(trace.events)}
  assert (result.peak_bytes, result.reserved_bytes) == (11, 15)


def test_auto_growth_joins_free_neighbours():
  trace = make_trace((10, 0, 0), (4, 1, 1), (6, 1, 1), (10, 2, 2))
  assert places_of(_run(AutoGrowth(), trace))[-1] == (0, 0)


def test_first_and_best_fit_differ():
  # Blocks of 10 and 5 are free when 5 are asked for.
  trace = make_trace((10, 0, 0), (5, 0, 0), (5, 1, 1))
  assert places_of(_run(AutoGrowth(fit="first"), trace))[-1] == (0, 0)
  assert places_of(_run(AutoGrowth(fit="best"), trace))[-1] == (1, 0)


def test_requests_are_rounded_up():
  trace = make_trace((10, 0, 1), (3, 1, 1))
  result = _run(AutoGrowth(alignment_bytes=8), trace)
  assert [s.size_bytes for s in result.segments] == [16, 8]
  assert result.peak_bytes == 24


def test_naive_best_fit_takes_a_chunk():
  trace = make_trace((10, 0, 1), (20, 1, 2))
  result = _run(NaiveBestFit(available_bytes=100), trace)
  assert places_of(result) == [(0, 0), (0, 10)]
  assert [s.size_bytes for s in result.segments] == [92]
  assert (result.peak_bytes, result.reserved_bytes) == (30, 92)
  assert result.fragmentation_bytes == 62


def test_naive_best_fit_takes_the_smallest_block():
  # b0 and b2 are freed around b1 and b3: holes of 8 and of 5, and the rest.
  trace = make_trace((8, 0, 1), (1, 0, 3), (5, 0, 1), (1, 0, 3), (5, 2, 2))
  result = _run(NaiveBestFit(available_bytes=100), trace)
  assert places_of(result)[-1] == (0, 9)


def test_what_is_larger_than_a_chunk_goes_directly():
  trace = make_trace((50, 0, 0), (50, 2, 2), (10, 1, 2))
  result = _run(NaiveBestFit(available_bytes=100, fraction=0.4), trace)
  # 50, given back; then the chunk of 40 with 10 in it; then 50 again.
  assert [s.size_bytes for s in result.segments] == [50, 40, 50]
  assert result.reserved_bytes == 90


def test_another_chunk_is_taken_when_one_is_full():
  trace = make_trace((30, 0, 1), (30, 1, 1))
  result = _run(NaiveBestFit(available_bytes=100, fraction=0.4), trace)
  assert places_of(result) == [(0, 0), (1, 0)]
  assert result.reserved_bytes == 80
  with pytest.raises(allocators.OutOfMemoryError, match="'b1' needs 92 bytes"):
    NaiveBestFit(available_bytes=100).run(make_trace((80, 0, 1), (80, 1, 1)))


def test_fraction_zero_shows_the_true_use():
  trace = make_trace((10, 0, 1), (20, 1, 2), (5, 2, 3))
  result = _run(NaiveBestFit(available_bytes=100, fraction=0), trace)
  assert len(result.segments) == 3
  assert result.reserved_bytes == result.peak_bytes == trace.live_peak_bytes


def test_the_hard_limit_raises():
  trace = make_trace((10, 0, 1), (20, 1, 2))
  assert _run(AutoGrowth(limit_bytes=30), trace).reserved_bytes == 30
  with pytest.raises(allocators.OutOfMemoryError) as caught:
    AutoGrowth(limit_bytes=29).run(trace)
  error = caught.value
  assert (error.buffer, error.requested_bytes) == ("b1", 20)
  assert (error.reserved_bytes, error.limit_bytes) == (10, 29)
  # Memory on the card does not help.
  with pytest.raises(allocators.OutOfMemoryError):
    NaiveBestFit(available_bytes=100, fraction=0, limit_bytes=29).run(trace)


def _reserved(trace, **garbage):
  return _run(AutoGrowth(garbage=EagerDeletion(**garbage)), trace)


def test_garbage_waits_for_the_threshold():
  # Equal values one after another: each dies before the next is allocated.
  trace = make_trace(*((_GIB, step, step) for step in range(6)))
  assert _reserved(trace).reserved_bytes == _GIB
  # 1 GB of garbage is there after each; 2 after two; never after six.
  assert _reserved(trace, threshold_gb=1).reserved_bytes == _GIB
  assert _reserved(trace, threshold_gb=2).reserved_bytes == 2 * _GIB
  assert _reserved(trace, threshold_gb=2.5).reserved_bytes == 3 * _GIB
  assert _reserved(trace, threshold_gb=-1).reserved_bytes == 6 * _GIB


def test_a_fraction_of_the_variables_is_collected_largest_first():
  # Per step one of 3 and one of 1: the largest half are those of 3.
  trace = make_trace(*((size, s, s) for s in range(4) for size in (3, 1)))
  assert _reserved(trace).reserved_bytes == 4
  assert _reserved(trace, fraction=0.5).reserved_bytes == 3 + 4 * 1
  assert _reserved(trace, fraction=0).reserved_bytes == 16
  # Two of 3 are collected, so the next two steps reuse; the fourth cannot.
  assert _reserved(trace, fraction=0.25).reserved_bytes == 4 * 1 + 2 * 3


def test_without_the_fast_mode_a_kernel_must_end_first():
  trace = make_trace(*((4, step, step) for step in range(6)))
  assert _reserved(trace, fast=False).reserved_bytes == 8
  slow = {"fast": False, "kernels_ahead": 2}
  assert _reserved(trace, **slow).reserved_bytes == 12
  assert _reserved(trace, fast=False, kernels_ahead=0).reserved_bytes == 4


def test_in_place_hands_memory_over():
  trace = allocators.from_graph(
    random_graphs.build(
      [(), (0,), (1,)],
      [
        Buffer(name="a", size_bytes=8, touchers=(0, 1), definer=0),
        Buffer(name="b", size_bytes=8, touchers=(1, 2), definer=1),
        Buffer(name="c", size_bytes=4, touchers=(2,), definer=2),
      ],
      shares=[(), ((0, 1),), ((1, 2),)],
    )
  )
  result = _run(AutoGrowth(), trace)
  assert places_of(result) == [(0, 0)] * 3
  assert result.reserved_bytes == 8
  assert _run(AutoGrowth(in_place=False), trace).reserved_bytes == 16


def test_free_bytes_against_a_bitmap():
  free = FreeBytes()
  bitmap = [True] * 64
  free.add(0, 0, 64)
  held = []
  for step in range(400):
    if step % 3 != 2:
      size = 1 + step * 7 % 9
      place = free.take(size, ("first", "best")[step % 2])
      runs = "".join("01"[b] for b in bitmap).split("0")
      assert (place is None) == (max(map(len, runs)) < size)
      if place is not None:
        taken = range(place.offset_bytes, place.offset_bytes + size)
        assert all(bitmap[byte] for byte in taken)
        held.append(taken)
    elif held:
      taken = held.pop(step * 5 % len(held))
      free.add(0, taken.start, len(taken))
    for byte in range(64):
      bitmap[byte] = not any(byte in taken for taken in held)


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_rejects_fractions_outside(fraction):
  with pytest.raises(ValueError, match="from 0 to 1"):
    NaiveBestFit(available_bytes=1, fraction=fraction)
  with pytest.raises(ValueError, match="from 0 to 1"):
    EagerDeletion(fraction=fraction)
