"""Tests of planning.reorder: plans of recorded and of compiled modules."""

import os
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import schedule
from jaxmem_hlo.buffers.dataflow import UnsupportedModuleError
from jaxmem_hlo.module import Module
from tiny_hlo import f32, tuple_of

from jaxmem import Options, cost, order
from jaxmem.planning.order_search import OrderSearch
from jaxmem.planning.reorder import plan_module

_DIGEST = """
import hashlib, sys
import record_modules
from jaxmem import Options, cost
from jaxmem.planning.reorder import plan_module
for name in sys.argv[1:]:
  recorded = record_modules.load(name)
  device = cost.device_for(name.rpartition("_")[2])
  plan = plan_module(recorded.module, device, Options()).decision
  text = repr((sorted(plan.orders.items()), plan.removed_copies, plan.method))
  print(hashlib.sha256(text.encode()).hexdigest())
"""


def _device(name):
  """Returns the device that a recorded program was compiled for."""
  return cost.device_for(name.rpartition("_")[2])


def _plan(module, device=None, **options):
  device = device or cost.device_for("cpu")
  return plan_module(module, device, Options(**options)).decision


def _decided(plan):
  return plan.orders, plan.removed_copies, plan.planned_bytes, plan.method


class RecordedTest(parameterized.TestCase):
  def plan(self, name, **options):
    module = record_modules.load(name).module
    return _plan(module, _device(name), **options), module

  @parameterized.product(
    name=sorted(record_modules.PROGRAMS), effort=("fast", "normal", "prove")
  )
  def test_never_worse_and_valid(self, name, effort):
    recorded = record_modules.load(name)
    plan, module = self.plan(name, effort=effort)
    self.assertEqual(plan.baseline_bytes, recorded.temp_bytes)
    self.assertLessEqual(plan.planned_bytes, plan.baseline_bytes)
    self.assertLessEqual(plan.lower_bound_bytes, plan.planned_bytes)
    self.assertEqual(plan.platform, recorded.platform)
    planned = plan.apply(module)
    for computation_id in planned.scheduled_ids:
      computation = planned.by_id[computation_id]
      ids = [i.id for i in planned.schedule(computation_id)]
      schedule.check_schedule(computation, ids)
    # Read back from bytes, as XLA reads it, the plan needs what it said.
    again = Module.from_bytes(planned.to_bytes())
    model = AssignmentModel(again, recorded.platform)
    self.assertEqual(model.assign().temp_bytes, plan.planned_bytes)

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_one_search_says_nothing_that_two_refute(self, name):
    quick, _ = self.plan(name)
    with mock.patch.object(OrderSearch, "_taken") as taken:
      taken.return_value = None
      thorough, _ = self.plan(name)
    self.assertLessEqual(quick.lower_bound_bytes, thorough.planned_bytes)
    self.assertLessEqual(thorough.lower_bound_bytes, quick.planned_bytes)
    if quick.status == "optimal" and thorough.orders:
      self.assertLessEqual(
        quick.planned_bytes, 1.01 * thorough.planned_bytes, msg=quick.method
      )

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_the_module_itself_is_left_alone(self, name):
    _, module = self.plan(name)
    self.assertEqual(
      module.to_bytes(), record_modules.load(name).module.to_bytes()
    )

  def test_some_recorded_plans_save_something(self):
    plans = [self.plan(name)[0] for name in record_modules.PROGRAMS]
    smaller = [p for p in plans if p.planned_bytes < p.baseline_bytes]
    self.assertGreaterEqual(len(smaller), 2)
    self.assertTrue(all(p.is_changed for p in smaller))
    self.assertTrue(all(p.status != "baseline" for p in smaller))

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_shuffled_schedules_are_repaired(self, name):
    # Planning starts from a bad order, and must not end above the good one's.
    recorded = record_modules.load(name)
    module = recorded.module.with_schedules(recorded.orders)
    plan = _plan(module, _device(name), min_gain=0.0)
    self.assertEqual(plan.baseline_bytes, recorded.shuffled_temp_bytes)
    self.assertLessEqual(plan.planned_bytes, plan.baseline_bytes)
    self.assertLessEqual(plan.planned_bytes, 1.05 * recorded.temp_bytes)

  def test_a_gain_that_is_asked_for_and_not_reached_changes_nothing(self):
    for name in record_modules.PROGRAMS:
      plan, module = self.plan(name, min_gain=0.99)
      self.assertFalse(plan.is_changed)
      self.assertEqual(plan.planned_bytes, plan.baseline_bytes)
      self.assertEqual(plan.apply(module).to_bytes(), module.to_bytes())

  def test_copies_are_kept_on_request(self):
    removed = [
      self.plan(name)[0].removed_copies for name in record_modules.PROGRAMS
    ]
    self.assertTrue(any(removed))
    for name in record_modules.PROGRAMS:
      plan, _ = self.plan(name, remove_copies=False)
      self.assertEqual(plan.removed_copies, ())

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_the_same_module_twice(self, name):
    self.assertEqual(_decided(self.plan(name)[0]), _decided(self.plan(name)[0]))

  def test_the_same_module_in_processes_that_hash_differently(self):
    outputs = set()
    for seed in ("1", "2"):
      helpers = os.path.dirname(record_modules.__file__)
      paths = [helpers, *filter(None, sys.path)]
      out = subprocess.run(
        [sys.executable, "-c", _DIGEST, *record_modules.PROGRAMS],
        env={
          **os.environ,
          "PYTHONHASHSEED": seed,
          "PYTHONPATH": os.pathsep.join(paths),
        },
        check=True,
        capture_output=True,
        text=True,
      )
      self.assertLen(out.stdout.split(), len(record_modules.PROGRAMS))
      outputs.add(out.stdout)
    self.assertLen(outputs, 1)


