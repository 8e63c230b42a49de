"""Which versions are compiled for a limit; a table stands for their plans."""

import contextlib
import dataclasses
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized
from jaxmem_hlo.buffers import UnsupportedModuleError
from version_cases import OPTIONS, module_of, outcome_of, traced_case

import jaxmem
from benchmarks import zoo
from jaxmem import cost
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.planning import LimitPlan, PlannedModule, Request
from jaxmem.planning.aim import ANYTHING
from jaxmem.planning.promise import Promise
from jaxmem.versions import (
  block_search,
  block_versions,
  blocks,
  choose,
  loop_search,
)
from jaxmem.versions.block_search import BlockSearch
from jaxmem.versions.tried_versions import TriedVersions
from jaxmem.versions.version import Version


class _Planner:
  """Edits cost what a table says; see `MonotoneTest`."""

  moved_bytes = 0.0
  hides = False
  own = cost.StepTime(seconds=1.0)

  def __init__(self, total_bytes, step_s, seconds_per_byte):
    self.total_bytes = self.xla_bytes = self.least_bytes = total_bytes
    self.fixed_bytes = 0
    self.step_s = step_s
    self.num_planned = 0
    self.saved_s = 0.0
    self._seconds_per_byte = seconds_per_byte

  def promise(self, limit_bytes):
    missing = max(0, self.total_bytes - limit_bytes)
    edits_s = missing * self._seconds_per_byte
    return Promise(room_bytes=limit_bytes, edits_s=edits_s, mapping_s=0.0)

  def kept_room(self, limit_bytes, scope):
    return limit_bytes - self.total_bytes

  def finished(self, planned):
    return planned

  def may_gain_by_less(self):
    return self.saved_s > 0.0

  def sketched_s(self, limit_bytes, wanted):
    seconds = self.step_s + self.promise(limit_bytes).edits_s
    return seconds if seconds < wanted.worse_s else None

  def find(self, limit_bytes, wanted=ANYTHING):
    schedule_s = self.sketched_s(limit_bytes, wanted)
    if schedule_s is None:
      return None
    self.num_planned += 1
    plan = mock.Mock(spec=LimitPlan, schedule_s=schedule_s)
    return mock.Mock(spec=PlannedModule, decision=plan)


class _VainPlanner(_Planner):
  """Finds no edits."""

  def sketched_s(self, limit_bytes, wanted):
    return None

  def find(self, limit_bytes, wanted=ANYTHING):
    return None


