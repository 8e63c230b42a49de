"""Whatever stage of planning fails, and whenever Ctrl-C comes, steps are safe.

Without a limit XLA's own plan runs, with one warning; under a limit an error
says so. Nothing of a failed compile stays behind, and the next one is planned.
"""

import contextlib
import gc
import inspect
import pathlib
import signal
import sys
import threading
import warnings
import weakref
from unittest import mock

import jax
import pytest
from absl.testing import absltest, parameterized
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.compiler_hook import PlanningWarning
from jaxmem_hlo.module import Module
from ortools.sat.python import cp_model
from watched import WatchedTest, arrays, branches

import jaxmem
from jaxmem import order
from jaxmem.entry import PLANNED, one_compile, planned_compiles
from jaxmem.planning import collector, fit, ordered_module, reorder
from jaxmem.planning.decision import ModulePlan, PlannedModule
from jaxmem.planning.fit import LimitPlanner
from jaxmem.solver import cpsat

_OPTIONS = jaxmem.Options(effort="fast")
# Stage -> what fails in it; whether steps without a limit come by it.
_STAGES = {
  "reading the module": (Module, "from_bytes", True),
  "understanding its buffers": (AssignmentModel, "__init__", True),
  "building the graph": (fit, "plan_module", False),
  "searching the order": (order, "plan_order", True),
  "placing: XLA's assignment": (AssignmentModel, "assign", True),
  "looking for copies": (reorder, "find_copies", True),
  "the limit": (LimitPlanner, "fit", False),
  "choosing edits": (ordered_module, "from_module", False),
  "versions": (planned_compiles, "pick", False),
  "rewriting": (ModulePlan, "apply", True),
  "writing the module": (Module, "to_bytes", True),
}
_ERRORS = (RuntimeError, MemoryError, RecursionError, AssertionError)


def _limit():
  """Returns a limit that the best order alone does not meet."""
  compiled = jaxmem.jit(branches).lower(*arrays()).compile()
  return one_compile.program_bytes(compiled.memory_analysis()) - 4096


class _CleanTest(WatchedTest):
  def assert_nothing_stays(self):
    """No handler, hook or pause is left, and the next compile is planned."""
    self.assertTrue(gc.isenabled())
    self.assertEmpty(collector._pauses)
    self.assertEmpty(compiler_hook._handlers)
    self.assertEmpty(compiler_hook._platforms)
    self.assertFalse(compiler_hook.is_installed())
    jax.clear_caches()
    self.plans.clear()
    x, y = arrays()
    self.assertEqual(jaxmem.jit(branches)(x, y), jax.jit(branches)(x, y))
    ((_, plan),) = self.plans
    self.assertTrue(plan.is_changed)
    self.assertEqual(PLANNED.records.all()[-1].why_not, "")


class StageTest(_CleanTest):
  @parameterized.parameters(*_STAGES)
  def test_each_stage(self, stage):
    owner, name, is_without_limit = _STAGES[stage]
    kind = _ERRORS[sorted(_STAGES).index(stage) % len(_ERRORS)]
    x, y = arrays()
    expected = jax.jit(branches)(x, y)
    limit = "1GiB" if name != "from_module" else _limit()
    jax.clear_caches()
    with (
      mock.patch.object(owner, name, side_effect=kind(stage)) as fails,
      warnings.catch_warnings(record=True) as caught,
    ):
      warnings.simplefilter("always")
      self.assertEqual(jaxmem.jit(branches)(x, y), expected)
      self.assertEqual(bool(fails.call_count), is_without_limit)
      with self.assertRaisesRegex(
        jaxmem.PlanningError, f"could not be planned: {kind.__name__}: {stage}"
      ):
        jaxmem.jit(branches, memory_limit=limit, options=_OPTIONS)(x, y)
    found = [w for w in caught if w.category is PlanningWarning]
    self.assertLen(found, is_without_limit)
    self.assert_nothing_stays()

  def test_counting_for_the_report(self):
    x, y = arrays()
    with mock.patch.object(
      PlannedModule, "num_rematerialized", side_effect=RuntimeError("counting")
    ) as counts:
      self.assertEqual(jaxmem.jit(branches)(x, y), jax.jit(branches)(x, y))
    counts.assert_called()
    self.assert_nothing_stays()


@contextlib.contextmanager
def _interrupted(number):
  """Raises KeyboardInterrupt at a call of jaxmem's functions; counts them.

  Generators do not count: Python itself swallows what is raised in one that it
  closes since nobody reads it any more, a signal's exception, too. What is
  called once an object is gone does not count either: Python swallows that as
  well, and comes by it whenever the collector finds what an earlier test left.

  Args:
    number: Of the call, from 0; -1 for none.

  Yields:
    A list whose only item is how many calls there were.
  """
  calls = [0]

  def trace(frame, event, argument):
    del argument
    code = frame.f_code
    is_swallowed = (
      code.co_flags & inspect.CO_GENERATOR
      or frame.f_back.f_code is weakref.finalize.__call__.__code__
    )
    if event == "call" and "/jaxmem" in code.co_filename and not is_swallowed:
      calls[0] += 1
      if calls[0] - 1 == number:
        sys.settrace(None)
        raise KeyboardInterrupt
    return None

  sys.settrace(trace)
  try:
    yield calls
  finally:
    sys.settrace(None)


