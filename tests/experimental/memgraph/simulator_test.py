"""The event loop in virtual time: hand-computed runs and properties."""

import dataclasses
import random

import memgraph_graphs as graphs
import numpy as np
from absl.testing import absltest, parameterized
from memgraph_replay import random_interleaving, replay

from jaxmem.experimental import memgraph
from jaxmem.experimental.memgraph import devices
from jaxmem.experimental.memgraph.check import find_faults
from jaxmem.experimental.memgraph.devices import pcie_bytes_per_s


def _build(builder, capacity=100, outputs=(), **options):
  return memgraph.build_memgraph(
    builder.build(outputs), capacity, alignment_bytes=1, **options
  )


def _times(built, **by_name) -> np.ndarray:
  return np.array([by_name.get(v.name, 1.0) for v in built.vertices])


def _copy_and_weight() -> memgraph.MemGraph:
  """p waits for a copy from another device, q for a weight."""
  builder = memgraph.Builder(2)
  weight = builder.tensor("weight", 1)
  (far,) = builder.task("far", [], [("far", 1)], device=1)
  near = builder.copy(far, 0)
  builder.task("p", [near], [("p_out", 1)])
  builder.task("q", [weight], [("q_out", 1)])
  return _build(builder)


class EventLoopTest(parameterized.TestCase):
  def test_whatever_is_ready_runs(self):
    built = _copy_and_weight()
    times = _times(built, **{"far@0": 5.0})
    # The weight is there at 1, the copy at 6. q at 1, p at 6.
    event = memgraph.simulate(built, times)
    self.assertEqual(event.makespan_s, 7.0)
    # p first: q waits for nothing but its turn.
    fixed = memgraph.simulate(memgraph.fixed_order(built), times)
    self.assertEqual(fixed.makespan_s, 8.0)

  @parameterized.parameters((1, 6.0), (2, 3.0), (3, 2.0), (6, 1.0))
  def test_slots(self, slots, makespan_s):
    builder = memgraph.Builder()
    for i in range(6):
      builder.task(f"t{i}", [], [(f"x{i}", 1)])
    built = _build(builder)
    run = memgraph.simulate(
      built, _times(built), slots=memgraph.Slots(compute=slots)
    )
    self.assertEqual(run.makespan_s, makespan_s)
    self.assertEqual(run.busy_s, {("compute", 0): 6.0})

  def test_accumulations_exclude_each_other(self):
    builder = memgraph.Builder()
    total = builder.tensor("total", 1)
    for i in range(3):
      builder.accumulate(f"add{i}", [], total)
    builder.task("other", [], [("x", 1)])
    builder.task("end", [total], [("y", 1)])
    built = _build(builder)
    run = memgraph.simulate(
      built, _times(built), slots=memgraph.Slots(compute=4)
    )
    order = np.argsort(run.start_s[:3])
    ends = run.end_s[:3][order]
    self.assertEqual(ends.tolist(), [1.0, 2.0, 3.0])
    self.assertEqual(run.start_s[3], 0.0)
    self.assertEqual(run.makespan_s, 4.0)

  def test_priority_decides_between_the_ready(self):
    builder = memgraph.Builder()
    for i in range(3):
      builder.task(f"t{i}", [], [(f"x{i}", 1)])
    built = _build(builder)
    run = memgraph.simulate(built, _times(built), priority=[2, 0, 1])
    self.assertEqual(run.start_s.tolist(), [2.0, 0.0, 1.0])

  def test_directions_have_a_lane_each(self):
    graph = graphs.chain_with_offload()
    built = memgraph.build_memgraph(graph, 2, alignment_bytes=1)
    run = memgraph.simulate(built, _times(built, **{"offload a": 4.0}))
    # t1 0-1, t2 1-2, offload a 1-5, t3 (over a) 5-6, t4 6-7, reload a 7-8, t5.
    self.assertEqual(run.start_s.tolist(), [0, 1, 1, 5, 6, 7, 8])

  def test_full_host_holds_offloads_back(self):
    builder = memgraph.Builder()
    made = [builder.task(f"m{i}", [], [(f"x{i}", 2)])[0] for i in range(4)]
    for i in range(4):
      builder.task(f"use{i}", [made[i]], [(f"y{i}", 1)])
    built = _build(builder, capacity=3)
    # Only one of them fits at a time; x0 comes back when x3 has gone.
    self.assertEqual(built.bytes_moved("offload"), 8)
    free = memgraph.simulate(built, _times(built))
    self.assertEqual(
      memgraph.simulate(built, _times(built), host_bytes=8).makespan_s,
      free.makespan_s,
    )
    with self.assertRaisesRegex(memgraph.StalledError, "Host memory is full"):
      memgraph.simulate(built, _times(built), host_bytes=7)

  def test_executor_errors_pass(self):
    class Broken:
      def admit(self, vertex):
        return True

      def launch(self, vertex):
        del vertex

      def wait(self):
        raise OSError("gone")

    with self.assertRaisesRegex(OSError, "gone"):
      memgraph.EventLoop(_copy_and_weight(), Broken()).run()

  def test_random_graphs_run_within_their_bounds(self):
    for seed in range(300):
      graph = graphs.random_graph(seed)
      try:
        built = memgraph.build_memgraph(
          graph, graphs.needed_bytes(graph) + 2, alignment_bytes=1
        )
      except memgraph.InfeasibleMemoryError:
        continue
      rng = random.Random(seed)
      times = np.array([rng.randrange(1, 9) for _ in built.vertices], float)
      path = np.zeros(built.num_vertices)
      for vertex, before in enumerate(built.predecessors):
        ready = max((path[b] for b in before), default=0.0)
        path[vertex] = ready + times[vertex]
      for strict in (built, memgraph.fixed_order(built)):
        slots = memgraph.Slots(compute=rng.randrange(1, 4))
        run = memgraph.simulate(strict, times, slots=slots)
        self.assertGreaterEqual(run.makespan_s, path.max())
        self.assertLessEqual(run.makespan_s, times.sum())
        for vertex, before in enumerate(strict.predecessors):
          for b in before:
            self.assertLessEqual(run.end_s[b], run.start_s[vertex])


