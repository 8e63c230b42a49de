"""Tests of steps over several described devices."""

import contextlib
import io
import re

import jax
import pytest

import jaxmem
from benchmarks.sharded import residual_mlp
from jaxmem import cli, targets

pytestmark = pytest.mark.skipif(
  not targets.is_available("h200"),
  reason="JAX's CUDA plugin is not installed: pip install jax-cuda13-plugin",
)
_OPTIONS = {"xla_gpu_autotune_level": 0}
_KEYWORDS = {"donate_argnums": 0, "compiler_options": _OPTIONS}


def make_step(devices):
  """A factory as the command line takes it."""
  step = _small(devices, fsdp=True)
  return step.fun, step.args, _KEYWORDS


def _small(devices, *, fsdp, num_layers=3):
  return residual_mlp(
    devices,
    fsdp=fsdp,
    num_layers=num_layers,
    width=2048,
    examples=2 * len(devices),
    length=2048,
  )


def _plan(step, **kwargs):
  return jaxmem.plan(step.fun, *step.args, **_KEYWORDS, **kwargs)


def _check_what_xla_makes(step, plan):
  """Compiles the plan once more, and counts what XLA makes synchronous."""
  jitted = jaxmem.jit(step.fun, **_KEYWORDS)
  compiled = jitted.lower(*step.args).compile()
  assert compiled.memory_analysis().temp_size_in_bytes == plan.temp_bytes
  text = compiled.as_text()
  entry = text[text.index("\nENTRY") :]
  counted = len(re.findall('"is_sync":true', entry))
  assert counted == plan.communication.num_synchronous


@pytest.fixture(scope="module", name="devices")
def _devices():
  return jaxmem.devices("h200", 8)


@pytest.mark.parametrize(
  "axis_type", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit]
)
def test_a_mesh_of_described_devices(devices, axis_type):
  mesh = jax.make_mesh((4, 2), ("a", "b"), (axis_type,) * 2, devices=devices)
  assert mesh.devices.size == 8
  assert {d.process_index for d in devices} == {0}


