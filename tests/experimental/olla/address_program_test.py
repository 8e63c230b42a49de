import itertools

import random_graphs
from absl.testing import absltest, parameterized

from jaxmem.experimental.olla import (
  ProgramOptions,
  address_problem,
  solve,
  solve_addresses,
  solve_joint,
  without_shares,
)
from jaxmem.experimental.olla.address_program import preplace
from jaxmem.graph import Buffer as GraphBuffer
from jaxmem.graph import liveness
from jaxmem.placement import Buffer, Gap, Problem, Solution, validate

_EXACT = (
  {},
  {"bound_lifetimes": False},
  {"skip_disjoint_pairs": False},
  {"one_node_per_step": False},
  {"warm_start": False},
  {"cut_bound": False},
)
_VARIANTS = tuple(
  {"formulation": formulation, **toggles}
  for formulation in ("boolean", "interval")
  for toggles in _EXACT
)


def _problem(*rows: tuple[int, int, int], **common) -> Problem:
  """A problem of rows (size, lower, upper)."""
  return Problem(
    tuple(
      Buffer(name=f"b{i}", size_bytes=size, lower=lower, upper=upper, **common)
      for i, (size, lower, upper) in enumerate(rows)
    )
  )


def _brute_force_height(problem: Problem) -> int:
  """The least height: each buffer above all it meets, in every sequence.

  By rising offsets of an optimum, none ends up higher than in it.
  """
  buffers = [b for b in problem.buffers if b.size_bytes]
  best = sum(b.size_bytes for b in buffers)
  for sequence in itertools.permutations(buffers):
    tops: list[tuple[Buffer, int]] = []
    for buffer in sequence:
      met = [
        top
        for other, top in tops
        if buffer.lower < other.upper and other.lower < buffer.upper
      ]
      tops.append((buffer, max(met, default=0) + buffer.size_bytes))
    best = min(best, max((top for _, top in tops), default=0))
  return best


def _check(problem: Problem, offsets: tuple[int, ...], height: int) -> None:
  solution = Solution(
    offsets=offsets,
    height_bytes=height,
    lower_bound_bytes=height,
    method="olla",
  )
  validate(problem, solution)


def _small_graphs(num_graphs: int):
  """Graphs of up to six nodes with up to six tensors to place."""
  found = 0
  for seed in itertools.count():
    graph = without_shares(random_graphs.random_graph(seed, 2 + seed % 5))
    try:
      order = next(iter(random_graphs.all_orders(graph)))
      problem = address_problem(graph, order)
    except ValueError:
      continue  # Nothing to place.
    if len([b for b in problem.buffers if b.size_bytes]) <= 6:
      yield seed, graph
      found += 1
      if found == num_graphs:
        return


