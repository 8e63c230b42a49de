"""Callees keep XLA's order where another would not save anything."""

import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from tiny_hlo import f32

from jaxmem import Options, cost
from jaxmem.planning.fit import LimitPlanner
from jaxmem.planning.inner_orders import without_needless
from jaxmem.planning.reorder import plan_module

_SMALL, _LARGE = 1024, 8192


def _callee(builder, name, size):
  """Adds six branches that are all made before any is reduced.

  In that order six arrays are live at once, in the best one is.
  """
  made = builder.computation(name)
  x = made.parameter(f32(64))
  branches = [made.op("dot", f32(size), x) for _ in range(6)]
  results = [made.op("dot", f32(16), branch) for branch in branches]
  made.op("custom-call", f32(64), *results)
  return made


def _program(sizes):
  """Returns a module that runs callees in a chain, and their ids."""
  builder = tiny_hlo.Builder()
  callees = [_callee(builder, f"c{i}", s) for i, s in enumerate(sizes)]
  main = builder.computation("main")
  last = main.parameter(f32(64))
  for callee in callees:
    last = main.op("call", f32(64), last, calls=(callee,))
  return builder.module(main), [callee.proto.id for callee in callees]


def _plan(module, is_final=True):
  device = cost.device_for("cpu")
  return plan_module(module, device, Options(), is_final)


class InnerOrdersTest(parameterized.TestCase):
  @parameterized.parameters(
    # All six small arrays take less than one large one.
    ((_SMALL,), (0,)),
    ((_LARGE, _SMALL), (0,)),
    ((_SMALL, _LARGE), (1,)),
    ((_SMALL, _LARGE, _SMALL, _SMALL, _LARGE), (1, 4)),
    ((_LARGE, _LARGE), (0, 1)),
  )
  def test_only_those_that_save_bytes_change(self, sizes, changed):
    module, callees = _program(sizes)
    plan = _plan(module).decision
    self.assertEqual(set(plan.orders), {callees[i] for i in changed})

  def test_nothing_takes_more_bytes(self):
    module, callees = _program((_SMALL, _LARGE, _SMALL))
    ordered = _plan(module, is_final=False)
    self.assertEqual(set(ordered.decision.orders), set(callees))
    found = without_needless(ordered)
    self.assertEqual(
      found.decision.planned_bytes, ordered.decision.planned_bytes
    )
    model = AssignmentModel(found.module, "cpu")
    self.assertEqual(model.temp_bytes(), found.decision.planned_bytes)
    self.assertLess(found.decision.planned_bytes, found.decision.baseline_bytes)

  def test_under_a_limit_what_is_said_of_the_order_holds(self):
    module, callees = _program((_SMALL, _LARGE))
    planner = LimitPlanner(module, cost.device_for("cpu"), Options())
    base = planner.fit(planner.total_bytes).decision.base
    self.assertEqual(set(base.orders), {callees[1]})
    model = AssignmentModel(base.apply(module), "cpu")
    self.assertEqual(model.temp_bytes(), base.planned_bytes)


if __name__ == "__main__":
  absltest.main()
