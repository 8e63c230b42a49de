"""Faults of the planner never reach the user; threads and caches keep apart."""

import itertools
import tempfile
import threading
import warnings
from unittest import mock

import cached_process
import jax
import record_modules
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.compiler_hook import PlanningWarning
from jaxmem_hlo.module import Module
from watched import WatchedTest, arrays, branches

import jaxmem
from jaxmem import order
from jaxmem.entry import PLANNED
from jaxmem.order import OrderResult
from jaxmem.planning import request
from jaxmem.planning.decision import ModulePlan


def _result(graph, candidates, peak_bytes=100):
  return OrderResult(
    order=tuple(candidates[0]) if candidates else (),
    peak_bytes=peak_bytes,
    lower_bound_bytes=0,
    method="injected",
    num_passes=0,
    candidates=tuple(map(tuple, candidates)),
  )


def _no_search(graph, *unused, **options):
  """What a search says that ran out of its budget at once."""
  return _result(graph, [range(graph.num_nodes)])


_WRONG_ORDERS = {
  "missing": lambda n: range(n - 1),
  "repeated": lambda n: [*range(n - 1), 0],
  "twice": lambda n: [*range(n), 0],
  "unknown": lambda n: [*range(n - 1), n + 7],
  "backwards": lambda n: reversed(range(n)),
  "empty": lambda n: [],
}


def _refused(kind):
  """Returns what writes modules that XLA does not take."""
  write = Module.to_bytes

  def to_bytes(module):
    if kind == "nothing":
      return b""
    order = [i.id for i in module.schedule(module.entry.id)]
    wrong = {"short": order[:-1], "backwards": order[::-1]}.get(kind, order)
    data = write(module.with_schedules({module.entry.id: wrong}))
    return data[: len(data) // 2] if kind == "half" else data

  return to_bytes


class FaultTest(WatchedTest):
  """No fault of the planner may reach the user's step."""

  def check(self, *, num_warnings):
    """Compiles two steps; both must be right, whatever was broken."""
    x, y = arrays()
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      for scale in (1.0, 2.0):

        def step(x, y, scale=scale):
          return branches(x, y) * scale

        theirs, ours = (
          jit(step).lower(x, y).compile() for jit in (jax.jit, jaxmem.jit)
        )
        self.assertEqual(ours(x, y), theirs(x, y))
        self.assertLessEqual(
          record_modules.temp_bytes(ours), record_modules.temp_bytes(theirs)
        )
    found = [w for w in caught if w.category is PlanningWarning]
    self.assertLen(found, num_warnings)
    return found

  def test_nothing_is_wrong(self):
    self.check(num_warnings=0)
    self.assertTrue(all(plan.is_changed for _, plan in self.plans))

  def test_the_search_raises(self):
    with mock.patch.object(order, "plan_order", side_effect=MemoryError("m")):
      (warning,) = self.check(num_warnings=1)
    self.assertRegex(str(warning.message), "MemoryError: m. Results are not")

  @parameterized.parameters(*_WRONG_ORDERS)
  def test_the_search_returns_nonsense_that_looks_good(self, kind):
    def wrong(graph, *unused, **options):
      return _result(graph, [_WRONG_ORDERS[kind](graph.num_nodes)])

    # Whatever is priced later seems to need fewer bytes.
    prices = itertools.count(-1, -1)
    with (
      mock.patch.object(order, "plan_order", wrong),
      mock.patch.object(AssignmentModel, "temp_bytes", lambda *_: next(prices)),
    ):
      self.check(num_warnings=1)
    self.assertEqual(self.plans, [])

  @parameterized.parameters(*_WRONG_ORDERS)
  def test_the_search_returns_nonsense(self, kind):
    def wrong(graph, *unused, **options):
      return _result(graph, [_WRONG_ORDERS[kind](graph.num_nodes)])

    x, y = arrays()
    with (
      mock.patch.object(order, "plan_order", wrong),
      warnings.catch_warnings(),
    ):
      warnings.simplefilter("ignore")
      self.assertEqual(jaxmem.jit(branches)(x, y), jax.jit(branches)(x, y))
    for _, plan in self.plans:
      self.assertFalse(plan.is_changed)

  def test_the_graph_has_a_cycle(self):
    cycle = ValueError("must not form a cycle")
    with mock.patch("jaxmem.graph.hlo_graph.Graph", side_effect=cycle):
      (warning,) = self.check(num_warnings=1)
    self.assertIn("must not form a cycle", str(warning.message))

  def test_the_search_ran_out_of_time(self):
    with mock.patch.object(order, "plan_order", _no_search):
      self.check(num_warnings=0)
    for _, plan in self.plans:
      self.assertFalse(plan.is_changed)
      self.assertEqual(plan.status, "baseline")

  def test_the_search_finds_nothing_better_and_proves_nothing(self):
    def empty(graph, *unused, **options):
      return _result(graph, [])

    with mock.patch.object(order, "plan_order", empty):
      self.check(num_warnings=0)
    self.assertTrue(all(not plan.is_changed for _, plan in self.plans))

  def test_the_module_cannot_be_read(self):
    with mock.patch.object(
      request.Module, "from_bytes", side_effect=ValueError("Not a serialized")
    ):
      self.check(num_warnings=1)

  def test_the_plan_cannot_be_applied(self):
    with mock.patch.object(ModulePlan, "apply", side_effect=KeyError(3)):
      self.check(num_warnings=1)

  @parameterized.parameters("nothing", "half", "short", "backwards")
  def test_xla_refuses_the_edited_module(self, kind):
    with mock.patch.object(Module, "to_bytes", _refused(kind)):
      (warning,) = self.check(num_warnings=1)
    self.assertRegex(str(warning.message), "XLA refused the plan .INTERNAL")
    record = PLANNED.records.all()[-1]
    self.assertStartsWith(record.why_not, "XLA refused the plan")

  def test_xla_refuses_the_edited_module_under_a_limit(self):
    step = jaxmem.jit(branches, memory_limit="1GiB")
    with (
      mock.patch.object(Module, "to_bytes", _refused("half")),
      self.assertRaisesRegex(jaxmem.PlanningError, "XLA refused the plan"),
    ):
      step(*arrays())
    self.assertEqual(step(*arrays()), jax.jit(branches)(*arrays()))

  def test_what_xla_says_of_the_program_itself_stays_its_own(self):
    options = {"xla_no_such_option": "1"}
    with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "No such compile"):
      jaxmem.jit(branches, compiler_options=options)(*arrays())

  def test_plan_says_that_it_failed_and_why(self):
    with (
      mock.patch.object(order, "plan_order", side_effect=KeyError("inside")),
      self.assertRaisesRegex(RuntimeError, "could not be planned") as context,
    ):
      jaxmem.plan(branches, *arrays())
    self.assertIsInstance(context.exception.__cause__, KeyError)


