"""Choices for real modules: what is predicted is what assignment makes."""

import budget_validate
import edited_modules
import numpy as np
import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel

from jaxmem import cost
from jaxmem.budget.chooser import Chooser
from jaxmem.budget.greedy import Start
from jaxmem.budget.offload import OffloadRates
from jaxmem.budget.profile import Profile
from jaxmem.graph import liveness
from jaxmem.graph.hlo_graph import Sharing, callee_peaks, from_hlo
from jaxmem.planning.budget_problem import from_module
from jaxmem.rewrite import apply_edits, recomputable
from jaxmem.rewrite.edits import Edits, Recompute, Value

_NAMES = (
  "branch_cpu",
  "convolutions_h200",
  "mlp_cpu",
  "mlp_h200",
  "scan_cpu",
  "scan_h200",
)
_RATES = cost.DATA_SHEETS["h200"]


def _build(name, slots, sharing: Sharing = "heap"):
  recorded = record_modules.load(name)
  module = recorded.module
  model = AssignmentModel(module, recorded.platform)
  return recorded, module, *_build_from(model, slots, sharing)


def _build_from(model, slots, sharing: Sharing = "heap"):
  module = model.module
  entry = from_hlo(model, module.entry, lambda: callee_peaks(model), "any")
  seconds = cost.instruction_seconds(module, _RATES)
  problem = from_module(
    recomputable(module, model.analysis),
    entry,
    seconds,
    slots,
    sharing,
  )
  return entry, problem


class FromModuleTest(parameterized.TestCase):
  @parameterized.parameters(*_NAMES)
  def test_without_edits_it_is_liveness(self, name):
    _, _, entry, problem = _build(name, "free", "any")
    order = range(entry.graph.num_nodes)
    np.testing.assert_array_equal(
      Profile(problem).memory.live, liveness.live_bytes(entry.graph, order)
    )

  @parameterized.parameters(*_NAMES)
  def test_occupied_slots_take_no_part(self, name):
    _, _, entry, problem = _build(name, "occupied")
    self.assertEqual(problem.slot_bytes, 0)
    for buffer, value in zip(entry.graph.buffers, problem.values, strict=True):
      is_slot = buffer.live_at_start or buffer.live_at_end
      self.assertEqual(value.size_bytes, 0 if is_slot else buffer.size_bytes)

  def test_in_place_writes_and_loops_run_once(self):
    for name in _NAMES:
      _, module, _, problem = _build(name, "free")
      for unit in problem.units:
        opcode = module.instruction(unit.value.instruction).opcode
        self.assertNotIn(
          opcode, ("while", "conditional", "scatter", "copy-start")
        )
      writers = {v.overwritten_at for v in problem.values} - {None}
      for unit in problem.units:
        if unit.step in writers:
          values = [problem.values[v] for v in unit.outputs]
          self.assertFalse(any(v.is_result for v in values))

  @parameterized.parameters((True, 3), (False, 2))
  def test_what_is_picked_out_of_a_tuple_is_not_written_over(
    self, is_in_tuple, num_values
  ):
    # a, b and c are 1 MiB each; c could take a's place while b is kept.
    one = tiny_hlo.f32(1 << 18)
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(tiny_hlo.f32(64), name="x")
    b = main.op("rng", one, x, x, name="b")
    if is_in_tuple:
      shape = tiny_hlo.tuple_of(one, tiny_hlo.f32(1))
      made = main.op("custom-call", shape, x, name="made")
      a = main.element(made, 0, name="a")
    else:
      a = main.op("rng", one, x, x, name="a")
    c = main.op("negate", one, a, name="c")
    main.op("dot", tiny_hlo.f32(1), b, c, name="d")
    model = AssignmentModel(builder.module(main), "cuda")
    assigned = model.temp_bytes()
    self.assertEqual(assigned >> 20, num_values)
    _, problem = _build_from(model, "occupied")
    self.assertEqual(Profile(problem).peak_bytes >> 20, num_values)
    _, problem = _build_from(model, "occupied", "any")
    self.assertEqual(Profile(problem).peak_bytes >> 20, 2)

  @parameterized.product(
    name=("mlp_cpu", "mlp_h200", "convolutions_h200"),
    part=(0.9, 0.8),
    with_host=(False, True),
  )
  def test_what_is_predicted_is_assigned(self, name, part, with_host):
    recorded, module, _, problem = _build(name, "occupied")
    before = edited_modules.check(self, module, recorded.platform)
    rates = None
    if with_host and recorded.platform == "cuda":
      rates = OffloadRates(
        to_host_bytes_per_s=_RATES.to_host_bytes_per_s,
        from_host_bytes_per_s=_RATES.from_host_bytes_per_s,
      )
    chooser = Chooser(Start(problem), "fast", rates)
    unedited = Profile(problem).peak_bytes
    smallest = chooser.smallest().peak_bytes
    limit = max(int(unedited * part), smallest)
    choice = chooser.search(limit, chooser.gather(limit))
    assert choice is not None
    self.assertEmpty(budget_validate.check(problem, choice.edits, limit).faults)
    if limit < unedited:
      self.assertTrue(choice.edits)
    edited = apply_edits(module, choice.edits, recorded.platform)
    after = edited_modules.check(self, edited, recorded.platform)
    # What packing adds and empty slots take is not predicted, but live bytes
    # are: those of the edited module, counted from its own graph.
    model = AssignmentModel(edited, recorded.platform)
    seen = _build_from(model, "occupied")[1]
    self.assertAlmostEqual(
      Profile(seen).peak_bytes, choice.peak_bytes, delta=256
    )
    self.assertLessEqual(after, before * 1.01)

  def test_new_instructions_of_two_edits_are_not_taken_for_each_other(self):
    one = tiny_hlo.f32(1 << 18)
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(one, name="x")
    chains = []
    # One may take the place of what it reads, the other may not.
    for opcode in ("negate", "reverse"):
      a = main.op("tanh", one, x)
      chains.append((a, main.op(opcode, one, a)))
      main.op("dot", tiny_hlo.f32(1), chains[-1][1], x)
    held = main.op("exponential", one, x)
    last = [main.op("dot", tiny_hlo.f32(1), b, held) for _, b in chains]
    main.tuple(*last)
    module = builder.module(main)
    model = AssignmentModel(module, "cpu")
    num_values = []
    for chain in chains:
      runs = [
        Recompute(value=Value(instruction=i), before=last[0]) for i in chain
      ]
      edited = apply_edits(module, Edits(recomputes=tuple(runs)), "cpu")
      predicted = AssignmentModel(edited, "cpu", model).temp_bytes()
      self.assertEqual(predicted, AssignmentModel(edited, "cpu").temp_bytes())
      num_values.append(predicted >> 20)
    self.assertEqual(num_values, [3, 4])


if __name__ == "__main__":
  absltest.main()
