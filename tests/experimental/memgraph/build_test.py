"""Memory graphs: hand-computed ones, random ones, and broken ones."""

import dataclasses
import functools
import random

import memgraph_graphs as graphs
import pytest
from absl.testing import absltest, parameterized
from memgraph_replay import RaceError, random_interleaving, replay

from jaxmem.experimental import memgraph
from jaxmem.experimental.memgraph import chunked_closure
from jaxmem.experimental.memgraph.check import find_faults

_NUM_GRAPHS = 10_000


def _built(seed: int, *, reduce: bool = True) -> memgraph.MemGraph | None:
  """Returns a random graph in little memory; None if it does not fit."""
  graph = graphs.random_graph(seed)
  rng = random.Random(seed)
  capacity = graphs.needed_bytes(graph) + rng.randrange(8)
  try:
    return memgraph.build_memgraph(
      graph,
      capacity,
      alignment_bytes=1,
      lookahead=rng.choice([None, None, 0, 3]),
      place=rng.choice(["oldest", "oldest", "lowest", "tightest"]),
      reduce=reduce,
    )
  except memgraph.InfeasibleMemoryError:
    # Sums that are not complete cannot leave.
    assert any(task.accumulates for task in graph.tasks)
    return None


def _reaches(predecessors) -> list[set[int]]:
  """Returns the ancestors of each vertex of a forward graph."""
  ancestors: list[set[int]] = []
  for before in predecessors:
    ancestors.append(set(before).union(*(ancestors[p] for p in before)))
  return ancestors


class ExampleTest(absltest.TestCase):
  def test_offload_and_reload(self):
    built = memgraph.build_memgraph(
      graphs.chain_with_offload(), 2, alignment_bytes=1
    )
    # a lies at 0 and b at 1 ahead of time. c has no room: a is needed last and
    # goes. c waits for that; t3, t4 free b and c; a comes back to 0.
    names = [vertex.name for vertex in built.vertices]
    self.assertEqual(
      names, ["t1", "t2", "offload a", "t3", "t4", "reload a", "t5"]
    )
    self.assertEqual(built.data_edges, ((), (), (0,), (1,), (3,), (2,), (5,)))
    # e waits for t4 too, which reload a implies.
    self.assertEqual(built.memory_edges, ((), (), (), (2,), (), (4,), ()))
    places = [(r.name, r.offset_bytes) for r in built.residencies]
    self.assertEqual(
      places, [("a", 0), ("b", 1), ("c", 0), ("d", 1), ("a", 0), ("e", 1)]
    )
    memgraph.check(built)

  def test_unreduced_graph_keeps_the_implied_edge(self):
    built = memgraph.build_memgraph(
      graphs.chain_with_offload(), 2, alignment_bytes=1, reduce=False
    )
    self.assertEqual(built.memory_edges[6], (4,))

  def test_enough_memory_needs_no_edges(self):
    built = memgraph.build_memgraph(
      graphs.chain_with_offload(), 5, alignment_bytes=1
    )
    self.assertEqual(built.num_memory_edges, 0)
    self.assertEqual(built.bytes_moved("offload"), 0)
    self.assertLen(built.vertices, 5)

  def test_input_leaves_without_an_offload(self):
    builder = memgraph.Builder()
    x = builder.tensor("x", 1)
    (y,) = builder.task("t1", [x], [("y", 2)])
    (z,) = builder.task("t2", [y], [("z", 1)])
    (w,) = builder.task("t3", [x, z], [("w", 1)])
    built = memgraph.build_memgraph(builder.build([w]), 3, alignment_bytes=1)
    self.assertNotIn("offload", [v.kind for v in built.vertices])
    memgraph.check(built)
    # x makes room for z beside y. Host memory has it still.
    self.assertEqual(built.bytes_moved("reload"), 2)

  def test_victim_is_needed_last(self):
    builder = memgraph.Builder()
    made = [builder.task(f"m{i}", [], [(f"x{i}", 1)])[0] for i in range(3)]
    builder.task("big", [], [("big", 1)])
    for i in (1, 0, 2):
      builder.task(f"use{i}", [made[i]], [(f"y{i}", 0)])
    built = memgraph.build_memgraph(builder.build([]), 3, alignment_bytes=1)
    offloaded = [v.name for v in built.vertices if v.kind == "offload"]
    self.assertEqual(offloaded, ["offload x2"])

  def test_scattered_inputs_are_packed(self):
    # p and r lie at the ends, so that two bytes in the middle are free when
    # three are needed: p and r are moved together.
    builder = memgraph.Builder()
    (p,) = builder.task("p", [], [("p", 1)])
    (q,) = builder.task("q", [], [("q", 3)])
    (r,) = builder.task("r", [], [("r", 1)])
    builder.task("q_end", [q], [("none", 0)])
    (s,) = builder.task("s", [p, r], [("s", 4)])
    built = memgraph.build_memgraph(builder.build([s]), 6, alignment_bytes=1)
    memgraph.check(built)
    self.assertEqual(built.capacity_bytes, (6,))

  def test_infeasible_task_is_named(self):
    builder = memgraph.Builder()
    x = builder.tensor("x", 300)
    builder.task("wide", [x], [("y", 100)], workspace_bytes=50)
    with self.assertRaisesRegex(memgraph.InfeasibleMemoryError, "'wide'") as e:
      memgraph.build_memgraph(builder.build([]), 1023)
    self.assertEqual(e.exception.needed_bytes, 512 + 256 + 256)
    memgraph.build_memgraph(builder.build([]), 1024)

  def test_bad_graphs_are_refused(self):
    builder = memgraph.Builder(2)
    x = builder.tensor("x", 1, device=0)
    builder.task("t", [x], [("y", 1)], device=1)
    with self.assertRaisesRegex(ValueError, "'t'.*device"):
      builder.build([])
    builder = memgraph.Builder()
    y = builder.tensor("y", 1)
    builder.task("reader", [y], [])
    builder.accumulate("writer", [], y)
    with self.assertRaisesRegex(ValueError, "'reader'.*before"):
      builder.build([])