class SolveAddressesTest(parameterized.TestCase):
  # The authors pin a top of 50 for these sizes and live ranges. The tensor in
  # the middle meets both others, which do not meet: 50 = 23 + 27 needs 23 to be
  # the middle one. Otherwise 25 and 27 meet.
  @parameterized.parameters(
    (25, 23, 27, 50), (23, 25, 27, 52), (23, 27, 25, 52)
  )
  def test_placement_of_the_authors(self, first, middle, last, height):
    problem = _problem((first, 0, 10), (middle, 9, 13), (last, 12, 15))
    self.assertEqual(_brute_force_height(problem), height)
    for toggles in _VARIANTS:
      result = solve_addresses(problem, ProgramOptions(**toggles))
      self.assertEqual(result.value_bytes, height)
      self.assertEqual(result.lower_bound_bytes, height)
      _check(problem, result.offsets_bytes, height)

  @parameterized.parameters(*_VARIANTS)
  def test_equals_brute_force(self, **toggles):
    options = ProgramOptions(**toggles)
    for seed, graph in _small_graphs(20):
      order = next(iter(random_graphs.all_orders(graph)))
      problem = address_problem(graph, order)
      result = solve_addresses(problem, options)
      best = _brute_force_height(problem)
      self.assertEqual(result.value_bytes, best, msg=str(seed))
      self.assertEqual(result.status, "optimal")
      _check(problem, result.offsets_bytes, best)

  @parameterized.parameters("boolean", "interval")
  def test_keeps_alignments_and_fixed_offsets(self, formulation):
    aligned = Buffer(
      name="aligned", size_bytes=4, lower=0, upper=2, alignment_bytes=8
    )
    fixed = Buffer(name="fixed", size_bytes=4, lower=1, upper=3, offset_bytes=2)
    other = Buffer(name="other", size_bytes=6, lower=0, upper=3)
    problem = Problem((aligned, fixed, other))
    # `fixed` takes 2 to 6, so `other` lies above, and `aligned` at 8 or 16: one
    # of 6 to 12 and 8 to 12 has to give way.
    for warm_start in (False, True):
      options = ProgramOptions(formulation=formulation, warm_start=warm_start)
      result = solve_addresses(problem, options)
      self.assertEqual((result.value_bytes, result.status), (18, "optimal"))
      _check(problem, result.offsets_bytes, 18)

  def test_refuses_gaps(self):
    buffer = Buffer(name="x", size_bytes=4, lower=0, upper=9, gaps=(Gap(2, 4),))
    with self.assertRaisesRegex(ValueError, "live without gaps, but 'x' has"):
      solve_addresses(Problem((buffer,)))

  def test_refuses_what_the_solver_cannot_add_up_exactly(self):
    buffers = [
      Buffer(name=str(size), size_bytes=(1 << 52) + size, lower=0, upper=1)
      for size in (1, 2)
    ]
    with self.assertRaisesRegex(ValueError, "Round the"):
      solve_addresses(Problem(tuple(buffers)))

  def test_the_pyramid_has_the_longest_lived_below(self):
    problem = _problem((3, 2, 4), (5, 0, 9), (7, 1, 6), (2, 5, 9))
    offsets = [b.offset_bytes for b in preplace(problem).buffers]
    # (0, 9) then (1, 6) then (2, 4); (5, 9) is not inside (1, 6).
    self.assertEqual(offsets, [12, 0, 5, None])

  @parameterized.parameters("boolean", "interval")
  def test_a_pyramid_is_valid_and_never_claims_too_much(self, formulation):
    options = ProgramOptions(formulation=formulation, preplace_pyramid=True)
    for seed, graph in _small_graphs(20):
      order = next(iter(random_graphs.all_orders(graph)))
      problem = address_problem(graph, order)
      result = solve_addresses(problem, options)
      best = _brute_force_height(problem)
      self.assertGreaterEqual(result.value_bytes, best, msg=str(seed))
      self.assertLessEqual(result.lower_bound_bytes, best, msg=str(seed))
      _check(problem, result.offsets_bytes, result.value_bytes)

  @parameterized.parameters(*_VARIANTS)
  def test_some_fragmentation_cannot_be_avoided(self, **toggles):
    # 7 bytes are live in every step, but no placement is lower than 8.
    problem = _problem(
      (3, 0, 1),
      (4, 0, 2),
      (2, 1, 3),
      (1, 2, 3),
      (1, 1, 4),
      (1, 2, 4),
      (2, 2, 5),
      (3, 3, 5),
      (2, 4, 5),
    )
    result = solve_addresses(problem, ProgramOptions(**toggles))
    self.assertEqual((result.value_bytes, result.status), (8, "optimal"))
    _check(problem, result.offsets_bytes, 8)