def _caught_signals():
  """Returns the signals that this process handles, as the system knows them."""
  status = pathlib.Path("/proc/self/status").read_text()
  return [line for line in status.splitlines() if line.startswith("SigCgt")]


class InterruptTest(_CleanTest):
  def check(self, num_points, **kwargs):
    x, y = arrays()

    def compile_once(number):
      jax.clear_caches()
      lowered = jaxmem.jit(branches, options=_OPTIONS, **kwargs)
      with _interrupted(number) as calls:
        lowered.lower(x, y).compile()
      return calls[0]

    # Some calls are of the first compile alone.
    compile_once(-1)
    num_calls = compile_once(-1)
    self.assertGreater(num_calls, 1000)
    for point in range(num_points):
      # More of them where little is called: at the begin and at the end.
      share = 3 * (point / (num_points - 1)) - 1
      share = min(max(share, 0.0), 1.0)
      near = point if share == 0.0 else num_points - 1 - point
      number = int(share * (num_calls - 1))
      number += near if share == 0.0 else -near if share == 1.0 else 0
      with self.subTest(call=number), self.assertRaises(KeyboardInterrupt):
        compile_once(number)
      self.assertFalse(compiler_hook.is_installed(), number)
      self.assertEmpty(compiler_hook._handlers, number)
      self.assertEmpty(planned_compiles.COMPILES._compiles, number)
    self.assert_nothing_stays()

  def test_without_a_limit(self):
    self.check(12)

  def test_under_a_limit(self):
    self.check(12, memory_limit="1GiB")

  def test_solvers_leave_the_signal_to_python(self):
    # CP-SAT by itself would have it end the process from then on.
    solver = cpsat.make_solver(1.0)
    model = cp_model.CpModel()
    model.maximize(model.new_int_var(0, 10, "x"))
    before = _caught_signals()
    self.assertEqual(cpsat.solve(solver, model), "optimal")
    self.assertEqual(_caught_signals(), before)
    with self.assertRaises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)

  def test_while_xla_compiles(self):
    # Python hears of it when XLA shows the module; XLA would make an error.
    x, y = arrays()
    for kwargs in ({}, {"memory_limit": "1GiB"}):
      jax.clear_caches()
      step = jaxmem.jit(branches, options=_OPTIONS, **kwargs)
      with (
        mock.patch.object(
          compiler_hook, "_tag", side_effect=KeyboardInterrupt()
        ),
        self.assertRaises(KeyboardInterrupt),
      ):
        step.lower(x, y).compile()
    self.assert_nothing_stays()

  @pytest.mark.slow
  def test_at_many_times(self):
    self.check(90)
    self.check(90, memory_limit="1GiB")

  @pytest.mark.slow
  def test_a_signal_at_any_time(self):
    # The real thing: the process gets SIGINT while it compiles.
    x, y = arrays()
    num_heard = 0
    for delay_s in (0.01, 0.02, 0.03, 0.06, 0.1, 0.15, 0.2):
      jax.clear_caches()
      thread = threading.main_thread().ident
      assert thread is not None
      timer = threading.Timer(
        delay_s, signal.pthread_kill, (thread, signal.SIGINT)
      )
      try:
        # On a busy machine the signal may come before this returns.
        timer.start()
        # Not for ever: jax has a callback of the garbage collector's, and what
        # is raised there Python ignores.
        for _ in range(20):
          jax.clear_caches()
          jaxmem.jit(branches, options=_OPTIONS).lower(x, y).compile()
      except KeyboardInterrupt:
        num_heard += 1
      timer.join()
      self.assertFalse(compiler_hook.is_installed(), delay_s)
      self.assertEmpty(compiler_hook._handlers, delay_s)
    self.assertGreater(num_heard, 4)
    self.assert_nothing_stays()


def _scaled(number):
  return lambda x, y: branches(x, y) * number


class ManyThreadsTest(_CleanTest):
  def test_sixteen_compile_at_once(self):
    count = 16
    results, errors = {}, []
    start = threading.Barrier(count)

    def work(number):
      try:
        limit = "1GiB" if number % 2 else None
        step = jaxmem.jit(_scaled(number), memory_limit=limit, options=_OPTIONS)
        start.wait()
        x, y = arrays()
        results[number] = step(x[: 16 + number], y)
      except Exception as error:
        errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertEmpty(errors)
    x, y = arrays()
    for number, found in results.items():
      self.assertEqual(found, jax.jit(_scaled(number))(x[: 16 + number], y))
    self.assertLen(results, count)
    self.assertEmpty(planned_compiles.COMPILES._compiles)
    self.assert_nothing_stays()


if __name__ == "__main__":
  absltest.main()