class PropertyTest(absltest.TestCase):
  @pytest.mark.slow
  def test_random_graphs_have_no_races(self):
    num_offloads = num_built = 0
    for seed in range(_NUM_GRAPHS):
      built = _built(seed)
      if built is None:
        continue
      num_built += 1
      num_offloads += built.bytes_moved("offload") > 0
      self.assertEqual(find_faults(built), [], seed)
      replay(built, random_interleaving(built, seed))
    self.assertGreater(num_built, 0.99 * _NUM_GRAPHS)
    self.assertGreater(num_offloads, 0.3 * _NUM_GRAPHS)

  def test_best_place_moves_the_fewest_bytes(self):
    def moved(built):
      return built.bytes_moved("offload") + built.bytes_moved("reload")

    num_better = 0
    for seed in range(200):
      graph = graphs.random_graph(seed)
      capacity = graphs.needed_bytes(graph) + 3
      build = functools.partial(
        memgraph.build_memgraph, graph, capacity, alignment_bytes=1
      )
      try:
        each = [build(place=p) for p in ("oldest", "lowest", "tightest")]
      except memgraph.InfeasibleMemoryError:
        continue
      best = build(place="best")
      self.assertEqual(moved(best), min(map(moved, each)))
      num_better += moved(best) < moved(each[0])
    self.assertGreater(num_better, 0)

  def test_same_graph_twice(self):
    for seed in range(20):
      self.assertEqual(_built(seed), _built(seed))

  def test_reduction_is_exact(self):
    for seed in range(300):
      full, reduced = _built(seed, reduce=False), _built(seed)
      if full is None or reduced is None:
        continue
      self.assertEqual(full.vertices, reduced.vertices)
      self.assertEqual(
        _reaches(full.predecessors), _reaches(reduced.predecessors)
      )
      for vertex, edges in enumerate(reduced.memory_edges):
        for edge in edges:
          others = set(reduced.predecessors[vertex]) - {edge}
          ancestors = _reaches(reduced.predecessors)
          self.assertFalse(any(edge in ancestors[o] for o in others))

  def test_chunks_agree_with_one_sweep(self):
    rng = random.Random(0)
    edges = [
      tuple(sorted({rng.randrange(v) for _ in range(2)})) if v else ()
      for v in range(200)
    ]
    ancestors = _reaches(edges)
    whole = chunked_closure.needed_edges(edges, [()] * 200)
    original = chunked_closure._CHUNK
    self.addCleanup(setattr, chunked_closure, "_CHUNK", original)
    chunked_closure._CHUNK = 7
    self.assertEqual(chunked_closure.needed_edges(edges, [()] * 200), whole)
    pairs = [(rng.randrange(200), rng.randrange(200)) for _ in range(500)]
    missing = [(a, b) for a, b in pairs if a != b and a not in ancestors[b]]
    found = chunked_closure.unconnected(edges, pairs)
    self.assertCountEqual(found, missing)


