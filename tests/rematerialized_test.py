"""Tests of what plans say where XLA's own rematerialisation follows them."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

import jaxmem
from jaxmem import targets

pytestmark = pytest.mark.skipif(
  not targets.is_available("h200"),
  reason="JAX's CUDA plugin is not installed: pip install jax-cuda13-plugin",
)


def _step(weights, x):
  """Four residual blocks whose residuals XLA knows how to recompute."""

  def loss(weights):
    y = x
    for w in weights:
      h = y @ w
      y = y + jnp.tanh(h) * jax.nn.sigmoid(h * h)
    return (y * y).sum()

  return jax.grad(loss)(weights)


def _arguments(device=None):
  sharding = device and jax.sharding.SingleDeviceSharding(device)

  def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

  return [array(256, 256) for _ in range(4)], array(4096, 256)


def _card(device_bytes):
  """An H200 of another size."""
  text = targets.get("h200").config_text
  return re.sub(
    r"device_memory_size: \d+", f"device_memory_size: {device_bytes}", text
  )


@pytest.fixture(scope="module", name="planned")
def _planned():
  sizes = {"large": 100 << 20, "small": 24 << 20}
  return {
    name: jaxmem.plan(_step, *_arguments(), target=_card(size))
    for name, size in sizes.items()
  }


def test_a_plan_says_that_another_program_runs(planned):
  plan = planned["small"]
  assert plan.num_rematerialized > 0
  assert plan.temp_bytes < plan.predicted_temp_bytes
  assert (plan.lower_bound_bytes, plan.status) != (plan.temp_bytes, "optimal")
  assert plan.lower_bound_bytes == 0
  said = f"none: XLA recomputes {plan.num_rematerialized} operations more"
  assert said in str(plan)
  assert jaxmem.Plan.from_json(plan.to_json()) == plan


def test_it_is_silent_where_the_plan_runs(planned):
  plan = planned["large"]
  assert plan.num_rematerialized == 0
  assert plan.temp_bytes == plan.predicted_temp_bytes
  assert 0 < plan.lower_bound_bytes <= plan.temp_bytes
  assert "XLA recomputes" not in str(plan)


def test_a_plan_for_a_limit_runs_as_it_is():
  small = _card(24 << 20)
  plan = jaxmem.plan(_step, *_arguments(), target=small, memory_limit="56MiB")
  assert plan.num_rematerialized == 0
  assert plan.temp_bytes == plan.predicted_temp_bytes
  assert plan.total_bytes <= 56 << 20
  assert 0 < plan.lower_bound_bytes <= plan.temp_bytes
  number = plan.baseline_num_rematerialized
  assert number > 0
  assert f"less {number} operations run again" in str(plan)
  # What its edits save is said of what XLA scheduled.
  assert plan.budget is not None
  freed_bytes = sum(edit.freed_bytes for edit in plan.budget.edits)
  assert freed_bytes == plan.baseline_predicted_bytes - plan.temp_bytes


def test_so_does_a_function_with_a_limit():
  def step(weights, x):
    return _step(weights, x)

  (device,) = jaxmem.devices(_card(24 << 20), 1)
  limited = functools.partial(jaxmem.jit, memory_limit="56MiB")
  options = {"xla_disable_hlo_passes": "reshape-mover"}
  also_disabled = functools.partial(limited, compiler_options=options)
  for jit in (limited, also_disabled):
    compiled = jit(step).lower(*_arguments(device)).compile()
    assert ".remat" not in str(compiled.as_text())


def test_the_table_of_compiles_says_it(planned):
  (device,) = jaxmem.devices(_card(24 << 20), 1)
  with jaxmem.enable(min_bytes=0) as enabled:
    jax.jit(_step).lower(*_arguments(device)).compile()
  (record,) = enabled.records
  assert record.num_rematerialized == planned["small"].num_rematerialized
  said = f"XLA recomputes {record.num_rematerialized} operations more"
  assert record.note.endswith(said)
