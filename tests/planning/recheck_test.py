"""Plans that were tampered with are refused before XLA gets them."""

import dataclasses
import functools
from typing import cast

import hostile
import jax
import jax.numpy as jnp
from absl.testing import absltest
from jaxmem_hlo.buffers import schedule
from jaxmem_hlo.replay import FaultyAssignmentError

import jaxmem
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.graph import ValidationError
from jaxmem.planning import LimitPlan, PlannedModule, Request, check_again
from jaxmem.rewrite import RecomputeError
from jaxmem.rewrite.edits import Recompute, Value

_REFUSALS = (ValueError, FaultyAssignmentError)


def _step(weights, x):
  """Updates donated weights, of which XLA copies those that are read late."""

  def loss(weights):
    hidden = x
    for each in weights:
      hidden = jnp.tanh(hidden @ each)
    return jnp.sum(hidden * hidden)

  gradients = jax.grad(loss)(weights)
  return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients)


@functools.cache
def _module():
  x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
  traced = jax.jit(_step, donate_argnums=0).trace([x] * 4, x)
  request = Request(options=jaxmem.Options(effort="fast"), limit_bytes=2**30)
  return ScheduleCapture(request).module(TracedStep(traced)), request


@functools.cache
def _planned() -> PlannedModule[LimitPlan]:
  module, request = _module()
  planned = request.decide(module, "cpu")
  return PlannedModule.of(module, cast(LimitPlan, planned.decision))


def _with(base=None, **changes) -> PlannedModule:
  """Returns the module under a plan of which some fields are others."""
  planned = _planned()
  plan = planned.decision
  changed = dataclasses.replace(plan.base, **(base or {}))
  return PlannedModule.of(
    planned.given, dataclasses.replace(plan, base=changed, **changes)
  )


class RecheckTest(absltest.TestCase):
  def refuses(self, planned, pattern="", platform="cpu"):
    with self.assertRaisesRegex(_REFUSALS, pattern):
      check_again(planned, platform)

  def entry_order(self, module=None):
    module = module or _planned().module
    return [i.id for i in module.schedule(module.entry.id)]

  def test_a_plan_as_it_was_made(self):
    self.assertNotEmpty(_planned().decision.base.removed_copies)
    check_again(_planned(), "cpu")
    check_again(_with(base={"orders": {}, "removed_copies": ()}), "cpu")

  def test_another_platform(self):
    self.refuses(_planned(), "for cpu, not cuda", platform="cuda")

  def test_only_needless_copies_may_go(self):
    module = _planned().given
    for instruction in module.entry.instructions:
      if instruction.id in _planned().decision.base.removed_copies:
        continue
      if len(instruction.operands) == 1:
        gone = {"removed_copies": (instruction.id,), "orders": {}}
        self.refuses(_with(base=gone), "no needless copy")

  def test_orders_that_are_none(self):
    entry_id = _planned().given.entry.id
    order = self.entry_order()
    for wrong in (order[:-1], order + order[-1:], order[::-1], [10**9]):
      self.refuses(_with(base={"orders": {entry_id: tuple(wrong)}}))
      self.refuses(_with(order=tuple(wrong)))

  def test_no_read_may_come_after_the_write_in_place(self):
    # XLA would take each of these orders: operands come first in all of them.
    # In half of them weights are read after they were updated.
    entry = _planned().module.entry
    num_late = 0
    for seed in range(20):
      order = hostile.random_order(entry, seed)
      schedule.check_schedule(entry, order)
      try:
        check_again(_with(base={"orders": {entry.id: order}}), "cpu")
      except ValidationError:
        num_late += 1
    self.assertBetween(num_late, 5, 19)

  def test_edits_of_nothing(self):
    plan = _planned().decision
    edits = dataclasses.replace(
      plan.edits,
      recomputes=(Recompute(value=Value(instruction=10**9), before=10**9),),
    )
    with self.assertRaises((KeyError, RecomputeError)):
      check_again(_with(edits=edits), "cpu")


if __name__ == "__main__":
  absltest.main()
