"""Tests of replay on loops, branches and asynchronous operations."""

from typing import Any

from absl.testing import absltest, parameterized
from jaxmem_hlo.replay.placed_values import FaultKind
from replay_modules import (
  SCALAR,
  VECTOR,
  ModuleBuilder,
  fault_kinds,
  tuple_of,
)

_LOOP_PLACES = {
  "x": ("p0", 0),
  "go": ("temp", 64),
  **{name: ("table", 0) for name in ("init", "bp", "cp", "br", "w")},
  **{f"{name} 0": ("temp", 0) for name in ("bp", "cp", "w")},
  **{f"{name} 1": ("temp", 16) for name in ("bp", "cp", "w")},
  "i0": ("temp", 0),
  "i1": ("temp", 16),
  "n0": ("temp", 0),
  "n1": ("temp", 16),
  "r": ("out", 0),
}


class ControlFlowTest(parameterized.TestCase):
  """The answer follows from the rules by hand."""

  def _loop(self, *tail: tuple[Any, ...], late: bool = False) -> ModuleBuilder:
    carry = tuple_of(VECTOR, VECTOR)
    builder = ModuleBuilder()
    builder.computation(
      "condition",
      ("cp", "parameter", "", carry),
      ("go", "custom-call", "cp", SCALAR),
    )
    body: list[tuple[Any, ...]] = [
      ("bp", "parameter", "", carry),
      ("b0", "get-tuple-element", "bp", VECTOR),
      ("b1", "get-tuple-element", "bp", VECTOR, {"tuple_index": 1}),
      ("n1", "dot", "b0 b1", VECTOR),
      ("n0", "negate", "b0", VECTOR),
      ("br", "tuple", "n0 n1", carry),
    ]
    builder.computation("body", *body)
    return builder.computation(
      "main",
      ("x", "parameter", "", VECTOR),
      ("i0", "negate", "x", VECTOR),
      ("i1", "custom-call", "x", VECTOR),
      ("init", "tuple", "i0 i1", carry),
      ("w", "while", "init", carry, builder.callees("body", "condition")),
      ("w0", "get-tuple-element", "w", VECTOR),
      *tail,
    )

  def test_loop(self):
    loop = self._loop(("r", "negate", "w0", VECTOR))
    report = loop.check(_LOOP_PLACES)
    # The dot writes over an operand that it reads, which it cannot.
    self.assertEqual(set(fault_kinds(report)), {"overlap"})
    self.assertIn("overlaps operand 1", report.faults[0].message)
    places = {**_LOOP_PLACES, "n1": ("temp", 32)}
    report = loop.check(places)
    self.assertContainsSubset({"carry", "misplaced"}, fault_kinds(report))

  def test_reader_of_initial_value_after_loop(self):
    loop = self._loop(("r", "add", "i0 w0", VECTOR))
    report = loop.check(_LOOP_PLACES)
    late = [f.message for f in report.faults if f.kind == FaultKind.LATE_READ]
    self.assertLen(late, 1)
    self.assertIn("reads operand 0, i0", late[0])
    self.assertIn("a loop or a branch has written", late[0])

  def test_damage_of_a_second_iteration(self):
    # The temporary t is over carry 1, which is read before: the first
    # iteration finds the initial value, the second one does not.
    carry = tuple_of(VECTOR, VECTOR)
    builder = ModuleBuilder()
    builder.computation(
      "condition",
      ("cp", "parameter", "", carry),
      ("go", "custom-call", "", SCALAR),
    ).computation(
      "body",
      ("bp", "parameter", "", carry),
      ("b0", "get-tuple-element", "bp", VECTOR),
      ("b1", "get-tuple-element", "bp", VECTOR, {"tuple_index": 1}),
      ("n0", "dot", "b1 b1", VECTOR),
      ("t", "negate", "n0", VECTOR),
      ("br", "tuple", "n0 b1", carry),
    ).computation(
      "main",
      ("x", "parameter", "", VECTOR),
      ("i0", "negate", "x", VECTOR),
      ("i1", "custom-call", "x", VECTOR),
      ("init", "tuple", "i0 i1", carry),
      ("w", "while", "init", carry, builder.callees("body", "condition")),
      ("r", "get-tuple-element", "w", VECTOR),
    )
    places = {
      name: place
      for name, place in _LOOP_PLACES.items()
      # An untouched carry is the initial value; the loop defines none.
      if name not in ("n1", "r", "bp 1", "cp 1", "w 1")
    }
    homes = ("i0", "n0", "bp 0", "cp 0", "w 0")
    places |= {name: ("out", 0) for name in homes}
    self.assertEmpty(builder.check({**places, "t": ("temp", 32)}).faults)
    report = builder.check({**places, "t": ("temp", 16)})
    self.assertEqual(set(fault_kinds(report)), {"overwritten"})
    self.assertIn(
      "n0 (step 3 of body) reads operand 0, b1",
      " ".join(fault.message for fault in report.faults),
    )

  def test_conditional(self):
    builder = ModuleBuilder()
    builder.computation(
      "yes",
      ("yp", "parameter", "", VECTOR),
      ("yr", "negate", "yp", VECTOR),
    ).computation(
      "no",
      ("np", "parameter", "", VECTOR),
      ("t", "negate", "np", VECTOR),
      ("nr", "dot", "t np", VECTOR),
    ).computation(
      "main",
      ("p", "parameter", "", SCALAR),
      ("x", "parameter", "", VECTOR, {"parameter_number": 1}),
      ("a", "negate", "x", VECTOR),
      ("c", "conditional", "p x x", VECTOR, builder.callees("yes", "no")),
      ("r", "add", "c a", VECTOR),
    )
    places = {"p": ("p0", 0), "x": ("p1", 0), "a": ("temp", 0)}
    places |= {name: ("temp", 16) for name in ("yr", "nr", "c")}
    places |= {"t": ("temp", 32), "r": ("out", 0)}
    self.assertEqual(fault_kinds(builder.check(places)), [])
    report = builder.check({**places, "t": ("temp", 0)})
    self.assertEqual(fault_kinds(report), ["overwritten"])
    self.assertIn("hold t (step 1 of no)", report.faults[0].message)
    report = builder.check({**places, "yr": ("temp", 48)})
    self.assertEqual(fault_kinds(report), ["carry"])

  def _async(self, *between: tuple[Any, ...]) -> ModuleBuilder:
    builder = ModuleBuilder().computation(
      "wrapped",
      ("wx", "parameter", "", VECTOR),
      ("wr", "dot", "wx wx", VECTOR),
    )
    started = tuple_of(tuple_of(VECTOR), VECTOR)
    return builder.computation(
      "main",
      ("x", "parameter", "", VECTOR),
      ("a", "negate", "x", VECTOR),
      ("s", "async-start", "a", started, builder.callees("wrapped")),
      *between,
      ("d", "async-done", "s", VECTOR),
      ("r", "negate", "d", VECTOR),
    )

  @parameterized.parameters(
    (32, []),
    (0, ["overwritten"]),  # its operand
    (16, ["overwritten"] * 2),  # its result, which r reads too
  )
  def test_asynchronous_window(self, offset, kinds):
    builder = self._async(("t", "negate", "x", VECTOR))
    places = {"x": ("p0", 0), "s": ("table", 0), "s 0": ("table", 16)}
    places |= {"a": ("temp", 0), "wr": ("temp", 16), "r": ("out", 0)}
    report = builder.check({**places, "t": ("temp", offset)})
    self.assertEqual(fault_kinds(report), kinds)
    if kinds:
      self.assertIn("d (step 4 of main)", report.faults[0].message)
      self.assertIn("hold t (step 3 of main)", report.faults[0].message)


if __name__ == "__main__":
  absltest.main()