class MutationTest(parameterized.TestCase):
  """Each way to break a graph is found."""

  def _without_edge(self, built, vertex, edge, kind):
    edges = list(getattr(built, kind))
    edges[vertex] = tuple(e for e in edges[vertex] if e != edge)
    return dataclasses.replace(built, **{kind: tuple(edges)})

  def test_missing_memory_edge(self):
    num_edges = num_raised = 0
    for seed in range(150):
      built = _built(seed)
      if built is None:
        continue
      for vertex, edges in enumerate(built.memory_edges):
        for edge in edges:
          broken = self._without_edge(built, vertex, edge, "memory_edges")
          faults = find_faults(broken)
          self.assertTrue(any("race" in f for f in faults), (seed, vertex))
          num_edges += 1
          num_raised += self._goes_wrong(broken)
    self.assertGreater(num_edges, 400)
    # The proof finds all; random interleavings find most.
    self.assertGreater(num_raised, 0.8 * num_edges)

  def _goes_wrong(self, broken) -> bool:
    for seed in range(20):
      try:
        replay(broken, random_interleaving(broken, seed))
      except RaceError:
        return True
    return False

  def test_missing_data_edge(self):
    built = memgraph.build_memgraph(
      graphs.chain_with_offload(), 2, alignment_bytes=1
    )
    for vertex, edges in enumerate(built.data_edges):
      for edge in edges:
        broken = self._without_edge(built, vertex, edge, "data_edges")
        is_implied = edge in _reaches(broken.predecessors)[vertex]
        self.assertEqual(not find_faults(broken), is_implied)

  def _replaced(self, built, name, index, **changes):
    items = list(getattr(built, name))
    items[index] = dataclasses.replace(items[index], **changes)
    return dataclasses.replace(built, **{name: tuple(items)})

  @parameterized.named_parameters(
    ("offset", "residencies", 1, {"offset_bytes": 0}, "race"),
    ("bounds", "residencies", 1, {"offset_bytes": 2}, "ends at 3 of 2"),
    ("size", "residencies", 0, {"size_bytes": 0}, "has 0 bytes"),
    ("tensor", "residencies", 4, {"tensor": 1}, "reads tensors"),
    ("readers", "residencies", 0, {"readers": ()}, "disagree"),
    ("device", "vertices", 0, {"device": 1}, "runs as compute on device 1"),
    ("no_offload", "vertices", 2, {"tensor": 1}, "reads another tensor"),
    ("reload", "vertices", 5, {"tensor": 2}, "finds nothing on the host"),
    ("twice", "vertices", 3, {"kind": "offload"}, "runs as offload"),
    ("task", "vertices", 0, {"task": 1}, "must have a vertex each"),
  )
  def test_change(self, name, index, changes, message):
    built = memgraph.build_memgraph(
      graphs.chain_with_offload(), 2, alignment_bytes=1
    )
    broken = self._replaced(built, name, index, **changes)
    with self.assertRaisesRegex(memgraph.MemGraphError, message):
      memgraph.check(broken)

  def test_cycle(self):
    built = memgraph.build_memgraph(
      graphs.chain_with_offload(), 2, alignment_bytes=1
    )
    edges = list(built.memory_edges)
    edges[0] = (6,)
    edges[1] = (4,)
    broken = dataclasses.replace(built, memory_edges=tuple(edges))
    with self.assertRaisesRegex(memgraph.MemGraphError, "cycle"):
      memgraph.check(broken)

  def test_lost_output(self):
    graph = graphs.chain_with_offload()
    built = memgraph.build_memgraph(graph, 2, alignment_bytes=1)
    # b was overwritten long ago.
    broken = dataclasses.replace(
      built, task_graph=dataclasses.replace(graph, outputs=(1,))
    )
    self.assertIn("'b' is nowhere", find_faults(broken)[0])
    with self.assertRaisesRegex(RaceError, "'b' is lost"):
      replay(broken, random_interleaving(broken, 0))


if __name__ == "__main__":
  absltest.main()
