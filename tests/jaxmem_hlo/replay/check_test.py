"""Tests of replay on straight-line modules; the answers follow by hand.

control_flow_test has loops, branches and asynchronous operations, bytes_test
runs modules on real bytes, compiled_steps_test has what XLA compiled.
"""

from absl.testing import absltest, parameterized
from jaxmem_hlo import replay
from jaxmem_hlo.buffers import UnsupportedModuleError
from replay_modules import (
  SCALAR,
  VECTOR,
  XY,
  fault_kinds,
  module_of,
  tuple_of,
)


class ExampleTest(parameterized.TestCase):
  """The answer follows from the rules by hand."""

  def test_counts(self):
    # Writes: x, y, a, r. Reads: x and y by a, a and y by r, r by the caller.
    chain = module_of(
      ("a", "add", "x y", VECTOR), ("r", "subtract", "a y", VECTOR)
    )
    report = chain.check({**XY, "a": ("temp", 0), "r": ("out", 0)})
    self.assertEqual(report, replay.ReplayReport(5, 4, ()))

  def test_overwritten_temporary(self):
    chain = module_of(
      ("a", "add", "x y", VECTOR),
      ("b", "dot", "x y", VECTOR),
      ("r", "subtract", "a b", VECTOR),
    )
    places = {**XY, "a": ("temp", 0), "b": ("temp", 8), "r": ("out", 0)}
    report = chain.check(places)
    self.assertEqual(
      [str(fault) for fault in report.faults],
      [
        "overwritten: r (step 4 of main) reads operand 0, a, expecting a"
        " (step 2 of main) in allocation 2 bytes [0, 16), but bytes [8, 16)"
        " hold b (step 3 of main)"
      ],
    )

  @parameterized.parameters(
    ("add", 0, []),  # elementwise, exactly over its operand
    ("add", 8, ["overlap"]),
    ("dot", 0, ["overlap"]),
    ("copy", 0, ["overlap"]),
  )
  def test_output_over_its_operand(self, opcode, offset, kinds):
    operands = "a" if opcode == "copy" else "a y"
    chain = module_of(
      ("a", "negate", "x", VECTOR),
      ("b", opcode, operands, VECTOR),
      ("r", "negate", "b", VECTOR),
    )
    places = {**XY, "a": ("temp", 0), "b": ("temp", offset), "r": ("out", 0)}
    report = chain.check(places)
    self.assertEqual(fault_kinds(report), kinds)
    if kinds:
      self.assertIn("overlaps operand 0, a", report.faults[0].message)

  def test_outputs_overlap(self):
    chain = module_of(
      ("c", "custom-call", "x y", tuple_of(VECTOR, VECTOR)),
      ("r", "get-tuple-element", "c", VECTOR, {"tuple_index": 1}),
    )
    places = {**XY, "c": ("table", 0), "c 0": ("out", 0), "c 1": ("out", 0)}
    self.assertEqual(fault_kinds(chain.check(places)), ["overlap"])

  def test_reader_after_dynamic_update_slice(self):
    rows = {
      "a": ("a", "negate", "x", VECTOR),
      "d": ("d", "dynamic-update-slice", "a y", VECTOR),
      "b": ("b", "negate", "a", VECTOR),
      "r": ("r", "add", "d b", VECTOR),
    }
    places = {**XY, "a": ("temp", 0), "d": ("temp", 0), "b": ("temp", 16)}
    places["r"] = ("out", 0)
    self.assertEmpty(module_of(*(rows[n] for n in "abdr")).check(places).faults)
    report = module_of(*(rows[n] for n in "adbr")).check(places)
    self.assertEqual(fault_kinds(report), ["late-read"])
    self.assertIn(
      "b (step 4 of main) reads operand 0, a", report.faults[0].message
    )
    self.assertIn("d has written its next version", report.faults[0].message)
    places["d"] = ("temp", 32)
    report = module_of(*(rows[n] for n in "abdr")).check(places)
    self.assertEqual(fault_kinds(report), ["in-place"])

  def test_parameters(self):
    chain = module_of(("r", "negate", "x", VECTOR))
    places = {**XY, "r": ("p0", 0)}
    self.assertEqual(
      fault_kinds(chain.check(places)), ["donation", "read-only"]
    )
    self.assertEmpty(chain.donate(0).check(places).faults)
    report = chain.check({**XY, "r": ("p1", 0)})
    self.assertEqual(fault_kinds(report), ["donation", "read-only"])

  def test_reader_after_donated_output(self):
    rows = {
      "w": ("w", "negate", "x", VECTOR),
      "b": ("b", "dot", "x y", VECTOR),
      "r": ("r", "tuple", "w b", tuple_of(VECTOR, VECTOR)),
    }
    places = {**XY, "w": ("p0", 0), "b": ("out", 0), "r": ("out table", 0)}
    chain = module_of(*(rows[n] for n in "bwr")).donate(0, [0])
    self.assertEqual(fault_kinds(chain.check(places)), [])
    chain = module_of(*(rows[n] for n in "wbr")).donate(0, [0])
    (fault,) = chain.check(places).faults
    self.assertEqual(
      str(fault),
      "late-read: b (step 3 of main) reads operand 0, x, expecting x (before"
      " the first step) in allocation 0 bytes [0, 16), but bytes [0, 16) hold"
      " w (step 2 of main): too late, the parameter is donated and its output"
      " is already defined",
    )


class UnsupportedTest(parameterized.TestCase):
  def test_opcodes(self):
    for opcode in ("send", "mystery-start"):
      chain = module_of(("r", opcode, "x", VECTOR))
      with self.assertRaisesRegex(UnsupportedModuleError, opcode):
        chain.check({**XY, "r": ("out", 0)})

  def test_start_without_done(self):
    chain = module_of(
      ("s", "copy-start", "x", tuple_of(VECTOR, VECTOR, SCALAR)),
      ("r", "negate", "x", VECTOR),
    )
    places = {**XY, "s": ("table", 0), "s 0": ("temp", 0), "s 2": ("temp", 16)}
    with self.assertRaisesRegex(UnsupportedModuleError, "s is not done"):
      chain.check({**places, "r": ("out", 0)})

  def test_value_that_is_not_seen(self):
    chain = module_of(
      ("b", "bitcast", "x", VECTOR), ("r", "negate", "b", VECTOR)
    )
    with self.assertRaisesRegex(UnsupportedModuleError, "XLA places b"):
      chain.check({**XY, "b": ("temp", 0), "r": ("out", 0)})

  def test_platform(self):
    chain = module_of(("r", "negate", "x", VECTOR))
    with self.assertRaisesRegex(ValueError, "platform must be"):
      chain.check({**XY, "r": ("out", 0)}, "tpu")


if __name__ == "__main__":
  absltest.main()
