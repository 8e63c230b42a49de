"""What may share in parallel, against the definitions taken by the word."""

import random

import pytest
import random_graphs

from jaxmem.experimental import allocators
from jaxmem.experimental.allocators import parallel
from jaxmem.experimental.allocators.in_place import chains, hand_overs


def _traces(num_nodes, seeds=40):
  for seed in range(seeds):
    graph = random_graphs.random_graph(seed, num_nodes)
    yield allocators.from_graph(
      graph,
      random_graphs.sample_orders(graph, 1, seed)[0],
      inputs=("caller", "allocator")[seed % 2],
    )


def _ancestors(graph):
  found = [set() for _ in graph.nodes]
  for node in next(random_graphs.all_orders(graph)):
    for before in graph.nodes[node].predecessors:
      found[node] |= {before} | found[before]
  return found


def _is_allowed(trace, safety, colors, buffer, node):
  found = trace.buffers[buffer]
  if safety == "serial":
    return True
  if safety == "ancestors":
    return {*found.touchers} <= {node, *_ancestors(trace.graph)[node]}
  readers = {*found.touchers} - {found.definer} or {*found.touchers}
  return all(
    t == node or (colors[t] == colors[node] and colors[t] >= 0) for t in readers
  )


@pytest.mark.parametrize("num_paths", [None, 0, 2])
@pytest.mark.parametrize("safety", ["serial", "ancestors", "paths"])
def test_who_follows_a_buffer(safety, num_paths):
  for trace in _traces(7, seeds=15):
    related = parallel.relation(trace, safety, num_paths)
    colors = parallel.color_paths(trace.graph, num_paths)
    for node in range(trace.graph.num_nodes):
      followed = related.followed(node)
      for buffer, found in enumerate(trace.buffers):
        if found.touchers:
          expected = _is_allowed(trace, safety, colors, buffer, node)
          assert related.allows(buffer, node) == expected
          assert followed[buffer] == expected


@pytest.mark.parametrize("safety", ["serial", "ancestors", "paths"])
def test_which_groups_begin_after_one(safety):
  num_after = 0
  for trace in _traces(8):
    related = parallel.relation(trace, safety)
    groups = chains(trace, hand_overs(trace))
    found = parallel.groups_after(trace, related, groups)
    assert len(found) == len(groups)
    for one, after in zip(groups, found, strict=True):
      last = trace.buffers[one[-1]]
      for number, other in enumerate(groups):
        definer = trace.buffers[other[0]].definer
        is_after = (
          not last.live_at_end
          and definer is not None
          and trace.live_steps[one[-1], 1] <= trace.live_steps[other[0], 0]
          and related.allows(one[-1], definer)
        )
        assert bool(after >> number & 1) == is_after
        num_after += is_after
  assert num_after > 100


def _color_again(graph, num_paths):
  """Looks for each path anew, in the whole graph."""
  colors = [-1] * graph.num_nodes
  order = next(random_graphs.all_orders(graph))
  color = 0
  while -1 in colors and color != num_paths:
    paths = {}
    for node in order:
      best = ()
      for before in graph.nodes[node].predecessors:
        if _num_left(colors, paths[before]) > _num_left(colors, best):
          best = paths[before]
      paths[node] = (*best, node)
    last = max(paths, key=lambda n: (_num_left(colors, paths[n]), -n))
    for node in paths[last]:
      if colors[node] < 0:
        colors[node] = color
    color += 1
  return tuple(colors)


def _num_left(colors, path):
  return sum(colors[node] < 0 for node in path)


@pytest.mark.parametrize("num_paths", [None, 1, 3])
def test_the_longest_path_is_found_each_time(num_paths):
  num_colors = 0
  for seed in range(60):
    graph = random_graphs.random_graph(seed, 5 + seed % 20)
    colors = parallel.color_paths(graph, num_paths)
    assert colors == _color_again(graph, num_paths), seed
    num_colors = max(num_colors, 1 + max(colors))
  assert num_colors == (num_paths or num_colors) > 0


def _random_result(trace, seed):
  """Places buffers anywhere, so that they overlap in every way."""
  rng = random.Random(seed)
  offsets = {b: rng.randrange(40) for b in trace.requested}
  return allocators.arena_result(trace, "random", offsets)


def test_a_buffer_waits_for_who_had_its_bytes():
  num_edges = 0
  for seed in range(80):
    graph = random_graphs.random_graph(seed, 9)
    trace = allocators.from_graph(
      graph, random_graphs.sample_orders(graph, 1, seed)[0]
    )
    before = _ancestors(trace.graph)
    for result in (
      allocators.AutoGrowth().run(trace),
      _random_result(trace, seed),
    ):
      owners, expected = {}, set()
      for buffer in trace.requested:
        place, found = result.placements[buffer], trace.buffers[buffer]
        assert place is not None
        assert found.definer is not None
        for byte in range(found.size_bytes):
          cell = (place.segment, place.offset_bytes + byte)
          owner = owners.get(cell)
          owners[cell] = buffer
          if owner is not None:
            expected |= {
              (toucher, found.definer)
              for toucher in trace.buffers[owner].touchers
              if toucher not in {found.definer, *before[found.definer]}
            }
      assert parallel.sharing_edges(trace, result) == tuple(sorted(expected))
      num_edges += len(expected)
  assert num_edges > 500
