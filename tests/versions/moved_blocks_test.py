"""Blocks that keep what goes to the host behind kernels."""

import dataclasses
import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized
from version_cases import OPTIONS, module_of, outcome_of

import jaxmem
from jaxmem import cost, targets
from jaxmem.compiler import TracedStep
from jaxmem.planning import TUNING, LimitPlan, LimitPlanner, Request, Wanted
from jaxmem.versions.block_versions import amounts_to_keep
from jaxmem.versions.blocks import BlockStep
from jaxmem.versions.compared import ComparedVersion
from jaxmem.versions.found_plans import FoundPlans
from jaxmem.versions.version import Version

_ROOM = 1000
_CROSSING = 100


def _version(**planner):
  """Returns a version above its limit, of a planner that says so much."""
  said = {"step_s": 1.0, "total_bytes": 0, "fixed_bytes": 0}
  said |= {"hides": False, "moved_bytes": 0.0}
  said["own"] = cost.StepTime(seconds=1.0)
  return ComparedVersion(
    version=mock.Mock(spec=Version),
    module=mock.Mock(),
    planner=mock.Mock(spec=LimitPlanner, **(said | planner)),
    excess_bytes=1,
    edits_s=0.5,
    mapping_s=0.0,
  )


_DEVICE = cost.Device(platform="cuda", rates=cost.DATA_SHEETS["h200"])


@functools.cache
def _module():
  x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
  traced = TracedStep(jax.jit(lambda x: jnp.sin(x @ x) @ x).trace(x))
  return module_of(Request(options=OPTIONS), traced)


def _moved_bytes(bytes_per_s, offload):
  """Returns what a link of a rate moves in a second, by a real planner."""
  link = dict.fromkeys(
    ("to_host_bytes_per_s", "from_host_bytes_per_s"), bytes_per_s
  )
  device = cost.Device(
    platform="cpu", rates=dataclasses.replace(cost.CPU, **link)
  )
  options = dataclasses.replace(OPTIONS, offload=offload)
  planner = LimitPlanner(_module(), device, options)
  return planner.moved_bytes / planner.step_s


class AmountsTest(parameterized.TestCase):
  @parameterized.parameters(
    # The link moves 0.8 of its rate, of which a fifth counts.
    (10_000.0, True, _ROOM, [_ROOM + 1600, _ROOM]),
    # What crosses from block to block is more.
    (100.0, True, _ROOM, [_ROOM + _CROSSING, _ROOM]),
    # Nothing may go to the host.
    (10_000.0, False, _ROOM, [_ROOM + _CROSSING, _ROOM]),
    # What is too large goes to the host as well.
    (10_000.0, True, -_ROOM, [1600 - _ROOM]),
    # Not if it is more than what the link moves.
    (1_000.0, True, -_ROOM, []),
  )
  def test_by_hand(self, bytes_per_s, offload, room, amounts):
    step = mock.Mock(spec=BlockStep, blocks=mock.Mock(crossing_bytes=_CROSSING))
    kept_room = mock.Mock(return_value=room)
    moved_bytes = _moved_bytes(bytes_per_s, offload)
    every = _version(moved_bytes=moved_bytes, kept_room=kept_room)
    found = amounts_to_keep(step, every, _DEVICE, limit_bytes=room)
    self.assertEqual(found, amounts)

  def test_what_may_move_is_hoped_for(self):
    above = _version()
    share = TUNING.versions.refined_share
    self.assertEqual(above.hopeful_s, 1.0 + share * 0.5)
    moved = _version(moved_bytes=8.0)
    self.assertEqual(moved.hopeful_s, 1.0)

  def test_where_the_device_waits_more_may_run(self):
    waits = _version(own=cost.StepTime(seconds=3.0, waiting_s=2.0))
    self.assertEqual(waits.hopeful_s, 1.0)

  def test_a_sketch_counts_for_more_than_what_was_hoped_for(self):
    above = _version()
    found = FoundPlans(limit_bytes=100)
    self.assertEqual(found.hopeful_s(above), above.hopeful_s)
    self.assertEqual(found.usual_s(above), math.inf)
    with mock.patch.object(above.planner, "sketched_s", return_value=1.1):
      found.sketched_s(above, Wanted(worse_s=2.0, is_any=False))
    self.assertEqual(found.hopeful_s(above), 1.1)
    self.assertEqual(found.best_s, 1.1)
    share = TUNING.versions.usual_share
    self.assertAlmostEqual(found.usual_s(above), 1.0 + share * 0.1)


def _step(layers, x):
  def loss(layers):
    y = x
    for left, right in layers:
      scale = jax.lax.rsqrt(jnp.mean(y**2, axis=-1, keepdims=True) + 1e-6)
      y += jax.nn.gelu((y * scale) @ left) @ right
    return jnp.mean(y**2)

  grads = jax.grad(loss)(layers)
  return jax.tree.map(lambda w, g: w - 1e-2 * g, layers, grads)


@pytest.mark.slow
class PlanTest(absltest.TestCase):
  def test_the_step_is_faster_than_without_the_host(self):
    target = targets.get("h200")
    left = jax.ShapeDtypeStruct((1024, 4096), jnp.float32)
    right = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
    x = jax.ShapeDtypeStruct((2048, 1024), jnp.float32)
    args = [(left, right)] * 24, x
    jitted = jax.jit(_step, donate_argnums=0)
    traced = TracedStep(targets.trace(jitted, args, {}, target), target)
    request = Request(options=jaxmem.Options(), target=target)
    planner = request.planner(module_of(request, traced), "cuda")
    temp_bytes = planner.total_bytes - planner.fixed_bytes
    limit_bytes = planner.fixed_bytes + int(0.15 * temp_bytes)
    plans = []
    for offload in (True, False):
      options = jaxmem.Options(offload=offload)
      limited = dataclasses.replace(
        request, options=options, limit_bytes=limit_bytes
      )
      plan = outcome_of(limited, traced)
      assert isinstance(plan, LimitPlan)
      plans.append(plan)
    self.assertNotEmpty(plans[0].edits.offloads)
    self.assertLess(plans[0].schedule_s, 0.995 * plans[1].schedule_s)


if __name__ == "__main__":
  absltest.main()
