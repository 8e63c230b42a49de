"""Tests of jaxmem.rewrite.recompute_rules: what must not be repeated."""

import dataclasses
import re

import tiny_hlo
from absl.testing import absltest, parameterized
from edited_modules import (
  chain,
  check,
  edits_of,
  operands_of,
  two_outputs,
  value_of,
)
from jaxmem_hlo import replay
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module
from jaxmem_hlo.replay.placed_values import FaultKind
from tiny_hlo import f32, named, tuple_of

from jaxmem.rewrite import RecomputeError, apply_edits, recomputable
from jaxmem.rewrite.edits import Edits, Recompute, Value
from jaxmem.rewrite.recompute_rules import named_value


class RulesTest(parameterized.TestCase):
  def _refusal(self, build):
    """Why the instruction "i", that `build(main, x, builder)` adds, may not."""
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(16), name="x")
    build(main, x, builder)
    found = named(Module(builder.module(main).proto), "i").id
    # Whatever it makes is not the result.
    main.op("dot", f32(1), x, name="last")
    module = builder.module(main)
    output = 0 if named(module, "i").shape.tuple_shapes else None
    rules = recomputable(module)
    value = Value(instruction=found, output=output)
    reason = rules.why_not(value)
    if reason:
      edits = Edits(
        recomputes=(Recompute(value=value, before=module.entry.root.id),)
      )
      with self.assertRaisesRegex(RecomputeError, re.escape(reason)):
        apply_edits(module, edits)
    return reason

  @parameterized.parameters(
    ("rng", "a rng has a state"),
    ("rng-bit-generator", "has a state"),
    ("rng-get-and-update-state", "has a state"),
    ("all-reduce", "others take part"),
    ("all-gather", "others take part"),
    ("collective-permute", "others take part"),
    ("scatter", "another order"),
    ("dynamic-update-slice", "in place"),
    ("bitcast", "computes nothing"),
    ("constant", "computes nothing"),
    ("dot", ""),
    ("copy", ""),
    ("reduce", ""),
    ("convolution", ""),
  )
  def test_opcodes(self, opcode, expected):
    reason = self._refusal(
      lambda main, x, _: main.op(opcode, f32(16), x, x, x, name="i")
    )
    self.assertRegex(reason, expected if expected else "^$")

  @parameterized.parameters(
    ("__cudnn$convForward", False, ""),
    ("__cublas$gemm", False, ""),
    ("__cublas$gemm", True, "side effect"),
    ("my_kernel", False, "'my_kernel' does is not known"),
  )
  def test_custom_calls(self, target, side_effect, expected):
    reason = self._refusal(
      lambda main, x, _: main.op(
        "custom-call",
        tuple_of(f32(16), f32(4)),
        x,
        name="i",
        custom_call_target=target,
        custom_call_has_side_effect=side_effect,
      )
    )
    self.assertRegex(reason, expected if expected else "^$")

  def test_a_custom_call_that_writes_its_operand(self):
    reason = self._refusal(
      lambda main, x, _: main.op(
        "custom-call",
        f32(16),
        main.op("dot", f32(16), x),
        name="i",
        custom_call_target="__cublas$gemm",
        aliasing=((0, (), ()),),
      )
    )
    self.assertRegex(reason, "in place")

  def test_a_token(self):
    reason = self._refusal(
      lambda main, x, _: main.op(
        "custom-call",
        tuple_of(f32(16), tiny_hlo.token()),
        x,
        name="i",
        custom_call_target="__cublas$gemm",
      )
    )
    self.assertRegex(reason, "token")

  @parameterized.parameters("rng", "scatter", "dynamic-update-slice")
  def test_inside_a_fusion(self, opcode):
    def build(main, x, builder):
      body = builder.fusion("body")
      p = body.parameter(f32(16))
      body.op(opcode, f32(16), p, p, p)
      main.op(
        "fusion", f32(16), x, calls=(body,), name="i", fusion_kind="kLoop"
      )

    self.assertNotEqual(self._refusal(build), "")

  def test_control_flow(self):
    def build(main, x, builder):
      callee = builder.computation("callee")
      callee.op("dot", f32(16), callee.parameter(f32(16)))
      main.op("call", f32(16), x, calls=(callee,), name="i")

    self.assertRegex(self._refusal(build), "another computation")

  def test_parameters_and_results(self):
    module = chain()
    rules = recomputable(module)
    self.assertRegex(rules.why_not(value_of(module, "x")), "computes nothing")
    self.assertRegex(rules.why_not(value_of(module, "d")), "returns it")
    self.assertEqual(rules.why_not(value_of(module, "a")), "")
    self.assertRegex(rules.why_not(value_of(module, "a", 0)), "output must be")
    self.assertRegex(
      rules.why_not(Value(instruction=12345)), "no instruction of the entry"
    )
    two = two_outputs()
    rules = recomputable(two)
    self.assertRegex(rules.why_not(value_of(two, "f")), "output must be")
    self.assertRegex(rules.why_not(value_of(two, "f", 2)), "has 2 outputs")


