"""Tests of jaxmem_hlo.assignment: to the byte what XLA reports."""

import jax
import jax.numpy as jnp
import pytest
import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module.late_passes import apply_late_passes
from tiny_hlo import f32, named

from benchmarks import random_steps
from jaxmem import targets

_KIB = 1024


def _places(assignment):
  """Returns where each value lies: its allocation's kind, and the offset."""
  return {
    value.name: (allocation.kind, offset)
    for allocation in assignment.allocations
    for value, (offset, _) in allocation.offsets.items()
  }


class TinyTest(parameterized.TestCase):
  """Assignments worked out by hand. An f32[256] is 1 KiB."""

  def setUp(self):
    super().setUp()
    self.builder = tiny_hlo.Builder()
    self.main = self.builder.computation("main")

  def chain(self, *opcodes, donated):
    """Returns the assignment of x -> opcodes -> root."""
    last = self.main.parameter(f32(256), name="x")
    for i, opcode in enumerate(opcodes):
      last = self.main.op(opcode, f32(256), last, name=f"y{i}")
    donations = [(0, ())] if donated else []
    module = self.builder.module(self.main, donations)
    return AssignmentModel(module, "cpu").assign()

  def test_what_dies_makes_room(self):
    # The memory of the output, y3, is free until y3 is made: y0 lies there. y1
    # may not replace y0, nor y3 what it is made of: y1 and y2 are temporaries.
    assignment = self.chain("dot", "dot", "dot", "dot", donated=False)
    self.assertEqual(assignment.temp_bytes, 2 * _KIB)
    places = _places(assignment)
    self.assertEqual(places["x"], ("parameter", 0))
    self.assertEqual(places["y0"], ("output", 0))
    self.assertCountEqual(
      [places["y1"], places["y2"]], [("temp", 0), ("temp", _KIB)]
    )
    self.assertEqual(places["y3"], ("output", 0))

  def test_elementwise_results_replace_their_operands(self):
    assignment = self.chain("tanh", "tanh", "tanh", donated=False)
    self.assertEqual(assignment.temp_bytes, 0)
    places = _places(assignment)
    self.assertEqual({places[f"y{i}"] for i in range(3)}, {("output", 0)})

  def test_temporaries_live_in_donated_memory(self):
    # y0 has to stand beside x, which it is made of. y1 then has x's memory,
    # y2 would need a place beside y1: that of y0; y3 is x's successor.
    assignment = self.chain("dot", "dot", "dot", "dot", donated=True)
    self.assertEqual(assignment.temp_bytes, _KIB)
    places = _places(assignment)
    self.assertEqual(places["y3"], ("parameter", 0))
    self.assertEqual(places["y1"], ("parameter", 0))
    self.assertEqual(places["y0"], places["y2"])
    (slot,) = [a for a in assignment.allocations if a.is_donated]
    self.assertEqual((slot.parameter_number, slot.size_bytes), (0, _KIB))

  def test_undonated_arguments_are_never_overwritten(self):
    assignment = self.chain("tanh", "dot", donated=False)
    self.assertEqual(
      [n for n, p in _places(assignment).items() if p[0] == "parameter"], ["x"]
    )

  def test_constants_have_memory_of_their_own(self):
    x = self.main.parameter(f32(256), name="x")
    one = self.main.op("constant", f32(256), name="one")
    self.main.op("add", f32(256), x, one, name="sum")
    assignment = AssignmentModel(self.builder.module(self.main), "cpu").assign()
    self.assertEqual(_places(assignment)["one"], ("constant", 0))
    self.assertEqual(assignment.temp_bytes, 0)

  def test_a_value_with_two_names_ends_under_either(self):
    # The view appears last, but what the root may replace is y itself.
    x = self.main.parameter(f32(256), name="x")
    y = self.main.op("dot", f32(256), x, name="y")
    view = self.main.op("bitcast", f32(16, 16), y, name="view")
    small = self.main.op("dot", f32(), view, name="small")
    self.main.op("add", f32(256), y, small, name="root")
    assignment = AssignmentModel(self.builder.module(self.main), "cpu").assign()
    places = _places(assignment)
    self.assertEqual((places["y"], places["root"]), (("output", 0),) * 2)
    self.assertEqual(assignment.temp_bytes, 4)

  @parameterized.parameters(("cpu", 64), ("cuda", 256))
  def test_alignment(self, platform, alignment):
    # Three scalars of 4 bytes that are live together; the root is one more,
    # whose own memory, 4 bytes, takes one of them.
    x = self.main.parameter(f32(256), name="x")
    scalars = [self.main.op("dot", f32(), x, x, name=f"s{i}") for i in range(3)]
    self.main.op("custom-call", f32(), *scalars, name="root")
    assignment = AssignmentModel(
      self.builder.module(self.main), platform
    ).assign()
    self.assertEqual(assignment.temp_bytes, 2 * alignment + 4)
    offsets = {p[1] for n, p in _places(assignment).items() if n[0] == "s"}
    self.assertEqual(offsets, {0, alignment, 2 * alignment})

  def test_other_memory_spaces_are_counted_apart(self):
    x = self.main.parameter(f32(256), name="x")
    y = self.main.op("dot", f32(256), x, name="y")
    host = self.main.op("copy", f32(256, memory_space=5), y, name="host")
    self.main.op("copy", f32(64), host, name="root")
    assignment = AssignmentModel(
      self.builder.module(self.main), "cuda"
    ).assign()
    self.assertEqual(assignment.temp_bytes, _KIB)
    temps = [a for a in assignment.allocations if a.kind == "temp"]
    self.assertEqual(
      sorted((a.memory_space, a.size_bytes) for a in temps),
      [(0, _KIB), (5, _KIB)],
    )

  def test_another_order_is_another_assignment(self):
    # x -> a, b (4 KiB each); a -> sa, b -> sb (64 bytes each); all dots. sa is
    # made while both a and b are live.
    x = self.main.parameter(f32(1024), name="x")
    a = self.main.op("dot", f32(1024), x, name="a")
    b = self.main.op("dot", f32(1024), x, name="b")
    small_a = self.main.op("dot", f32(16), a, name="sa")
    small_b = self.main.op("dot", f32(16), b, name="sb")
    self.main.op("dot", f32(), small_a, small_b, name="root")
    module = self.builder.module(self.main)
    model = AssignmentModel(module, "cpu")
    self.assertEqual(model.assign().temp_bytes, 8 * _KIB + 64)
    names = ("x", "a", "sa", "b", "sb", "root")
    ids = [named(module, n).id for n in names]
    after = model.assign({module.entry.id: ids})
    # sa lies beside b, and sb, which is made while b is live, beside both.
    self.assertEqual(after.temp_bytes, 4 * _KIB + 2 * 64)


