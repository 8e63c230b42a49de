"""NNC's allocator: its insertion worked out by hand, and its alternatives."""

import itertools

import pytest
import random_graphs

from jaxmem.experimental import allocators
from jaxmem.experimental.allocators import nnc
from jaxmem.experimental.allocators.nnc import Nnc


def _run(values, **settings):
  trace = allocators.from_graph(random_graphs.dataflow(values))
  result = Nnc(**settings).run(trace)
  allocators.check_result(trace, result)
  places = [-1 if p is None else p.offset_bytes for p in result.placements]
  return places, result.reserved_bytes


def test_a_chain_alternates_between_two_places():
  values = [("a", 4, ""), ("b", 4, "a"), ("c", 4, "b"), ("d", 4, "c")]
  # b and c have two edges each. b first, at 0; c interferes with it, at 4; then
  # a and d have one: a fits before c, from the source; d after b.
  assert _run(values) == ([4, 0, 4, 0], 8)


def test_the_documents_words_reuse_nothing_of_equal_sizes():
  values = [("a", 4, ""), ("b", 4, "a"), ("c", 4, "b"), ("d", 4, "c")]
  assert _run(values, open_edges=False)[1] == 16


def test_a_part_of_a_tensor_is_reused():
  # p and q both lie where the larger a was.
  values = [("a", 10, ""), ("b", 1, "a"), ("p", 4, "b"), ("q", 6, "b")]
  values += [("r", 1, "pq")]
  places, reserved_bytes = _run(values)
  a, _, p, q, _ = places
  assert a <= p < a + 10
  assert a <= q < a + 10
  assert reserved_bytes == 11


def test_a_tuple_pairs_with_a_larger_tensor():
  # b and c interfere most. c (2) goes with the larger a (9), which is dead by
  # then: the tuple (a, c) takes one edge of 9, and b (3) another.
  values = [("a", 9, ""), ("b", 3, "a"), ("c", 2, "b"), ("d", 2, "c")]
  places, reserved_bytes = _run(values, open_edges=False, max_tuple=2)
  assert places[0] == places[2]
  # d pairs with b, the largest that it does not interfere with being placed.
  assert reserved_bytes == 9 + 3 + 2


def test_a_triple_lies_in_one_place():
  """Tuples of three: worked out by hand from the document's rules."""
  values = [("a", 9, ""), ("b", 3, "a"), ("c", 2, "b"), ("d", 2, "c")]
  values += [("e", 8, "d")]
  # b, c and d interfere with two tensors each. With c go a, the largest that is
  # apart from it, and e, the next that is apart from both. (a, c, e) has size 9
  # like (a, c) and (a, d), and more interference. Then (b, d), of size 3, finds
  # no edge: that from a to e is wide enough, but b is needed together with a.
  assert _run(values, open_edges=False) == ([0, 9, 0, 9, 0], 12)
  # In pairs e goes with b, and d is alone: (a, c), (b, e), (d).
  assert _run(values, open_edges=False, max_tuple=2)[1] == 9 + 8 + 2


def test_single_tensors_only_reuse_by_open_edges():
  values = [("a", 9, ""), ("b", 3, "a"), ("c", 2, "b"), ("d", 2, "c")]
  _, reserved_bytes = _run(values, open_edges=False, max_tuple=1)
  assert reserved_bytes == 9 + 3 + 2 + 2


def test_unordered_tensors_interfere():
  # Two branches: whatever the order, a parallel run is safe.
  values = [("s", 4, ""), ("l", 4, "s"), ("m", 4, "l"), ("r", 4, "s")]
  values += [("t", 4, "mr")]
  trace = allocators.from_graph(random_graphs.dataflow(values))
  result = Nnc(safety="ancestors").run(trace)
  allocators.check_result(trace, result, parallel=True)
  offsets = [-1 if p is None else p.offset_bytes for p in result.placements]
  for left, right in itertools.product((1, 2), (3,)):
    assert offsets[left] != offsets[right]
  assert Nnc().run(trace).reserved_bytes <= result.reserved_bytes


def test_stays_between_the_live_bytes_and_their_sum():
  for seed in range(60):
    graph = random_graphs.random_graph(seed, 9)
    trace = allocators.from_graph(
      graph, random_graphs.sample_orders(graph, 1, seed)[0]
    )
    for size, is_open in itertools.product((1, 2, 3), (False, True)):
      result = Nnc(max_tuple=size, open_edges=is_open).run(trace)
      allocators.check_result(trace, result)
      assert trace.live_peak_bytes <= result.reserved_bytes
      assert result.reserved_bytes <= trace.total_bytes
      assert Nnc(max_tuple=size, open_edges=is_open).run(trace) == result


def test_rejects_tuples_of_four():
  with pytest.raises(ValueError, match="must be 1, 2 or 3"):
    Nnc(max_tuple=4)


def test_one_edge_at_a_time_or_many_find_the_same(monkeypatch):
  for seed in range(30):
    graph = random_graphs.random_graph(seed, 30)
    trace = allocators.from_graph(
      graph, random_graphs.sample_orders(graph, 1, seed)[0]
    )
    for size, is_open in itertools.product((1, 3), (False, True)):
      allocator = Nnc(max_tuple=size, open_edges=is_open)
      monkeypatch.setattr(nnc, "_FEW_EDGES", 0)
      together = allocator.run(trace)
      monkeypatch.setattr(nnc, "_FEW_EDGES", 10**9)
      assert allocator.run(trace) == together