class ThreadTest(WatchedTest):
  def test_steps_compiled_at_once_have_their_own_plans(self):
    x, y = arrays()
    sizes = (16, 24, 32, 40)

    def step(x, y):
      return branches(x, y) + x[0, 0]

    expected = {
      size: record_modules.compile_both(step, (x[:size], y)).planned_bytes
      for size in sizes
    }
    self.assertLen(set(expected.values()), len(sizes))
    self.plans.clear()
    start = threading.Barrier(len(sizes))
    temps = {}

    def work(size):
      # A function of its own: jax would wait for one that it compiles already.
      lowered = jaxmem.jit(lambda x, y: step(x, y)).lower(x[:size], y)
      start.wait()
      temps[size] = record_modules.temp_bytes(lowered.compile())

    threads = [threading.Thread(target=work, args=(s,)) for s in sizes]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertEqual(temps, expected)
    self.assertLen(self.plans, len(sizes))
    planned = {plan.planned_bytes for _, plan in self.plans}
    self.assertEqual(planned, set(expected.values()))


_CACHED = """
from jaxmem.planning import request
plan_module = request.plan_module
def watch(*args):
  events.append("plan")
  return plan_module(*args)
request.plan_module = watch
def step(x, y):
  total = jnp.float32(0)
  for i in range(6):
    total += jnp.sum(jnp.sin((x + i) @ y) @ x.T)
  return total
x = jax.ShapeDtypeStruct((48, 48), jnp.float32)
for kind in sys.argv[2].split(","):
  events.clear()
  jit = {"jax": jax.jit, "jaxmem": jaxmem.jit}[kind]
  memory = jit(step).lower(x, x).compile().memory_analysis()
  print(kind, memory.temp_size_in_bytes, num_hits(), events.count("plan"))
"""


class PersistentCacheTest(absltest.TestCase):
  def run_steps(self, folder, kinds):
    lines = cached_process.run(_CACHED, folder, kinds)
    return [tuple(line.split()) for line in lines]

  def test_planned_and_unplanned_programs_are_told_apart(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    first = self.run_steps(folder, "jax,jaxmem")
    (_, theirs, *_), (_, ours, *_) = first
    self.assertLess(int(ours), int(theirs))
    # (kind, temporaries, cache hits, plans made)
    self.assertEqual(
      first, [("jax", theirs, "0", "0"), ("jaxmem", ours, "0", "1")]
    )
    self.assertEqual(
      self.run_steps(folder, "jaxmem,jax"),
      [("jaxmem", ours, "1", "0"), ("jax", theirs, "1", "0")],
    )


if __name__ == "__main__":
  absltest.main()
