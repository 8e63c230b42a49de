import dataclasses

import cross_check_graphs
import random_graphs
from absl.testing import absltest, parameterized
from naive_peak import check_peak

from jaxmem.experimental.olla import (
  ProgramOptions,
  anchor_updates,
  solve_order,
  without_shares,
)
from jaxmem.graph import Buffer, ValidationError, liveness

# Every technique that must not change the optimum, turned around.
_EXACT = (
  {},
  {"bound_lifetimes": False},
  {"one_node_per_step": False},
  {"warm_start": False},
  {"cut_bound": False},
  {"bound_lifetimes": False, "one_node_per_step": False, "cut_bound": False},
)
_VARIANTS = tuple(
  {"formulation": formulation, **toggles}
  for formulation in ("boolean", "interval")
  for toggles in _EXACT
)


class SolveOrderTest(parameterized.TestCase):
  @parameterized.parameters(*_VARIANTS)
  def test_equals_brute_force(self, **toggles):
    options = ProgramOptions(**toggles)
    for seed in range(50):
      graph = without_shares(random_graphs.random_graph(seed, 1 + seed % 6))
      peaks = cross_check_graphs.peaks_by_order(graph)
      worst = max(peaks, key=lambda order: peaks[order])
      result = solve_order(graph, worst, options)
      check_peak(graph, result.order, result.value_bytes)
      self.assertEqual(result.value_bytes, min(peaks.values()), msg=str(seed))
      self.assertEqual(result.status, "optimal", msg=str(seed))

  @parameterized.named_parameters(*cross_check_graphs.CASES)
  def test_programs_of_the_authors(self, graph, least, most):
    peaks = cross_check_graphs.peaks_by_order(graph)
    self.assertEqual((min(peaks.values()), max(peaks.values())), (least, most))
    worst = max(peaks, key=lambda order: peaks[order])
    for toggles in _VARIANTS:
      result = solve_order(graph, worst, ProgramOptions(**toggles))
      self.assertEqual(result.value_bytes, least)
      self.assertEqual(result.lower_bound_bytes, least)

  @parameterized.parameters("boolean", "interval")
  def test_anchors_are_never_worse_and_never_claim_too_much(self, formulation):
    options = ProgramOptions(formulation=formulation, anchor_updates=True)
    exact = dataclasses.replace(options, anchor_updates=False)
    for num_layers in (1, 2, 3):
      graph = random_graphs.train_step(num_layers)
      found = solve_order(graph, None, options)
      best = solve_order(graph, None, exact)
      check_peak(graph, found.order, found.value_bytes)
      self.assertEqual(best.status, "optimal")
      self.assertGreaterEqual(found.value_bytes, best.value_bytes)
      self.assertLessEqual(found.lower_bound_bytes, best.value_bytes)

  def test_anchors_can_miss_the_optimum(self):
    graph = _with_a_late_update()
    peaks = [
      liveness.peak_bytes(graph, o) for o in random_graphs.all_orders(graph)
    ]
    anchored = [
      liveness.peak_bytes(graph, o)
      for o in random_graphs.all_orders(anchor_updates(graph))
    ]
    self.assertLess(min(peaks), min(anchored))
    # The graph's own order runs the update last, and is not given up.
    options = ProgramOptions(anchor_updates=True, cut_bound=False)
    result = solve_order(graph, None, options)
    self.assertEqual(result.value_bytes, min(peaks))
    self.assertEqual(result.status, "feasible")

  @parameterized.parameters("boolean", "interval")
  def test_a_limit_is_a_status(self, formulation):
    graph = random_graphs.train_step(6, num_branches=2)
    options = ProgramOptions(
      formulation=formulation, max_deterministic_time=1e-6
    )
    result = solve_order(graph, None, options)
    check_peak(graph, result.order, result.value_bytes)
    self.assertEqual(result.status, "feasible")
    self.assertGreater(result.lower_bound_bytes, 0)

  @parameterized.parameters("boolean", "interval")
  def test_is_deterministic(self, formulation):
    graph = random_graphs.train_step(2, num_branches=2)
    options = ProgramOptions(
      formulation=formulation, max_deterministic_time=0.05
    )
    results = [solve_order(graph, None, options) for _ in range(2)]
    self.assertEqual(*results)

  def test_windows_make_the_model_smaller(self):
    graph = random_graphs.train_step(2)
    full = ProgramOptions(formulation="boolean", bound_lifetimes=False)
    bounded = ProgramOptions(formulation="boolean")
    sizes = [solve_order(graph, None, o).size for o in (bounded, full)]
    self.assertLess(2 * sizes[0].num_variables, sizes[1].num_variables)
    self.assertLess(2 * sizes[0].num_constraints, sizes[1].num_constraints)

  def test_refuses_what_it_cannot_solve(self):
    graph = random_graphs.build([(), (0,)], [])
    with self.assertRaisesRegex(ValidationError, "before its"):
      solve_order(graph, (1, 0))
    with self.assertRaisesRegex(ValueError, "formulation must be one of"):
      ProgramOptions(formulation="ilp")  # pyright: ignore[reportArgumentType]
    with self.assertRaisesRegex(ValueError, "must be positive"):
      ProgramOptions(max_deterministic_time=0)

  @parameterized.parameters("boolean", "interval")
  def test_sizes_near_the_limit_are_added_up_exactly(self, formulation):
    # As "simple" of the cross-check graphs, with sizes of odd numbers of bytes.
    scale = (1 << 53) // 128
    rows = [
      ("a", 30 * scale + 1, ()),
      ("b", 30 * scale + 3, ("a",)),
      ("c", 10 * scale + 5, ("a",)),
      ("d", 30 * scale + 7, ("b",)),
      ("e", 10 * scale + 9, ("c", "d")),
    ]
    graph = random_graphs.dataflow(rows)
    peaks = cross_check_graphs.peaks_by_order(graph)
    worst = max(peaks, key=lambda order: peaks[order])
    options = ProgramOptions(formulation=formulation, cut_bound=False)
    result = solve_order(graph, worst, options)
    self.assertEqual(result.value_bytes, min(peaks.values()))
    self.assertEqual(result.lower_bound_bytes, result.value_bytes)

  def test_no_nodes_need_no_bytes(self):
    result = solve_order(random_graphs.build([], []))
    self.assertEqual((result.order, result.value_bytes), ((), 0))
    self.assertEqual(result.status, "optimal")


def _with_a_late_update():
  """The update writes a large new weight: better when all else is gone.

  x (10) feeds the update (writes 5, live at the end) and a chain of which the
  second node reads x again and needs 20 extra bytes.
  """
  buffers = [
    Buffer(name="x", size_bytes=10, touchers=(0, 1, 2, 3), definer=0),
    Buffer(name="y", size_bytes=1, touchers=(1, 2), definer=1),
    Buffer(name="w", size_bytes=5, touchers=(3,), definer=3, live_at_end=True),
  ]
  return random_graphs.build(
    [(), (0,), (0, 1), (0,)], buffers, extra_bytes=[0, 0, 20, 0]
  )


if __name__ == "__main__":
  absltest.main()