class RecordedTest(parameterized.TestCase):
  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_xlas_own_schedule(self, name):
    recorded = record_modules.load(name)
    model = AssignmentModel(recorded.module, recorded.platform)
    self.assertEqual(model.assign().temp_bytes, recorded.temp_bytes)

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_a_shuffled_schedule(self, name):
    recorded = record_modules.load(name)
    model = AssignmentModel(recorded.module, recorded.platform)
    assignment = model.assign(recorded.orders)
    self.assertEqual(assignment.temp_bytes, recorded.shuffled_temp_bytes)
    other = recorded.module.with_schedules(recorded.orders)
    own = AssignmentModel(other, recorded.platform).assign()
    self.assertEqual(own.temp_bytes, recorded.shuffled_temp_bytes)

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_live_values_never_share_bytes(self, name):
    recorded = record_modules.load(name)
    model = AssignmentModel(recorded.module, recorded.platform)
    assignment = model.assign(recorded.orders)
    for allocation in assignment.allocations:
      placed = [
        (offset, offset + size, assignment.ranges[value], value)
        for value, (offset, size) in allocation.offsets.items()
        if size
      ]
      for i, (low, high, live, value) in enumerate(placed):
        for other_low, other_high, other_live, other in placed[:i]:
          overlap = min(high, other_high) > max(low, other_low)
          if not overlap:
            continue
          # At most one ends where the other starts.
          self.assertLessEqual(
            min(live.end, other_live.end),
            max(live.start, other_live.start),
            (value, other),
          )


