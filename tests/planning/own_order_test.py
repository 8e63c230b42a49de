"""The entry keeps XLA's order where another saves nothing."""

import dataclasses

import residual_step
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from tiny_hlo import f32

from jaxmem import Options, cost
from jaxmem.planning.decision import PlannedModule
from jaxmem.planning.fit import LimitPlanner
from jaxmem.planning.own_order import with_own_order
from jaxmem.planning.reorder import plan_module

_CPU = cost.device_for("cpu")
_SMALL, _LARGE = 1024, 8192
_NUM_BRANCHES = 6


def _chain(*sizes):
  """Returns a module of parts in a chain, and the ids of each part.

  Each makes six arrays before it reduces any, where one at a time would do:
  all six small arrays take less than one large one.
  """
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  last = main.parameter(f32(64))
  parts = []
  for size in sizes:
    made = [main.op("dot", f32(size), last) for _ in range(_NUM_BRANCHES)]
    reduced = [main.op("dot", f32(16), branch) for branch in made]
    last = main.op("custom-call", f32(64), *reduced)
    parts.append([*made, *reduced, last])
  return builder.module(main), parts


def _ids(module):
  return [i.id for i in module.schedule(module.entry.id)]


class OwnOrderTest(parameterized.TestCase):
  @parameterized.parameters(
    ((_SMALL, _LARGE), {1}),
    ((_LARGE, _SMALL), {0}),
    ((_SMALL, _SMALL, _LARGE, _SMALL, _SMALL), {2}),
  )
  def test_only_what_runs_around_the_peak_is_ordered(self, sizes, changed):
    module, parts = _chain(*sizes)
    ordered = plan_module(module, _CPU, Options(), is_final=False)
    planned = plan_module(module, _CPU, Options())
    self.assertEqual(planned.planned_bytes, ordered.planned_bytes)
    self.assertEqual(
      AssignmentModel(planned.module, "cpu").temp_bytes(),
      planned.planned_bytes,
    )
    place = {i: step for step, i in enumerate(_ids(planned.module))}
    found = {
      number
      for number, ids in enumerate(parts)
      if sorted(ids, key=place.__getitem__) != ids
    }
    self.assertEqual(found, changed)

  def test_what_lies_between_two_peaks_is_given_back(self):
    module, parts = _chain(_LARGE, _SMALL, _SMALL, _LARGE)
    entry_id = module.entry.id
    number = 2 * _NUM_BRANCHES
    one_by_one = [
      i
      for *ids, last in parts
      for i in (
        *(
          ids[branch + half]
          for branch in range(_NUM_BRANCHES)
          for half in (0, _NUM_BRANCHES)
        ),
        last,
      )
    ]
    parameter = [i for i in _ids(module) if i not in one_by_one]
    order = tuple(parameter + one_by_one)
    model = AssignmentModel(module, "cpu")
    decision = dataclasses.replace(
      plan_module(module, _CPU, Options(), is_final=False).decision,
      orders={entry_id: order},
      planned_bytes=model.temp_bytes({entry_id: order}),
    )
    found = with_own_order(PlannedModule.of(module, decision))
    self.assertEqual(found.planned_bytes, decision.planned_bytes)
    ids = _ids(found.module)
    between = [i for i in ids if i in parts[1] or i in parts[2]]
    self.assertEqual(between, [*parts[1], *parts[2]])
    first = [i for i in ids if i in parts[0][:number]]
    self.assertNotEqual(first, parts[0][:number])

  def test_once_is_enough(self):
    module, _ = _chain(_SMALL, _LARGE, _SMALL)
    planned = plan_module(module, _CPU, Options())
    self.assertIs(with_own_order(planned), planned)

  def test_an_order_that_hides_transfers_is_kept(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(_LARGE))
    start = main.op("all-gather-start", f32(_LARGE), x)
    main.op("all-gather-done", f32(_LARGE), start)
    module = builder.module(main)
    decision = plan_module(_chain(_LARGE)[0], _CPU, Options()).decision
    planned = PlannedModule(given=module, module=module, decision=decision)
    self.assertIs(with_own_order(planned), planned)

  @parameterized.parameters(0.75, 0.5, 0.35)
  def test_under_a_limit_edits_stay_and_nothing_takes_more(self, fraction):
    module = residual_step.module()
    options = Options(effort="fast", verify=True)
    planner = LimitPlanner(module, _CPU, options)
    own_bytes = AssignmentModel(module, "cpu").temp_bytes()
    planned = planner.fit(planner.fixed_bytes + int(fraction * own_bytes))
    finished = planner.finished(planned)
    self.assertTrue(planned.decision.edits)
    self.assertEqual(finished.decision.edits, planned.decision.edits)
    self.assertEqual(finished.planned_bytes, planned.planned_bytes)
    again = finished.decision.apply(module)
    self.assertEqual(
      AssignmentModel(again, "cpu").temp_bytes(), finished.planned_bytes
    )
    given = _ids(module)
    self.assertGreater(
      _num_alike(_ids(again), given),
      _num_alike(_ids(planned.module), given),
    )


def _num_alike(ids, given):
  """Returns how many of XLA's instructions end an order as they end XLA's."""
  known = set(given)
  pairs = zip(
    [i for i in reversed(ids) if i in known], reversed(given), strict=False
  )
  number = 0
  for ours, theirs in pairs:
    if ours != theirs:
      break
    number += 1
  return number


if __name__ == "__main__":
  absltest.main()