class SchedulesTest(absltest.TestCase):
  def _layers(self, num_layers=4) -> memgraph.MemGraph:
    builder = memgraph.Builder()
    x = builder.tensor("x", 1)
    for layer in range(num_layers):
      weight = builder.tensor(f"w{layer}", 4)
      (x,) = builder.task(
        f"t{layer}", [weight, x], [(f"x{layer}", 1)], group=layer
      )
    return _build(builder, outputs=[x])

  def test_fixed_order_is_the_order_of_tasks(self):
    for seed in range(100):
      graph = graphs.random_graph(seed)
      built = memgraph.build_memgraph(graph, 60, alignment_bytes=1)
      fixed = memgraph.fixed_order(built, ("compute", "copy", "reload"))
      memgraph.check(fixed)
      times = np.random.default_rng(seed).random(built.num_vertices)
      run = memgraph.simulate(fixed, times, slots=memgraph.Slots(compute=3))
      for device in range(graph.num_devices):
        tasks = [
          vertex
          for vertex, about in enumerate(built.vertices)
          if (about.kind, about.device) == ("compute", device)
        ]
        starts = run.start_s[tasks]
        self.assertTrue((np.diff(starts) >= 0).all())

  def test_layer_streaming_brings_one_layer_ahead(self):
    built = self._layers()
    streamed = memgraph.layer_streaming(built)
    memgraph.check(streamed)
    times = np.array(
      [10.0 if "w" in v.name else 1.0 for v in streamed.vertices]
    )
    times[[v.kind == "sync" for v in streamed.vertices]] = 0.0
    run = memgraph.simulate(streamed, times)
    start = {v.name: run.start_s[i] for i, v in enumerate(streamed.vertices)}
    # w0 and w1 come at once, w2 only when layer 0 is done.
    self.assertEqual(start["reload w0"], 0.0)
    self.assertEqual(start["t0"], 11.0)
    self.assertEqual(start["reload w1"], 11.0)
    self.assertEqual(start["t1"], 21.0)
    self.assertEqual(start["reload w2"], 21.0)

  def test_streaming_random_graphs(self):
    for seed in range(200):
      graph = graphs.random_graph(seed)
      tasks = tuple(
        dataclasses.replace(task, group=i // 3)
        for i, task in enumerate(graph.tasks)
      )
      graph = dataclasses.replace(graph, tasks=tasks)
      built = memgraph.build_memgraph(
        graph, graphs.needed_bytes(graph) + 6, alignment_bytes=1
      )
      streamed = memgraph.layer_streaming(built)
      self.assertEqual(find_faults(streamed), [])
      replay(streamed, random_interleaving(streamed, seed))

  def test_groups_must_ascend(self):
    builder = memgraph.Builder()
    builder.task("t1", [], [], group=1)
    builder.task("t0", [], [], group=0)
    with self.assertRaisesRegex(ValueError, "ascend"):
      memgraph.layer_streaming(_build(builder))


class TimesTest(absltest.TestCase):
  def test_expected_times(self):
    builder = memgraph.Builder(2)
    w = builder.tensor("w", 10**9)
    (x,) = builder.task(
      "t", [w], [("x", 10**6)], flops=312e12, bytes_accessed=1e6
    )
    builder.copy(x, 1)
    built = _build(builder, capacity=2 * 10**9)
    server = devices.SERVERS["a100x8"]
    times = memgraph.expected_times(built, server)
    by_name = dict(zip([v.name for v in built.vertices], times, strict=True))
    # 16 lanes of 16 GT/s are 31.5 GB/s, of which 80 %.
    self.assertAlmostEqual(by_name["reload w"], 1e-5 + 1 / 25.206, 3)
    # A second of products at 70 % of the peak.
    self.assertAlmostEqual(by_name["t"], 1 / 0.7, 4)
    self.assertAlmostEqual(by_name["x@1"], 1e-5 + 1e6 / 240e9, 7)

  def test_draws(self):
    built = memgraph.build_memgraph(
      graphs.chain_with_offload(), 2, alignment_bytes=1
    )
    noise = memgraph.Noise(compute_sigma=0.3, transfer_sigma=0.5)
    ones = np.ones(built.num_vertices)
    same = memgraph.draw_times(built, ones, noise, seed=3)
    np.testing.assert_array_equal(
      memgraph.draw_times(built, ones, noise, seed=3), same
    )
    streamed = memgraph.layer_streaming(
      dataclasses.replace(
        built,
        task_graph=dataclasses.replace(
          built.task_graph,
          tasks=tuple(
            dataclasses.replace(t, group=i)
            for i, t in enumerate(built.task_graph.tasks)
          ),
        ),
      )
    )
    is_sync = np.array([v.kind == "sync" for v in streamed.vertices])
    drawn = memgraph.draw_times(streamed, ~is_sync, noise, seed=3)
    np.testing.assert_array_equal(drawn[~is_sync], same)
    draws = [memgraph.draw_times(built, ones, noise, s) for s in range(4000)]
    np.testing.assert_allclose(np.mean(draws, axis=0), 1.0, atol=0.05)
    self.assertAlmostEqual(np.std(np.log(draws), axis=0)[0], 0.3, delta=0.02)
    self.assertAlmostEqual(np.std(np.log(draws), axis=0)[2], 0.5, delta=0.03)

  def test_stalls_hit_transfers_only(self):
    built = memgraph.build_memgraph(
      graphs.chain_with_offload(), 2, alignment_bytes=1
    )
    noise = memgraph.Noise(stall_probability=1.0, stall_factor=7.0)
    times = memgraph.draw_times(built, np.ones(7), noise, seed=0)
    self.assertEqual(times.tolist(), [1, 1, 7, 1, 1, 7, 1])

  def test_bad_times_are_refused(self):
    built = _copy_and_weight()
    with self.assertRaisesRegex(ValueError, "times_s"):
      memgraph.simulate(built, np.ones(2))
    with self.assertRaisesRegex(ValueError, "generation"):
      pcie_bytes_per_s(2)


if __name__ == "__main__":
  absltest.main()