class ZooTest(parameterized.TestCase):
  """Predictions against compiles, for XLA's order and for the plan."""

  @parameterized.parameters("alexnet", "gpt2_small")
  def test_cpu(self, name):
    self.check(record_modules.zoo_pair(name))

  @parameterized.parameters(
    "efficientnet_b0",
    "googlenet",
    "moe_transformer",
    "scan_transformer",
    "unet",
    "vgg16",
  )
  @pytest.mark.slow
  def test_cpu_of_others(self, name):
    self.check(record_modules.zoo_pair(name))

  @parameterized.parameters("randwire", "vgg16")
  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed"
  )
  @pytest.mark.slow
  def test_h200(self, name):
    self.check(record_modules.zoo_pair(name, "h200"))

  def check(self, pair):
    self.assertEqual(pair.plan.baseline_bytes, pair.baseline_bytes)
    self.assertEqual(pair.plan.planned_bytes, pair.planned_bytes)


class ShuffledTest(parameterized.TestCase):
  """Orders that no planner would choose, compiled."""

  @parameterized.parameters(*range(3))
  def test_attention(self, seed):
    def loss(weights, x):
      y = x @ weights["q"], x @ weights["k"], x @ weights["v"]
      y = jax.nn.softmax(y[0] @ y[1].T) @ y[2]
      return jnp.sum(jax.nn.gelu(y) ** 2)

    def step(weights, x):
      gradients = jax.grad(loss)(weights, x)
      return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    shape = jax.ShapeDtypeStruct((48, 48), jnp.float32)
    own = record_modules.capture(
      step, ({n: shape for n in "qkv"}, shape), donate_argnums=0
    )
    orders = record_modules.shuffled(own.module, "cpu", seed)
    other = record_modules.capture(
      step,
      ({n: shape for n in "qkv"}, shape),
      donate_argnums=0,
      rewrite=lambda module: module.with_schedules(orders),
    )
    model = AssignmentModel(own.module, "cpu")
    self.assertEqual(model.assign().temp_bytes, own.temp_bytes)
    self.assertEqual(model.assign(orders).temp_bytes, other.temp_bytes)
    self.assertNotEqual(own.temp_bytes, 0)

  @parameterized.parameters(("none", False, 11), ("dots_saveable", True, 0))
  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed"
  )
  def test_a_loop_that_copies_in_the_background(
    self, policy, has_momentum, seed
  ):
    traits = random_steps.Traits(
      num_layers=4,
      width=16,
      num_rows=32,
      dtype="float32",
      policy=policy,
      is_scanned=True,
      has_dropout=False,
      has_norm=True,
      mixer="none",
      has_embedding=False,
      has_momentum=has_momentum,
      is_donated=False,
    )
    step = random_steps.build(0, traits)
    arguments = {"target": "h200", "donate_argnums": step.donate_argnums}
    own = record_modules.capture(step.function, step.args, **arguments)
    opcodes = {
      i.opcode for c in own.module.computations for i in c.instructions
    }
    self.assertIn("async-start", opcodes)
    module = apply_late_passes(own.module, "cuda")
    orders = record_modules.shuffled(module, "cuda", seed)
    other = record_modules.capture(
      step.function,
      step.args,
      rewrite=lambda _: module.with_schedules(orders),
      **arguments,
    )
    model = AssignmentModel(module, "cuda")
    self.assertEqual(model.assign().temp_bytes, own.temp_bytes)
    self.assertEqual(model.assign(orders).temp_bytes, other.temp_bytes)


if __name__ == "__main__":
  absltest.main()