def _donated():
  """A donated x, read by a; `new` takes its memory; then `late` reads a."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(16), name="x")
  a = main.op("dot", f32(16), x, name="a")
  b = main.op("dot", f32(16), a, name="b")
  new = main.op("dot", f32(16), b, name="new")
  late = main.op("dot", f32(16), new, a, name="late")
  main.tuple(new, late, name="results")
  return builder.module(main, donations=[(0, (0,))])


def _updated():
  """A value that is updated in place: `old` is gone when `update` has run."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(16), name="x")
  at = main.parameter(tiny_hlo.s32(), name="at")
  old = main.op("dot", f32(16), x, name="old")
  a = main.op("dot", f32(4), old, name="a")
  update = main.op("dynamic-update-slice", f32(16), old, a, at, name="update")
  b = main.op("dot", f32(4), update, name="b")
  main.op("dot", f32(4), b, a, update, name="late")
  return builder.module(main)


def _overwriters(module):
  """The ids of writers over values that edits can name."""
  return {
    named: writer.id
    for value, writer in recomputable(module).overwriters.items()
    if (named := named_value(module, value)) is not None
  }


class OverwrittenTest(parameterized.TestCase):
  """Values that something else was written over are not read any more."""

  @parameterized.parameters(
    (_donated, "a", "late", "x cannot be read by a second a before late: new"),
    (_updated, "a", "late", "old cannot be read by a second a before late"),
    (_updated, "a", "b", "update has already written over it in place"),
  )
  def test_refused_and_found_by_replay(self, build, name, before, message):
    module = build()
    edits = edits_of(module, (name, before))
    with self.assertRaisesRegex(RecomputeError, message):
      apply_edits(module, edits)
    # Forced, the edit gives a program that reads what is not there any more.
    rules = dataclasses.replace(recomputable(module), overwriters={})
    forced = apply_edits(module, edits, rules=rules)
    assignment = AssignmentModel(forced, "cpu").assign()
    report = replay.check_assignment(forced, assignment.to_proto(), "cpu")
    self.assertContainsSubset(
      {f.kind for f in report.faults},
      {FaultKind.LATE_READ, FaultKind.OVERWRITTEN},
    )
    self.assertNotEmpty(report.faults)

  @parameterized.parameters(
    (_donated, "a", "new"), (_updated, "a", "update"), (_donated, "a", "b")
  )
  def test_just_before_is_in_time(self, build, name, before):
    module = build()
    check(self, apply_edits(module, edits_of(module, (name, before))))

  def test_a_clone_of_the_overwritten_value_serves(self):
    module = _updated()
    edited = apply_edits(module, edits_of(module, ("old", "b"), ("a", "late")))
    check(self, edited)
    self.assertEqual(operands_of(edited, "a.recompute"), ["old.recompute"])

  def test_a_clone_that_was_updated_in_place_is_gone(self):
    module = _updated()
    # The update itself reads the clone, and writes over it.
    edits = edits_of(module, ("old", "update"), ("a", "late"))
    with self.assertRaisesRegex(RecomputeError, "already written over"):
      apply_edits(module, edits)

  def test_rules_name_the_writers(self):
    module = _donated()
    self.assertEqual(
      _overwriters(module),
      {value_of(module, "x"): named(module, "new").id},
    )
    module = _updated()
    self.assertEqual(
      _overwriters(module),
      {value_of(module, "old"): named(module, "update").id},
    )


if __name__ == "__main__":
  absltest.main()
