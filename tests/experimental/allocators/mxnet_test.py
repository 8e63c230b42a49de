"""MXNet's plans: the examples of its note, worked out by hand."""

import dataclasses

import pytest
import random_graphs

from jaxmem.experimental import allocators
from jaxmem.experimental.allocators.mxnet import Mxnet, MxnetColoring
from jaxmem.experimental.allocators.parallel import Paths, color_paths
from jaxmem.graph import ValidationError


def _graph(values, shares=()):
  """A graph of values (name, bytes, reads), and pairs that may share."""
  graph = random_graphs.dataflow(values)
  number = {name: index for index, (name, _, _) in enumerate(values)}
  nodes = list(graph.nodes)
  for operand, output in shares:
    node = nodes[number[output]]
    pair = (number[operand], number[output])
    nodes[number[output]] = dataclasses.replace(
      node, shares=(*node.shares, pair)
    )
  return dataclasses.replace(graph, nodes=tuple(nodes))


def _storages(values, shares=(), **settings):
  """Runs the plan; returns which values share, by storage, and the result."""
  trace = allocators.from_graph(_graph(values, shares))
  result = Mxnet(**settings).run(trace)
  allocators.check_result(trace, result)
  shared = {}
  for (name, _, _), place in zip(values, result.placements, strict=True):
    shared.setdefault(place and place.segment, []).append(name)
  return [*map("".join, shared.values())], result


SIGMOIDS = [("A", 4, ""), ("B", 4, "A"), ("C", 4, "B"), ("D", 4, "C")]
SIGMOID_SHARES = [("A", "B"), ("B", "C"), ("C", "D")]


def test_a_chain_of_sigmoids_takes_one_memory_in_place():
  storages, result = _storages(SIGMOIDS, SIGMOID_SHARES, sharing=False)
  assert storages == ["ABCD"]
  assert result.reserved_bytes == 4


def test_a_chain_without_in_place_takes_two_in_turns():
  storages, _ = _storages(SIGMOIDS, SIGMOID_SHARES, in_place=False)
  assert storages == ["AC", "BD"]


def test_no_strategy_takes_all():
  storages, result = _storages(
    SIGMOIDS, SIGMOID_SHARES, in_place=False, sharing=False
  )
  assert storages == ["A", "B", "C", "D"]
  assert result.reserved_bytes == 16


def test_in_place_needs_a_counter_of_one():
  # The note's trap: B is read by C = sigmoid(B), and again by F.
  values = [("A", 4, ""), ("B", 4, "A"), ("C", 4, "B"), ("F", 4, "BC")]
  shares = [("B", "C")]
  storages, _ = _storages(values, shares, sharing=False)
  assert storages == ["A", "B", "C", "F"]


def test_sharing_across_shapes_takes_the_maximum():
  # B is dead when E is computed, and E is larger.
  values = [("A", 1, ""), ("B", 4, "A"), ("C", 1, "B"), ("E", 6, "C")]
  storages, result = _storages(values, in_place=False, match_range=2)
  assert storages == ["AC", "BE"]
  assert result.reserved_bytes == 1 + 6


def test_the_search_keeps_to_near_sizes():
  values = [("A", 100, ""), ("B", 4, "A"), ("C", 5, "B"), ("D", 60, "C")]
  # C could have A's 100 bytes, 20 times its size; D may.
  storages, _ = _storages(values, in_place=False, match_range=16)
  assert storages == ["AD", "B", "C"]
  # B is free as well; of two that are large enough, the smaller is taken.
  values = [("A", 8, ""), ("B", 6, ""), ("C", 5, "AB"), ("D", 5, "C")]
  storages, _ = _storages(values, in_place=False)
  assert storages == ["A", "BD", "C"]


def test_the_box_without_a_search_gives_what_came_last():
  values = [("A", 8, ""), ("B", 100, ""), ("C", 5, "AB"), ("D", 5, "C")]
  storages, _ = _storages(values, in_place=False, match_range=None)
  assert storages == ["A", "BD", "C"]


def test_the_two_layer_perceptron():
  """The note's example: act1, d(fc1), out and d(fc2) in place; d(A) shares."""
  values = [
    ("fc1 ", 8, ()),
    ("act1 ", 8, ("fc1 ",)),
    ("fc2 ", 4, ("act1 ",)),
    ("out ", 4, ("fc2 ",)),
    ("d(fc2) ", 4, ("out ",)),
    ("d(act1) ", 8, ("d(fc2) ",)),
    # The gradient of the second weights, which the caller owns, comes first.
    ("d(w2) ", 0, ("act1 ", "d(fc2) ")),
    ("d(fc1) ", 8, ("act1 ", "d(act1) ")),
    ("d(A) ", 8, ("d(fc1) ",)),
  ]
  shares = [
    ("fc1 ", "act1 "),
    ("fc2 ", "out "),
    ("out ", "d(fc2) "),
    ("act1 ", "d(fc1) "),
  ]
  trace = allocators.from_graph(_graph(values, shares))
  result = Mxnet().run(trace)
  allocators.check_result(trace, result)
  places = {
    name.strip(): place and place.segment
    for (name, _, _), place in zip(values, result.placements, strict=True)
  }
  assert places["fc1"] == places["act1"] == places["d(fc1)"] == 0
  assert places["fc2"] == places["out"] == places["d(fc2)"] == 1
  assert places["d(act1)"] == places["d(A)"] == 2
  assert result.reserved_bytes == 8 + 4 + 8
  # Without any of it: 7 values, as the weights' gradient is not ours.
  plain = Mxnet(in_place=False, sharing=False).run(trace)
  assert plain.reserved_bytes == 8 + 8 + 4 + 4 + 4 + 8 + 8 + 8