class _Schedules(ScheduleCapture):
  """Blocks take what their equations take, times a factor.

  Modules are traced steps here; see `MonotoneTest`.
  """

  def __init__(self, traced, total_bytes, edits_s, blocks_s):
    super().__init__(Request(options=jaxmem.Options()))
    self.platform = "cpu"
    self._written = traced
    self.as_written = _Planner(total_bytes, 1.0, edits_s / total_bytes)
    self.in_blocks = _Planner(total_bytes // 4, 1.0 + blocks_s, 0.0)
    self.num_compiles = 0

  def module(self, traced) -> Any:
    self.num_compiles += 1
    return traced

  def planner(self, traced, platform) -> Any:
    return self.as_written if traced is self._written else self.in_blocks

  @contextlib.contextmanager
  def searching(self, limit_bytes):
    request = Request(options=OPTIONS, limit_bytes=limit_bytes)
    with mock.patch.object(Request, "planner", side_effect=self.planner):
      as_written = Version(step=self._written)
      yield TriedVersions(as_written, self, request)

  def pick(self, limit_bytes, options=OPTIONS):
    request = Request(options=options, limit_bytes=limit_bytes)
    with (
      mock.patch.object(Request, "planner", side_effect=self.planner),
      # What is decided is kept by its module, and there is none.
      mock.patch.object(choose, "DecidedModule"),
    ):
      return choose.pick(self._written, self, request)[0]


class MonotoneTest(parameterized.TestCase):
  """A larger limit never costs more."""

  @parameterized.product(edits_s=(0.03, 0.2, 1.0), blocks_s=(0.008, 0.1, 0.4))
  def test_of_versions(self, edits_s, blocks_s):
    traced = traced_case()
    total_bytes = 10**9
    before = float("inf")
    for limit in range(total_bytes // 3, total_bytes, total_bytes // 40):
      schedules = _Schedules(traced, total_bytes, edits_s, blocks_s)
      version = schedules.pick(limit)
      planner = schedules.planner(version.step, "cpu")
      plan = planner.find(limit)
      assert plan is not None
      seconds = plan.decision.schedule_s
      self.assertLessEqual(seconds, before)
      before = seconds

  @parameterized.parameters((0.3, True), (0.0, False))
  def test_where_the_device_waits_less_is_faster(self, waiting_s, recomputes):
    traced, total_bytes = traced_case(), 10**9
    schedules = _Schedules(traced, total_bytes, edits_s=0.0, blocks_s=-0.1)
    own = cost.StepTime(seconds=1.0, waiting_s=waiting_s)
    schedules.as_written.own = own
    # XLA's own plan keeps this limit: else nothing is asked for.
    version = schedules.pick(total_bytes)
    self.assertEqual(version.choice is not None, recomputes)

  @parameterized.parameters((0.96, 1), (0.8, 0))
  def test_what_refining_would_hardly_reach_is_compiled(self, share, expected):
    schedules = _Schedules(traced_case(), 10**9, edits_s=0.5, blocks_s=0.1)
    limit, edits_s, planner = 10**9 // 2, 0.25, schedules.as_written
    # A sketch that no refining makes any better.
    sketch = mock.patch.object(planner, "sketched_s", return_value=1 + edits_s)
    with schedules.searching(limit) as versions, sketch:
      seconds = 1 + share * edits_s - versions.device.mapping_s(limit)
      self.assertTrue(versions.is_promising(seconds, limit))
    self.assertEqual(planner.num_planned, expected)

  @pytest.mark.slow
  def test_of_a_transformer(self):
    step = zoo.build("gpt2_small", 8, size="tiny")
    jitted = jax.jit(step.function, **step.jit_kwargs)
    traced = TracedStep(jitted.trace(*step.args))
    planner = None
    before = 0.0
    for share in (0.9, 0.8, 0.7, 0.6):
      request = Request(options=OPTIONS)
      if planner is None:
        planner = request.planner(module_of(request, traced), "cpu")
      limit = int(share * planner.total_bytes)
      request = dataclasses.replace(request, limit_bytes=limit)
      plan = outcome_of(request, traced)
      assert isinstance(plan, LimitPlan)
      self.assertGreaterEqual(plan.schedule_s, before)
      before = plan.schedule_s

  @pytest.mark.slow
  def test_of_blocks_that_keep_what_needs_no_mapping(self):
    def step(layers, x):
      def loss(layers):
        y = x
        for left, right in layers:
          y = jax.lax.cond(
            jnp.max(y) > 0,
            lambda y, left, right: y + jax.nn.gelu(y @ left) @ right,
            lambda y, left, right: y,
            *(y, left, right),
          )
        return jnp.mean(y**2)

      return jax.grad(loss)(layers)

    left = jax.ShapeDtypeStruct((64, 256), jnp.float32)
    right = jax.ShapeDtypeStruct((256, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((2048, 64), jnp.float32)
    traced = TracedStep(jax.jit(step).trace([(left, right)] * 6, x))
    small, large = (
      outcome_of(Request(options=OPTIONS, limit_bytes=limit << 20), traced)
      for limit in (30, 50)
    )
    assert isinstance(small, LimitPlan) and isinstance(large, LimitPlan)
    self.assertLessEqual(large.schedule_s, small.schedule_s)

  def test_few_versions_are_compiled(self):
    traced = traced_case()

    def compiled(limit, edits_s, blocks_s):
      schedules = _Schedules(traced, 1000, edits_s, blocks_s)
      schedules.pick(limit)
      return schedules.num_compiles

    # It fits; all blocks are tried; they cost too much if they keep nothing.
    self.assertEqual(compiled(1000, 1.0, 0.1), 1)
    self.assertEqual(compiled(999, 0.2, 10.0), 2)
    self.assertEqual(compiled(900, 0.2, 10.0), 2)

  @parameterized.parameters(
    # At half of the bytes edits take half of their seconds, and blocks next to
    # nothing, of a step that takes one. It is more than a twentieth.
    (500, 0.2, False, 2),
    # It is less.
    (500, 0.08, False, 1),
    # That is nothing to wait for, but there are no edits.
    (500, 0.08, True, 2),
    (1000, 0.2, False, 1),
  )
  def test_little_effort_compiles_what_is_much_faster(
    self, limit, edits_s, fails, num_compiles
  ):
    schedules = _Schedules(traced_case(), 1000, edits_s, blocks_s=0.01)
    if fails:
      find = mock.patch.object(schedules.as_written, "find", return_value=None)
      self.enter_context(find)
    version = schedules.pick(limit, jaxmem.Options(effort="fast"))
    self.assertEqual(schedules.num_compiles, num_compiles)
    self.assertEqual(version.choice is not None, num_compiles > 1)

  @parameterized.parameters(False, True)
  def test_what_hides_transfers_is_compared_by_plans(self, hides):
    schedules = _Schedules(traced_case(), 1000, edits_s=0.2, blocks_s=0.2)
    written = schedules.as_written
    written.hides = hides
    # At half of the bytes edits are estimated to take 1.1 s, and take 1.5.
    slow = mock.Mock(
      spec=PlannedModule, decision=mock.Mock(spec=LimitPlan, schedule_s=1.5)
    )
    with mock.patch.object(written, "find", return_value=slow):
      version = schedules.pick(500, jaxmem.Options(effort="fast"))
    self.assertEqual(schedules.num_compiles, 2)
    # Else the first is taken that fits, by estimates.
    self.assertEqual(version.choice is not None, hides)

  @parameterized.parameters(
    (1500, 1.0, True), (1000, 1.0, True), (1500, 0.0, False), (2000, 1.0, False)
  )
  def test_what_fits_is_left_for_what_is_faster(self, limit, saved_s, is_tried):
    schedules = _Schedules(traced_case(), 1000, 0.2, -0.1)
    schedules.as_written.xla_bytes = 2000
    schedules.as_written.saved_s = saved_s
    version = schedules.pick(limit)
    # Not where mapping less saves nothing, nor where XLA's own plan keeps the
    # limit.
    self.assertEqual(version.choice is not None, is_tried)
    self.assertEqual(schedules.num_compiles > 1, is_tried)

  @parameterized.parameters(True, False)
  def test_blocks_keep_less_where_that_took_more_than_expected(self, has_edits):
    traced = traced_case()
    step = blocks.BlockStep(traced.jaxpr)
    number = step.blocks.number
    most = blocks.BlockChoice(num_groups=number, keep_bytes=10**9)
    room = step.recompute(most, cost.CPU).kept_bytes // 2
    schedules = _Schedules(traced, 4 * room, edits_s=9.0, blocks_s=0.5)
    kept = []

    def planner(version, platform):
      if version is traced:
        return schedules.as_written
      kept.append(version.keep_bytes)
      # It takes a quarter more than is kept.
      total_bytes = room + 5 * version.keep_bytes // 4
      is_vain = not has_edits and total_bytes > 2 * room
      made = _VainPlanner if is_vain else _Planner
      return made(total_bytes, 1.5, 0.0)

    def recomputing(base, choice, recomputed, device):
      self.assertEqual(device.platform, "cpu")
      version = mock.Mock(spec=TracedStep, keep_bytes=recomputed.kept_bytes)
      return dataclasses.replace(base, step=version, choice=choice)

    with (
      schedules.searching(2 * room) as versions,
      mock.patch.object(Request, "planner", side_effect=planner),
      mock.patch.object(block_versions, "recomputing_blocks", recomputing),
    ):
      BlockSearch(versions, step).run(None)
    nothing, *some = kept
    self.assertEqual(nothing, 0)
    self.assertGreater(5 * some[0] // 4, room)
    if has_edits:
      self.assertLen(some, 1)
    else:
      self.assertLess(some[-1], some[-2])
      self.assertLessEqual(5 * some[-1] // 4, room)

  @parameterized.parameters(
    ("cuda", 0.009, 0.1, 550, ["all"]),
    ("cuda", 0.011, 0.1, 550, []),
    # A CPU gains nothing by fewer kernels, but by products it need not repeat.
    ("cpu", 0.009, 0.05, 550, ["but products"]),
    ("cpu", 0.009, 0.07, 550, []),
    # XLA may take less than estimated for stacks of products, if they fit.
    ("cuda", 0.011, 0.05, 550, ["but products"]),
    ("cuda", 0.011, 0.07, 550, []),
    ("cuda", 0.009, 0.05, 450, ["all"]),
  )
  def test_what_xla_may_do_faster_is_tried(
    self, platform, more_s, products_s, products_bytes, others
  ):
    schedules = _Schedules(traced_case(), 1000, edits_s=1.0, blocks_s=0.0)
    # Of 800 bytes, 500 have to go. To drop 600 is slower than that, and what
    # lies beyond is not looked at any more, but for all of it.
    again_s = {500: 0.0, 600: 0.0, "all": more_s, "but products": products_s}
    saved = {500: 500, 600: 600, "all": 800, "but products": products_bytes}

    def stacking_less(base, amount, device):
      return dataclasses.replace(
        base,
        step=mock.Mock(spec=TracedStep, amount=amount),
        dropped=(f"{amount}",),
        extra_s=again_s[amount] - 0.1,
        saved_bytes=saved[amount],
      )

    tried = []

    def planner(step, platform):
      if not isinstance(step, mock.Mock):
        return schedules.as_written
      tried.append(step.amount)
      return _Planner(490, {500: 0.9, 600: 0.95}.get(step.amount, 0.8), 0.0)

    with (
      schedules.searching(500) as versions,
      mock.patch.object(loop_search, "stacking_less", stacking_less),
      mock.patch.object(Request, "planner", side_effect=planner),
      mock.patch.object(Request, "device") as device,
    ):
      device.return_value = mock.Mock(platform=platform, num_devices=1)
      loop_search.stack_less(versions, 800)
    self.assertEqual(tried, [500, 600, *others])

  @parameterized.parameters(
    # Where no edits help, what both passes read may be held by neither.
    ("cuda", 1, None, True, [False, True]),
    ("cuda", 1, None, False, [False]),
    ("cuda", 1, 0.5, True, [False]),
    # A CPU holds no less, and what several devices gather counts in any case.
    ("cpu", 1, None, True, [False]),
    ("cpu", 2, 0.5, False, [False, True]),
  )
  def test_what_both_passes_read_is_read_anew(
    self, platform, num_devices, edits_s, is_promising, expected
  ):
    step = mock.Mock()
    versions = mock.Mock(spec=TriedVersions, limit_bytes=100, is_fast=False)
    versions.base = mock.Mock(fits=False)
    versions.found = mock.Mock()
    versions.found.sketched_s.return_value = edits_s
    versions.device = mock.Mock(platform=platform, num_devices=num_devices)
    versions.is_promising.return_value = is_promising
    versions.compile.return_value = mock.Mock(fits=False)
    choices = []

    def recomputing(base, choice, *_):
      choices.append(choice)

    first = mock.Mock()
    with (
      mock.patch.object(block_search, "recomputing_blocks", recomputing),
      mock.patch.object(BlockSearch, "_keep"),
      mock.patch.object(BlockSearch, "_join"),
    ):
      BlockSearch(versions, step).run(first)
    compiled = [False, *(choice.reads_again for choice in choices)]
    self.assertEqual(compiled, expected)
    self.assertEqual(versions.compile.call_count, len(expected))

  @parameterized.parameters(
    jax.errors.JaxRuntimeError("INTERNAL: No supported config found for HLO"),
    jaxmem.PlanningError("The step cannot be planned: it is too large."),
    UnsupportedModuleError("region_0: something is not understood."),
  )
  def test_a_version_that_cannot_be_compiled_is_left_out(self, error):
    traced = traced_case()
    # Blocks would be cheaper by far, and are tried whole and in parts.
    schedules = _Schedules(traced, 1000, edits_s=1.0, blocks_s=0.01)
    module = schedules.module

    def fails(step):
      if step is not traced:
        raise error
      return module(step)

    with mock.patch.object(schedules, "module", fails):
      version = schedules.pick(500)
    self.assertIsNone(version.choice)
    self.assertEqual(schedules.as_written.num_planned, 1)

  def test_what_could_not_be_compiled_is_not_compiled_again(self):
    schedules = _Schedules(traced_case(), 1000, 1.0, 0.01)
    error = jax.errors.JaxRuntimeError("INTERNAL: No supported config found")
    with schedules.searching(500) as versions:
      version = dataclasses.replace(
        versions.base.version, step=traced_case(), dropped=("x",)
      )
      with mock.patch.object(schedules, "module", side_effect=error) as module:
        self.assertIsNone(versions.compile(version))
        self.assertIsNone(versions.compile(version))
      module.assert_called_once()

  def test_a_step_that_cannot_be_compiled_is_an_error(self):
    schedules = _Schedules(traced_case(), 1000, 1.0, 0.01)
    error = jax.errors.JaxRuntimeError("INTERNAL: No supported config found")
    with (
      mock.patch.object(schedules, "module", side_effect=error),
      self.assertRaises(jax.errors.JaxRuntimeError),
    ):
      schedules.pick(500)

  def test_what_a_sketch_says_is_slower_is_not_planned(self):
    traced = traced_case()
    for edits_s, blocks_s in ((1.0, 0.01), (0.01, 1.0)):
      schedules = _Schedules(traced, 1000, edits_s, blocks_s)
      schedules.pick(500)
      planned = [
        p.num_planned for p in (schedules.as_written, schedules.in_blocks)
      ]
      self.assertEqual(planned, [edits_s < blocks_s, blocks_s < edits_s])


if __name__ == "__main__":
  absltest.main()