def test_hosts():
  found = jaxmem.devices("h200", hosts=2, per_host=4)
  assert [d.process_index for d in found] == [0] * 4 + [1] * 4
  group = targets.DeviceGroup.of(found)
  assert group is not None
  assert (group.name, group.per_host) == ("8 x h200", 4)
  assert group.target == targets.get("h200")


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("cpu", 8), "a topology needs a described GPU, got target 'cpu'"),
    ((None, 8), "devices need a target"),
    (("h900", 8), "target must be one of"),
    (("h200", 0), "the number of devices per host must be at least 1, got 0"),
    (("h200", True), "the number of devices per host must be at least 1"),
  ],
)
def test_devices_that_cannot_be(arguments, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    jaxmem.devices(*arguments)


def test_a_count_is_of_one_host():
  with pytest.raises(ValueError, match="count is of one host"):
    jaxmem.devices("h200", 8, hosts=2)


@pytest.mark.parametrize(
  "fsdp", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_memory_without_giving_overlap_away(devices, fsdp):
  step = _small(devices, fsdp=fsdp)
  plan = _plan(step)
  assert plan.target == "8 x h200"
  own, found = plan.baseline_communication, plan.communication
  assert own is not None and found is not None
  assert found.seconds == pytest.approx(own.seconds)
  assert found.step_s <= own.step_s * (1 + 1e-9)
  assert found.num_synchronous <= own.num_synchronous
  assert plan.temp_bytes < 0.8 * plan.baseline_temp_bytes
  # Tables of tuples are all that the model may miss.
  assert abs(plan.model_error) < 1e-4 * plan.temp_bytes
  assert "exposed" in str(plan) and "XLA's own" in str(plan)
  assert jaxmem.Plan.from_json(plan.to_json()) == plan
  _check_what_xla_makes(step, plan)


@pytest.mark.slow
def test_a_limit(devices):
  step = _small(devices, fsdp=True)
  free = _plan(step)
  limit = int(0.9 * free.total_bytes)
  plan = _plan(step, memory_limit=limit)
  assert plan.total_bytes <= limit < free.total_bytes
  assert plan.communication is not None and free.communication is not None
  # Less is hidden, or more is computed twice.
  assert plan.communication.step_s > free.communication.step_s


@pytest.mark.slow
def test_bytes_against_exposed_time(devices):
  plan = _plan(_small(devices, fsdp=True))
  own = plan.baseline_communication
  assert own is not None
  found = plan.frontier()
  assert (found.step_s, found.exposed_s) == (own.step_s, own.exposed_s)
  fitting = [p for p in found.points if p.total_bytes is not None]
  loose, tight = fitting[0], fitting[-1]
  assert (loose.total_bytes or 0) > (tight.total_bytes or 0)
  # With memory to hide in, nothing is slower than XLA; with less, it is.
  assert loose.extra_s <= 1e-9 * own.step_s < tight.extra_s
  assert loose.exposed_s <= own.exposed_s
  extra = [p.extra_s for p in fitting]
  assert extra == sorted(extra)
  lines = str(found).splitlines()
  assert lines[0].endswith(f"{1e3 * own.exposed_s:.2f} exposed")
  assert lines[1].endswith("exposed")
  assert lines[2].endswith(f"{1e3 * loose.exposed_s:.2f} ms")


@pytest.mark.slow
def test_parameters_are_gathered_again_for_the_backward_pass(devices):
  step = residual_mlp(devices, fsdp=True, num_layers=6, policy=None)
  free = _plan(step)
  # Without that, gathered parameters alone would take a quarter of the room.
  limit = int(free.total_bytes - 0.5 * free.temp_bytes)
  plan = _plan(step, memory_limit=limit)
  assert plan.total_bytes <= limit
  assert free.communication is not None and plan.communication is not None
  assert plan.communication.seconds > 1.1 * free.communication.seconds
  assert plan.budget is not None and plan.budget.num_dropped
  assert plan.budget.schedule_s == plan.communication.step_s


@pytest.mark.slow
def test_hosts_are_slower(devices):
  near = _plan(_small(devices, fsdp=True)).communication
  apart = jaxmem.devices("h200", hosts=4, per_host=2)
  far = _plan(_small(apart, fsdp=True)).communication
  assert near is not None and far is not None
  assert far.seconds > 3 * near.seconds


@pytest.mark.slow
def test_max_slowdown_trades_time_for_bytes(devices):
  step = _small(devices, fsdp=True)
  tight = _plan(step)
  slow = _plan(step, options=jaxmem.Options(max_slowdown=1.0))
  assert slow.temp_bytes <= tight.temp_bytes
  assert slow.communication is not None and tight.communication is not None
  assert slow.communication.step_s >= tight.communication.step_s
  with pytest.raises(ValueError, match="max_slowdown must be a fraction"):
    jaxmem.Options(max_slowdown=-0.1)


def test_a_target_that_the_arguments_are_not_on(devices):
  step = _small(devices, fsdp=True)
  with pytest.raises(ValueError, match="target 'h100' is not what the arg"):
    _plan(step, target="h100")


@pytest.mark.slow
def test_max_batch(devices):
  def factory(batch):
    step = residual_mlp(
      devices, fsdp=True, num_layers=2, width=256, examples=batch, length=256
    )
    return step.fun, step.args, _KEYWORDS

  found = jaxmem.max_batch(factory, limit="12MiB", start=8, multiple_of=8)
  assert found.batch % 8 == 0
  assert found.plan.target == "8 x h200"
  assert found.plan.total_bytes <= 12 * 2**20


def test_the_command_gives_devices_to_the_factory():
  out = io.StringIO()
  words = ["plan", f"{__name__}:make_step", "--target=h200", "--devices=4"]
  with contextlib.redirect_stdout(out):
    assert cli.main([*words, "--hosts=2"]) == 0
  assert "on 8 x h200" in out.getvalue()
  error = io.StringIO()
  with contextlib.redirect_stderr(error):
    assert cli.main([*words[:2], "--devices=4"]) != 0
  assert "devices need a target" in error.getvalue()