class SolveJointTest(parameterized.TestCase):
  @parameterized.parameters(*_VARIANTS)
  def test_equals_brute_force(self, **toggles):
    options = ProgramOptions(**toggles)
    for seed, graph in _small_graphs(20):
      heights = {}
      for order in random_graphs.all_orders(graph):
        problem = address_problem(graph, order)
        ranges = tuple((b.lower, b.upper) for b in problem.buffers)
        if ranges not in heights:
          heights[ranges] = _brute_force_height(problem)
      result = solve_joint(graph, order, options)
      best = min(heights.values())
      self.assertEqual(result.value_bytes, best, msg=str(seed))
      self.assertEqual(result.status, "optimal", msg=str(seed))
      problem = address_problem(graph, result.order)
      _check(problem, result.offsets_bytes, best)

  @parameterized.parameters("boolean", "interval")
  def test_split_and_joint_agree_on_a_train_step(self, formulation):
    graph = random_graphs.train_step(2)
    for split in (False, True):
      options = ProgramOptions(formulation=formulation, split=split)
      result = solve(graph, None, options)
      self.assertEqual(result.status, "optimal")
      peak_bytes = liveness.peak_bytes(graph, result.order)
      self.assertEqual(result.value_bytes, peak_bytes)
      problem = address_problem(graph, result.order)
      _check(problem, result.offsets_bytes, result.value_bytes)

  @parameterized.parameters("boolean", "interval")
  def test_a_split_can_miss_the_optimum(self, formulation):
    # In the graph's own order 8 bytes are live in every step. That is optimal,
    # but cannot be placed in 8 bytes. Another order can.
    rows = [(1, 0, 1), (1, 0, 1), (4, 0, 1), (3, 1, 2), (2, 0, 3), (2, 2, 3)]
    rows += [(3, 1, 4), (3, 3, 4), (1, 2, 5), (1, 3, 5), (2, 4, 5), (4, 4, 5)]
    buffers = [
      GraphBuffer(
        name=f"b{i}",
        size_bytes=size,
        touchers=tuple(sorted({lower, upper - 1})),
        definer=lower,
      )
      for i, (size, lower, upper) in enumerate(rows)
    ]
    graph = random_graphs.build([(), (0,), (0,), (1,), (2, 3)], buffers)
    for split, height, status in ((True, 9, "feasible"), (False, 8, "optimal")):
      options = ProgramOptions(formulation=formulation, split=split)
      result = solve(graph, None, options)
      self.assertEqual((result.value_bytes, result.status), (height, status))
      problem = address_problem(graph, result.order)
      _check(problem, result.offsets_bytes, height)

  @parameterized.parameters("boolean", "interval")
  def test_heuristics_are_valid_and_never_claim_too_much(self, formulation):
    graph = random_graphs.train_step(2)
    best = solve_joint(graph).value_bytes
    for split in (False, True):
      options = ProgramOptions(
        formulation=formulation,
        split=split,
        anchor_updates=True,
        preplace_pyramid=True,
      )
      result = solve(graph, None, options)
      self.assertLessEqual(result.lower_bound_bytes, best)
      self.assertGreaterEqual(result.value_bytes, best)
      problem = address_problem(graph, result.order)
      _check(problem, result.offsets_bytes, result.value_bytes)

  @parameterized.parameters(False, True)
  def test_a_limit_is_a_status(self, split):
    graph = random_graphs.train_step(3, num_branches=2)
    for formulation in ("boolean", "interval"):
      options = ProgramOptions(
        formulation=formulation, split=split, max_deterministic_time=1e-6
      )
      result = solve(graph, None, options)
      self.assertEqual(result.status, "feasible")
      problem = address_problem(graph, result.order)
      _check(problem, result.offsets_bytes, result.value_bytes)

  def test_what_is_live_at_both_ends_stays(self):
    weight = GraphBuffer(
      name="w",
      size_bytes=8,
      touchers=(1,),
      definer=None,
      live_at_start=True,
      live_at_end=True,
    )
    value = GraphBuffer(name="x", size_bytes=4, touchers=(0, 1), definer=0)
    graph = random_graphs.build([(), (0,)], [weight, value])
    result = solve_joint(graph)
    self.assertEqual((result.value_bytes, result.status), (12, "optimal"))

  def test_refuses_a_graph_without_buffers(self):
    graph = random_graphs.build([()], [])
    with self.assertRaisesRegex(ValueError, "at least one buffer"):
      solve_joint(graph)


if __name__ == "__main__":
  absltest.main()
