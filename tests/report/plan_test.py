import dataclasses
import functools
import json
import pathlib
import re
import tempfile
from unittest import mock

import jax
import pytest
import record_modules
from absl.testing import absltest, parameterized
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.assignment.allocation import Assignment
from jaxmem_hlo.replay import FaultyAssignmentError

import jaxmem
from benchmarks import zoo
from jaxmem import targets
from jaxmem.planning import reorder


@functools.cache
def _plan(model: str, **kwargs) -> jaxmem.Plan:
  step = zoo.build(model, 2, size="tiny")
  return jaxmem.plan(step.function, *step.args, **step.jit_kwargs, **kwargs)


class PlanTest(parameterized.TestCase):
  @parameterized.parameters("resnet50", "scan_transformer")
  @pytest.mark.slow
  def test_verifies_on_what_xla_allocated(self, model):
    plan = _plan(model)
    self.assertNotEqual(plan.status, "baseline")
    report = plan.verify()
    self.assertGreater(report.num_reads, plan.num_instructions)

  @pytest.mark.slow
  def test_verifies_for_a_device_that_is_not_here(self):
    if not targets.is_available("h200"):
      self.skipTest("needs jax's CUDA plugin")
    report = _plan("alexnet", target="h200").verify()
    self.assertGreater(report.num_reads, 0)

  def test_a_plan_from_a_file_cannot_be_verified(self):
    plan = _plan("alexnet")
    with self.assertRaisesRegex(RuntimeError, "read from a file"):
      jaxmem.Plan.from_json(plan.to_json()).verify()

  def test_verify_option_drops_a_plan_that_would_read_the_wrong_bytes(self):
    honest = Assignment.to_proto

    def all_at_zero(assignment):
      proto = honest(assignment)
      for allocation in proto.allocations:
        for assigned in allocation.assigned:
          assigned.offset = 0
      return proto

    step = zoo.build("alexnet", 2, size="tiny")
    options = jaxmem.Options(verify=True)
    compiler_hook._warned = False
    jitted = jaxmem.jit(step.function, options=options, **step.jit_kwargs)
    with (
      mock.patch.object(Assignment, "to_proto", all_at_zero),
      self.assertWarnsRegex(compiler_hook.PlanningWarning, "Faulty"),
    ):
      kept = jitted.lower(*step.args).compile()
    plain = jax.jit(step.function, **step.jit_kwargs)
    baseline = plain.lower(*step.args).compile()
    self.assertEqual(
      record_modules.temp_bytes(kept), record_modules.temp_bytes(baseline)
    )

  @pytest.mark.slow
  def test_verify_option_replays_every_plan(self):
    with mock.patch.object(
      reorder.replay,
      "check_assignment",
      side_effect=FaultyAssignmentError(()),
    ) as check:
      with self.assertRaises(RuntimeError):
        _plan("alexnet", options=jaxmem.Options(verify=True))
      check.assert_called_once()

  def test_arena_says_where_everything_lives(self):
    plan = _plan("alexnet")
    arena = plan.arena
    temps = [b for b in arena.buffers if b.allocation == "temp"]
    top = max(b.offset_bytes + b.size_bytes for b in temps)
    self.assertEqual(top, plan.temp_bytes)
    self.assertEqual(arena.temp_bytes, plan.temp_bytes)
    self.assertBetween(arena.max_live_bytes, 1, plan.temp_bytes)
    self.assertEqual(
      arena.fragmentation_bytes, plan.temp_bytes - arena.max_live_bytes
    )

  def test_no_two_buffers_overlap_in_time_and_place(self):
    plan = _plan("alexnet")
    temps = [b for b in plan.arena.buffers if b.allocation == "temp"]
    self.assertGreater(len(temps), 20)
    for i, a in enumerate(temps):
      for b in temps[:i]:
        meets = a.start < b.end and b.start < a.end
        touches = (
          a.offset_bytes < b.offset_bytes + b.size_bytes
          and b.offset_bytes < a.offset_bytes + a.size_bytes
        )
        self.assertFalse(meets and touches, (a, b))

  def test_the_picture_shows_the_plan(self):
    plan = _plan("alexnet")
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "plan.html"
      plan.save_html(path)
      page = path.read_text(encoding="utf-8")
    self.assertIn(plan.name, page)
    largest = plan.arena.at_peak()[0]
    self.assertIn(json.dumps(largest.name), page)
    self.assertIsNone(re.search(r'(src|href)="https?:', page))

  def test_json_keeps_everything_but_the_program(self):
    plan = _plan("alexnet")
    again = jaxmem.Plan.from_json(plan.to_json())
    self.assertEqual(again, plan)
    self.assertIsNone(again.program)
    other = dataclasses.replace(plan, temp_bytes=plan.temp_bytes + 1)
    self.assertNotEqual(again, other)


if __name__ == "__main__":
  absltest.main()