class TinyTest(absltest.TestCase):
  def test_branches_run_one_after_the_other(self):
    # Six branches of 4 KiB, each reduced to 64 bytes, all made before any is
    # reduced: all six and the first result are live at once. One after the
    # other, only one branch is live with the results. The last of these is
    # made beside the last branch, and none may lie in the output, which all
    # of them are read for.
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(1024), name="x")
    large = [main.op("dot", f32(1024), x, name=f"l{i}") for i in range(6)]
    small = [main.op("dot", f32(16), y) for y in large]
    main.op("custom-call", f32(16), *small, name="root")
    plan = _plan(builder.module(main))
    self.assertEqual(plan.baseline_bytes, 6 * 4096 + 64)
    self.assertEqual(plan.planned_bytes, 4096 + 6 * 64)
    # The bound does not know that the output cannot be used.
    self.assertEqual(plan.lower_bound_bytes, 4096 + 5 * 64)
    self.assertEqual(plan.status, "feasible")

  def test_a_chain_has_one_order(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    last = main.parameter(f32(64), name="x")
    for _ in range(5):
      last = main.op("dot", f32(64), last)
    plan = _plan(builder.module(main))
    self.assertFalse(plan.is_changed)
    self.assertEqual(plan.planned_bytes, plan.baseline_bytes)
    self.assertEqual(plan.status, "optimal")

  def test_unknown_instructions_are_refused(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    main.op("infeed", tuple_of(f32(8), tiny_hlo.token()), name="fed")
    with self.assertRaisesRegex(UnsupportedModuleError, "fed has opcode"):
      _plan(builder.module(main))

  def test_a_schedule_that_breaks_a_donation_is_refused(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    new = main.op("dot", f32(8), main.parameter(f32(8)), name="new")
    read = main.op("dot", f32(8), x, name="read")
    main.tuple(new, read)
    module = builder.module(main, donations=[(0, (0,))])
    with self.assertRaisesRegex(UnsupportedModuleError, "already overwritten"):
      _plan(module)


class UnrolledLoopTest(parameterized.TestCase):
  """XLA:CPU makes the temporaries of many iterations first (xla#35719)."""

  def chain(self, x, y):
    total = x
    for i in range(64):
      total = jnp.dot(total, jnp.tanh((x * i) @ y)) * 0.1
    return total

  def sums(self, x, y):
    total = jnp.zeros((64,))
    for i in range(64):
      big = jnp.sort((x * i) @ y, axis=0)
      total = total.at[i].add(jnp.sum(big[::2]))
    return total

  @parameterized.parameters("chain", "sums")
  def test_needs_one_iterations_memory(self, name):
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    pair = record_modules.compile_both(getattr(self, name), (shape, shape))
    one = 64 * 64 * 4
    # Else there is nothing to repair, and the test says nothing.
    self.assertGreater(pair.baseline_bytes, 48 * one)
    # One iteration reads one array and makes another.
    self.assertLessEqual(pair.planned_bytes, 2 * one + 4096)
    self.assertEqual(pair.planned_bytes, pair.plan.planned_bytes)


class EffortTest(absltest.TestCase):
  def test_little_searches_one_model(self):
    # Its order is not optimal where slots are free, as far as is known.
    pair = record_modules.zoo_pair("unet")
    searched, planned_bytes = {}, {}
    for effort in ("fast", "normal"):
      with mock.patch.object(
        order, "plan_order", side_effect=order.plan_order
      ) as search:
        plan = _plan(pair.module, effort=effort)
      searched[effort] = search.call_count
      planned_bytes[effort] = plan.planned_bytes
      self.assertLessEqual(plan.lower_bound_bytes, plan.planned_bytes)
    self.assertEqual(searched, {"fast": 1, "normal": 2})
    self.assertLess(planned_bytes["fast"], pair.plan.baseline_bytes)


class PricingTest(parameterized.TestCase):
  @parameterized.parameters("alexnet", "unet")
  def test_no_order_is_priced_that_cannot_win(self, name):
    price, live_bytes = OrderSearch._price, OrderSearch._live_bytes

    def priced(search, nodes, limit_bytes):
      live = live_bytes(search, nodes)
      if limit_bytes is not None:
        self.assertLessEqual(live, limit_bytes)
      # Why others need no price: they take what is live at the least.
      num_bytes = price(search, nodes, None)
      self.assertLessEqual(live, num_bytes)
      return num_bytes

    pair = record_modules.zoo_pair(name)
    with mock.patch.object(OrderSearch, "_price", priced):
      to_the_end = _plan(pair.module)
    self.assertEqual(_decided(to_the_end), _decided(pair.plan))


if __name__ == "__main__":
  absltest.main()
