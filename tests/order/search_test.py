import dataclasses

import random_graphs
from absl.testing import absltest, parameterized
from naive_peak import check_peak

from jaxmem.graph import Buffer, check_order, liveness
from jaxmem.order import MinCutSearch, unchanged
from jaxmem.order.directed_pass import DirectedPass
from jaxmem.order.pass_state import Budget, DirectedGraph, PassState


def _search(graph, order, **limits):
  return MinCutSearch(**limits).improve(graph, unchanged(graph, order, 0))


class PassTest(parameterized.TestCase):
  @parameterized.parameters(True, False)
  def test_bytes_agree_with_the_definition_and_undo_is_exact(self, forward):
    for seed in range(150):
      graph = random_graphs.random_graph(seed, 4 + seed % 9)
      state = PassState(DirectedGraph.of(graph, forward=forward))
      before = {k: v for k, v in vars(state.copy()).items() if k != "num_runs"}
      for order in random_graphs.sample_orders(graph, 3, seed):
        live = liveness.live_bytes(graph, order).tolist()
        steps = list(zip(order, live, strict=True))
        for v, num_bytes in steps if forward else reversed(steps):
          self.assertEqual(state.run(v), num_bytes, msg=str(seed))
        state.undo_to(0)
        state.falling.clear()
        state.ready.clear()
        for name, value in before.items():
          self.assertEqual(getattr(state, name), value, msg=name)

  @parameterized.parameters(True, False)
  def test_makes_topological_orders_below_the_limit(self, forward):
    for seed in range(150):
      graph = random_graphs.random_graph(seed, 6 + seed % 20)
      order = random_graphs.sample_orders(graph, 1, seed)[0]
      peak_bytes = liveness.peak_bytes(graph, order)
      make_pass = DirectedPass(graph, forward=forward)
      for soft_bytes in (0, peak_bytes // 2, peak_bytes):
        budget = Budget(soft_bytes)
        found = make_pass(order, budget, peak_bytes + 1)
        if found is not None:
          check_order(graph, found)
          self.assertLessEqual(liveness.peak_bytes(graph, found), peak_bytes)
      self.assertIsNotNone(make_pass(order, Budget(0), 10**12))
      self.assertIsNone(make_pass(order, Budget(0), 0))

  @parameterized.parameters(True, False)
  def test_budgets_know_which_others_lead_to_the_same(self, forward):
    num_alike = 0
    for seed in range(60):
      graph = random_graphs.random_graph(seed, 8 + seed % 20)
      order = random_graphs.sample_orders(graph, 1, seed)[0]
      limit_bytes = liveness.peak_bytes(graph, order) + 1
      make_pass = DirectedPass(graph, forward=forward)
      budgets = [Budget(limit_bytes * i // 8) for i in range(2, 8)]
      found = [make_pass(order, budget, limit_bytes) for budget in budgets]
      for first, budget in enumerate(budgets):
        for second in range(len(budgets)):
          soft_bytes = limit_bytes * (2 + second) // 8
          if budget.decides_alike(soft_bytes):
            self.assertEqual(found[second], found[first], msg=str(seed))
            num_alike += first != second
    self.assertGreater(num_alike, 20)


class SearchTest(parameterized.TestCase):
  def test_brackets_the_optimum(self):
    num_optimal = 0
    for seed in range(250):
      graph = random_graphs.random_graph(seed, 3 + seed % 5)
      initial, *orders = random_graphs.all_orders(graph)
      peaks = [liveness.peak_bytes(graph, o) for o in (initial, *orders)]
      result = _search(graph, initial)
      check_peak(graph, result.order, result.peak_bytes)
      self.assertBetween(
        min(peaks), result.lower_bound_bytes, result.peak_bytes, msg=str(seed)
      )
      num_optimal += result.peak_bytes == min(peaks)
    # The search is a heuristic, but small graphs are easy.
    self.assertGreaterEqual(num_optimal, 248)

  def test_improves_a_train_step_whose_updates_come_last(self):
    graph = random_graphs.train_step(30)
    initial = tuple(range(graph.num_nodes))
    result = _search(graph, initial)
    check_peak(graph, result.order, result.peak_bytes)
    self.assertLess(result.peak_bytes, liveness.peak_bytes(graph, initial))
    self.assertLess(result.peak_bytes, 1.02 * result.lower_bound_bytes)

  def test_is_deterministic(self):
    graph = random_graphs.train_step(20, num_branches=2)
    results = [_search(graph, range(graph.num_nodes)) for _ in range(2)]
    self.assertEqual(*results)

  def test_candidates_get_better_from_the_initial_order(self):
    graph = random_graphs.train_step(20, num_branches=2)
    initial = tuple(range(graph.num_nodes))
    result = _search(graph, initial)
    peaks = [liveness.peak_bytes(graph, o) for o in result.candidates]
    self.assertEqual(result.candidates[0], result.order)
    self.assertEqual(result.candidates[-1], initial)
    self.assertEqual(peaks, sorted(peaks))
    self.assertLen(set(result.candidates), len(result.candidates))

  def test_counts_passes(self):
    graph = random_graphs.train_step(20, num_branches=2)
    result = _search(graph, range(graph.num_nodes), max_passes=3)
    self.assertEqual(result.num_passes, 3)
    result = _search(graph, range(graph.num_nodes), max_runs=1)
    self.assertEqual(result.num_passes, 1)

  def test_nodes_that_touch_much_are_run_less_often(self):
    graph = random_graphs.train_step(20, num_branches=2)
    nodes = range(graph.num_nodes)
    # There all the time, so that it is as hard to find an order.
    everywhere = Buffer(
      name="everywhere",
      size_bytes=1,
      touchers=tuple(nodes),
      definer=None,
      live_at_start=True,
      live_at_end=True,
    )
    more = dataclasses.replace(
      graph, buffers=(*graph.buffers, *(everywhere,) * 20)
    )
    usual, less = (_search(g, nodes, max_runs=2_000) for g in (graph, more))
    self.assertLess(less.num_passes, usual.num_passes)


if __name__ == "__main__":
  absltest.main()