# Two chains from one value: what the note draws as A[1] ... A[8].
BRANCHES = [
  ("1", 4, ""),
  ("2", 4, "1"),
  ("3", 4, "2"),
  ("4", 4, "3"),
  ("5", 4, "1"),
  ("6", 4, "5"),
  ("7", 4, "6"),
  ("8", 4, "47"),
]


def test_serial_sharing_forbids_parallel_branches():
  storages, result = _storages(BRANCHES)
  # 5 still reads 1 when 4 takes the storage of 2, and then takes that of 3.
  assert storages == ["168", "24", "357"]
  trace = allocators.from_graph(_graph(BRANCHES))
  with pytest.raises(ValidationError, match="share bytes"):
    allocators.check_result(trace, result, parallel=True)


def test_added_edges_make_it_safe():
  trace = allocators.from_graph(_graph(BRANCHES))
  result = Mxnet(safety="edges").run(trace)
  allocators.check_result(trace, result, parallel=True)
  assert result.added_edges
  # Each of them is needed: nothing else orders the two.
  for edge in result.added_edges:
    others = tuple(e for e in result.added_edges if e != edge)
    if _implied(trace, others, edge):
      continue
    broken = dataclasses.replace(result, added_edges=others)
    with pytest.raises(ValidationError, match="share bytes"):
      allocators.check_result(trace, broken, parallel=True)


def _implied(trace, edges, edge):
  reached = {edge[0]}
  for node in sorted(range(trace.graph.num_nodes)):
    before = {*trace.graph.nodes[node].predecessors}
    before |= {a for a, b in edges if b == node}
    if before & reached:
      reached.add(node)
  return edge[1] in reached


@pytest.mark.parametrize("safety", ["ancestors", "paths"])
def test_branches_that_may_run_in_parallel_share_nothing(safety):
  storages, result = _storages(BRANCHES, safety=safety)
  trace = allocators.from_graph(_graph(BRANCHES))
  allocators.check_result(trace, result, parallel=True)
  assert not result.added_edges
  for storage in storages:
    assert not (set("234") & set(storage) and set("567") & set(storage))


def test_ancestors_share_more_than_paths():
  # 3 and 4 read 2, 5 reads both: 2 is dead before 5 in every order, but it was
  # read off the path of 5.
  values = [("1", 4, ""), ("2", 4, "1"), ("3", 4, "2"), ("4", 4, "2")]
  values += [("5", 4, "34")]
  assert _storages(values, safety="ancestors")[1].reserved_bytes == 12
  assert _storages(values, safety="paths")[1].reserved_bytes == 16


def test_paths_take_the_longest_first():
  graph = _graph(BRANCHES)
  # 1 2 3 4 8 first (ties by index), then 5 6 7.
  assert color_paths(graph) == (0, 0, 0, 0, 1, 1, 1, 0)
  assert color_paths(graph, 1) == (0, 0, 0, 0, -1, -1, -1, 0)
  # A later path may lead through colored nodes.
  graph = _graph([("a", 1, ""), ("b", 1, "a"), ("c", 1, "a"), ("d", 1, "c")])
  assert color_paths(graph) == (0, 1, 0, 0)


def test_what_is_on_no_path_shares_nothing():
  trace = allocators.from_graph(_graph(SIGMOIDS))
  assert not Paths(trace, 0).allows(0, 2)
  result = Mxnet(safety="paths", num_paths=0).run(trace)
  assert result.reserved_bytes == 16


def test_coloring_gives_large_values_their_color_first():
  # In order, C takes the storage of A, and D that of B, which grows. By size, A
  # and D share; B and C each meet one of them and one another.
  values = [("A", 8, ""), ("B", 1, "A"), ("C", 2, "B"), ("D", 8, "C")]
  trace = allocators.from_graph(_graph(values))
  colored = MxnetColoring().run(trace)
  allocators.check_result(trace, colored)
  assert colored.reserved_bytes == 8 + 2 + 1
  assert colored.placements[0] == colored.placements[3]
  simulated = Mxnet(match_range=None).run(trace)
  assert simulated.reserved_bytes == 8 + 8


def test_rejects_a_ratio_below_one():
  with pytest.raises(ValueError, match="at least 1"):
    Mxnet(match_range=0.5)
