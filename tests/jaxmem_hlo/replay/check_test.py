"""Tests of jaxmem_hlo.replay on hand-made modules.

The answer follows from the rules by hand, or from running the module on real
bytes. replay_xla_test.py holds the tests on compiled steps.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl.testing import absltest, parameterized
from jaxmem_hlo import replay
from jaxmem_hlo.buffers.dataflow import UnsupportedModuleError
from jaxmem_hlo.module import Module, shapes
from jaxmem_hlo.proto import hlo_pb2
from jaxmem_hlo.replay.placed_values import FaultKind

_F32, _TUPLE, _PRED = 11, 13, 1


def _array(num_elements: int) -> hlo_pb2.Shape:
  return hlo_pb2.Shape(
    element_type=_F32,
    dimensions=[num_elements],
    layout=hlo_pb2.Layout(minor_to_major=[0]),
  )


def _tuple_of(*elements: hlo_pb2.Shape) -> hlo_pb2.Shape:
  return hlo_pb2.Shape(element_type=_TUPLE, tuple_shapes=elements)


_SCALAR = hlo_pb2.Shape(element_type=_PRED)
_VECTOR = _array(4)  # 16 bytes


class _Builder:
  """Builds a scheduled module in which names stand for instructions."""

  def __init__(self):
    self.proto = hlo_pb2.Module(name="m")
    self._ids: dict[str, int] = {}
    self._shapes: dict[str, hlo_pb2.Shape] = {}
    self._computations: dict[str, int] = {}

  def computation(self, name: str, *rows: tuple[Any, ...]) -> "_Builder":
    """Adds rows (name, opcode, operands, shape, fields); the last is entry."""
    number = len(self._computations) + 1
    self._computations[name] = number
    computation = self.proto.computations.add(name=name, id=number)
    sequence = self.proto.schedule.sequences[number].instruction_ids
    for name_, opcode, operands, shape, *fields in rows:
      instruction = computation.instructions.add(
        name=name_,
        opcode=opcode,
        id=number << 32 | len(computation.instructions),
        operand_ids=[self._ids[o] for o in operands.split()],
        shape=shape,
        **(fields[0] if fields else {}),
      )
      self._ids[name_] = computation.root_id = instruction.id
      self._shapes[name_] = shape
      sequence.append(instruction.id)
    self.proto.entry_computation_id = number
    return self

  def callees(self, *names: str) -> dict[str, list[int]]:
    return {"called_computation_ids": [self._computations[n] for n in names]}

  def donate(self, number: int, output: Sequence[int] = ()) -> "_Builder":
    self.proto.input_output_alias.entries.add(
      parameter_number=number, output_shape_index=output, kind=1
    )
    return self

  def check(
    self, places: Mapping[str, tuple[str, int]], platform: str = "cpu"
  ) -> replay.ReplayReport:
    """Checks values at "name" or "name 0", each in (allocation, offset).

    Allocations are named by kind: "p0" is parameter 0, "out", "temp", "table".
    """
    assignment = hlo_pb2.BufferAssignment()
    allocations: dict[str, hlo_pb2.BufferAllocation] = {}
    for key, (home, offset) in places.items():
      name, *index = key.split()
      shape_index = tuple(map(int, index))
      shape = shapes.subshape(self._shapes[name], shape_index)
      size = shapes.top_level_bytes(shape)
      buffer = assignment.logical_buffers.add(
        id=len(assignment.logical_buffers), size=size
      )
      buffer.defined_at.instruction_id = self._ids[name]
      buffer.defined_at.shape_index.extend(shape_index)
      if home not in allocations:
        allocations[home] = assignment.allocations.add(
          index=len(allocations),
          is_entry_computation_parameter=home.startswith("p"),
          parameter_number=int(home[1:]) if home.startswith("p") else 0,
          maybe_live_out=home.startswith(("p", "out")),
        )
      allocation = allocations[home]
      allocation.size = max(allocation.size, offset + size)
      allocation.assigned.add(
        logical_buffer_id=buffer.id, offset=offset, size=size
      )
    return replay.check_assignment(Module(self.proto), assignment, platform)


def _kinds(report: replay.ReplayReport) -> list[str]:
  return [fault.kind.value for fault in report.faults]


def _chain(*rows: tuple[Any, ...]) -> _Builder:
  return _Builder().computation(
    "main",
    ("x", "parameter", "", _VECTOR),
    ("y", "parameter", "", _VECTOR, {"parameter_number": 1}),
    *rows,
  )


_XY = {"x": ("p0", 0), "y": ("p1", 0)}


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


class ExampleTest(parameterized.TestCase):
  """The answer follows from the rules by hand."""

  def test_counts(self):
    # Writes: x, y, a, r. Reads: x and y by a, a and y by r, r by the caller.
    chain = _chain(
      ("a", "add", "x y", _VECTOR), ("r", "subtract", "a y", _VECTOR)
    )
    report = chain.check({**_XY, "a": ("temp", 0), "r": ("out", 0)})
    self.assertEqual(report, replay.ReplayReport(5, 4, ()))

  def test_overwritten_temporary(self):
    chain = _chain(
      ("a", "add", "x y", _VECTOR),
      ("b", "dot", "x y", _VECTOR),
      ("r", "subtract", "a b", _VECTOR),
    )
    places = {**_XY, "a": ("temp", 0), "b": ("temp", 8), "r": ("out", 0)}
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
    chain = _chain(
      ("a", "negate", "x", _VECTOR),
      ("b", opcode, operands, _VECTOR),
      ("r", "negate", "b", _VECTOR),
    )
    places = {**_XY, "a": ("temp", 0), "b": ("temp", offset), "r": ("out", 0)}
    report = chain.check(places)
    self.assertEqual(_kinds(report), kinds)
    if kinds:
      self.assertIn("overlaps operand 0, a", report.faults[0].message)

  def test_outputs_overlap(self):
    chain = _chain(
      ("c", "custom-call", "x y", _tuple_of(_VECTOR, _VECTOR)),
      ("r", "get-tuple-element", "c", _VECTOR, {"tuple_index": 1}),
    )
    places = {**_XY, "c": ("table", 0), "c 0": ("out", 0), "c 1": ("out", 0)}
    self.assertEqual(_kinds(chain.check(places)), ["overlap"])

  def test_reader_after_dynamic_update_slice(self):
    rows = {
      "a": ("a", "negate", "x", _VECTOR),
      "d": ("d", "dynamic-update-slice", "a y", _VECTOR),
      "b": ("b", "negate", "a", _VECTOR),
      "r": ("r", "add", "d b", _VECTOR),
    }
    places = {**_XY, "a": ("temp", 0), "d": ("temp", 0), "b": ("temp", 16)}
    places["r"] = ("out", 0)
    self.assertTrue(_chain(*(rows[n] for n in "abdr")).check(places).ok)
    report = _chain(*(rows[n] for n in "adbr")).check(places)
    self.assertEqual(_kinds(report), ["late-read"])
    self.assertIn(
      "b (step 4 of main) reads operand 0, a", report.faults[0].message
    )
    self.assertIn("d has written its next version", report.faults[0].message)
    places["d"] = ("temp", 32)
    report = _chain(*(rows[n] for n in "abdr")).check(places)
    self.assertEqual(_kinds(report), ["in-place"])

  def test_parameters(self):
    chain = _chain(("r", "negate", "x", _VECTOR))
    places = {**_XY, "r": ("p0", 0)}
    self.assertEqual(_kinds(chain.check(places)), ["donation", "read-only"])
    self.assertTrue(chain.donate(0).check(places).ok)
    report = chain.check({**_XY, "r": ("p1", 0)})
    self.assertEqual(_kinds(report), ["donation", "read-only"])

  def test_reader_after_donated_output(self):
    rows = {
      "w": ("w", "negate", "x", _VECTOR),
      "b": ("b", "dot", "x y", _VECTOR),
      "r": ("r", "tuple", "w b", _tuple_of(_VECTOR, _VECTOR)),
    }
    places = {**_XY, "w": ("p0", 0), "b": ("out", 0), "r": ("out table", 0)}
    chain = _chain(*(rows[n] for n in "bwr")).donate(0, [0])
    self.assertEqual(_kinds(chain.check(places)), [])
    chain = _chain(*(rows[n] for n in "wbr")).donate(0, [0])
    (fault,) = chain.check(places).faults
    self.assertEqual(
      str(fault),
      "late-read: b (step 3 of main) reads operand 0, x, expecting x (before"
      " the first step) in allocation 0 bytes [0, 16), but bytes [0, 16) hold"
      " w (step 2 of main): too late, the parameter is donated and its output"
      " is already defined",
    )

  def _loop(self, *tail: tuple[Any, ...], late: bool = False) -> _Builder:
    carry = _tuple_of(_VECTOR, _VECTOR)
    builder = _Builder()
    builder.computation(
      "condition",
      ("cp", "parameter", "", carry),
      ("go", "custom-call", "cp", _SCALAR),
    )
    body: list[tuple[Any, ...]] = [
      ("bp", "parameter", "", carry),
      ("b0", "get-tuple-element", "bp", _VECTOR),
      ("b1", "get-tuple-element", "bp", _VECTOR, {"tuple_index": 1}),
      ("n1", "dot", "b0 b1", _VECTOR),
      ("n0", "negate", "b0", _VECTOR),
      ("br", "tuple", "n0 n1", carry),
    ]
    builder.computation("body", *body)
    return builder.computation(
      "main",
      ("x", "parameter", "", _VECTOR),
      ("i0", "negate", "x", _VECTOR),
      ("i1", "custom-call", "x", _VECTOR),
      ("init", "tuple", "i0 i1", carry),
      ("w", "while", "init", carry, builder.callees("body", "condition")),
      ("w0", "get-tuple-element", "w", _VECTOR),
      *tail,
    )

  def test_loop(self):
    loop = self._loop(("r", "negate", "w0", _VECTOR))
    report = loop.check(_LOOP_PLACES)
    # The dot writes over an operand that it reads, which it cannot.
    self.assertEqual(set(_kinds(report)), {"overlap"})
    self.assertIn("overlaps operand 1", report.faults[0].message)
    places = {**_LOOP_PLACES, "n1": ("temp", 32)}
    report = loop.check(places)
    self.assertContainsSubset({"carry", "misplaced"}, _kinds(report))

  def test_reader_of_initial_value_after_loop(self):
    loop = self._loop(("r", "add", "i0 w0", _VECTOR))
    report = loop.check(_LOOP_PLACES)
    late = [f.message for f in report.faults if f.kind == FaultKind.LATE_READ]
    self.assertLen(late, 1)
    self.assertIn("reads operand 0, i0", late[0])
    self.assertIn("a loop or a branch has written", late[0])

  def test_damage_of_a_second_iteration(self):
    # The temporary t is over carry 1, which is read before: the first
    # iteration finds the initial value, the second one does not.
    carry = _tuple_of(_VECTOR, _VECTOR)
    builder = _Builder()
    builder.computation(
      "condition",
      ("cp", "parameter", "", carry),
      ("go", "custom-call", "", _SCALAR),
    ).computation(
      "body",
      ("bp", "parameter", "", carry),
      ("b0", "get-tuple-element", "bp", _VECTOR),
      ("b1", "get-tuple-element", "bp", _VECTOR, {"tuple_index": 1}),
      ("n0", "dot", "b1 b1", _VECTOR),
      ("t", "negate", "n0", _VECTOR),
      ("br", "tuple", "n0 b1", carry),
    ).computation(
      "main",
      ("x", "parameter", "", _VECTOR),
      ("i0", "negate", "x", _VECTOR),
      ("i1", "custom-call", "x", _VECTOR),
      ("init", "tuple", "i0 i1", carry),
      ("w", "while", "init", carry, builder.callees("body", "condition")),
      ("r", "get-tuple-element", "w", _VECTOR),
    )
    places = {
      name: place
      for name, place in _LOOP_PLACES.items()
      # An untouched carry is the initial value; the loop defines none.
      if name not in ("n1", "r", "bp 1", "cp 1", "w 1")
    }
    homes = ("i0", "n0", "bp 0", "cp 0", "w 0")
    places |= {name: ("out", 0) for name in homes}
    self.assertTrue(builder.check({**places, "t": ("temp", 32)}).ok)
    report = builder.check({**places, "t": ("temp", 16)})
    self.assertEqual(set(_kinds(report)), {"overwritten"})
    self.assertIn(
      "n0 (step 3 of body) reads operand 0, b1",
      " ".join(fault.message for fault in report.faults),
    )

  def test_conditional(self):
    builder = _Builder()
    builder.computation(
      "yes",
      ("yp", "parameter", "", _VECTOR),
      ("yr", "negate", "yp", _VECTOR),
    ).computation(
      "no",
      ("np", "parameter", "", _VECTOR),
      ("t", "negate", "np", _VECTOR),
      ("nr", "dot", "t np", _VECTOR),
    ).computation(
      "main",
      ("p", "parameter", "", _SCALAR),
      ("x", "parameter", "", _VECTOR, {"parameter_number": 1}),
      ("a", "negate", "x", _VECTOR),
      ("c", "conditional", "p x x", _VECTOR, builder.callees("yes", "no")),
      ("r", "add", "c a", _VECTOR),
    )
    places = {"p": ("p0", 0), "x": ("p1", 0), "a": ("temp", 0)}
    places |= {name: ("temp", 16) for name in ("yr", "nr", "c")}
    places |= {"t": ("temp", 32), "r": ("out", 0)}
    self.assertEqual(_kinds(builder.check(places)), [])
    report = builder.check({**places, "t": ("temp", 0)})
    self.assertEqual(_kinds(report), ["overwritten"])
    self.assertIn("hold t (step 1 of no)", report.faults[0].message)
    report = builder.check({**places, "yr": ("temp", 48)})
    self.assertEqual(_kinds(report), ["carry"])

  def _async(self, *between: tuple[Any, ...]) -> _Builder:
    builder = _Builder().computation(
      "wrapped",
      ("wx", "parameter", "", _VECTOR),
      ("wr", "dot", "wx wx", _VECTOR),
    )
    started = _tuple_of(_tuple_of(_VECTOR), _VECTOR)
    return builder.computation(
      "main",
      ("x", "parameter", "", _VECTOR),
      ("a", "negate", "x", _VECTOR),
      ("s", "async-start", "a", started, builder.callees("wrapped")),
      *between,
      ("d", "async-done", "s", _VECTOR),
      ("r", "negate", "d", _VECTOR),
    )

  @parameterized.parameters(
    (32, []),
    (0, ["overwritten"]),  # its operand
    (16, ["overwritten"] * 2),  # its result, which r reads too
  )
  def test_asynchronous_window(self, offset, kinds):
    builder = self._async(("t", "negate", "x", _VECTOR))
    places = {"x": ("p0", 0), "s": ("table", 0), "s 0": ("table", 16)}
    places |= {"a": ("temp", 0), "wr": ("temp", 16), "r": ("out", 0)}
    report = builder.check({**places, "t": ("temp", offset)})
    self.assertEqual(_kinds(report), kinds)
    if kinds:
      self.assertIn("d (step 4 of main)", report.faults[0].message)
      self.assertIn("hold t (step 3 of main)", report.faults[0].message)


class UnsupportedTest(parameterized.TestCase):
  def test_opcodes(self):
    for opcode in ("send", "mystery-start"):
      chain = _chain(("r", opcode, "x", _VECTOR))
      with self.assertRaisesRegex(UnsupportedModuleError, opcode):
        chain.check({**_XY, "r": ("out", 0)})

  def test_start_without_done(self):
    chain = _chain(
      ("s", "copy-start", "x", _tuple_of(_VECTOR, _VECTOR, _SCALAR)),
      ("r", "negate", "x", _VECTOR),
    )
    places = {**_XY, "s": ("table", 0), "s 0": ("temp", 0), "s 2": ("temp", 16)}
    with self.assertRaisesRegex(UnsupportedModuleError, "s is not done"):
      chain.check({**places, "r": ("out", 0)})

  def test_value_that_is_not_seen(self):
    chain = _chain(
      ("b", "bitcast", "x", _VECTOR), ("r", "negate", "b", _VECTOR)
    )
    with self.assertRaisesRegex(UnsupportedModuleError, "XLA places b"):
      chain.check({**_XY, "b": ("temp", 0), "r": ("out", 0)})

  def test_platform(self):
    chain = _chain(("r", "negate", "x", _VECTOR))
    with self.assertRaisesRegex(ValueError, "platform must be"):
      chain.check({**_XY, "r": ("out", 0)}, "tpu")


class NumericTest(parameterized.TestCase):
  """Random programs are run on real bytes, element by element."""

  def _run(self, rows, places) -> tuple[bool, bool]:
    """Returns whether all reads and the result are right."""
    num_elements = 4
    arena = np.full(64, np.nan)
    truth: dict[str, np.ndarray] = {}
    reads_right = True

    def home(name):
      base = {"p0": 0, "p1": 8, "out": 16, "temp": 24}[places[name][0]]
      start = base + places[name][1] // 4
      return arena[start : start + num_elements]

    for seed, (name, opcode, operands, *_) in enumerate(rows):
      if opcode == "parameter":
        truth[name] = np.random.default_rng(seed).random(num_elements)
        home(name)[:] = truth[name]
        continue
      flip = -1 if opcode == "reverse" else 1
      sources = operands.split()
      truth[name] = np.asarray(seed + sum(truth[s][::flip] for s in sources))
      reads_right &= all(
        np.array_equal(home(source), truth[source]) for source in sources
      )
      for i in range(num_elements):
        j = num_elements - 1 - i if flip < 0 else i
        home(name)[i] = seed + sum(home(source)[j] for source in sources)
    result = rows[-1][0]
    return reads_right, np.allclose(home(result), truth[result])

  def test_no_fault_means_right_numbers(self):
    num_ok = num_overwritten = 0
    for seed in range(400):
      rng = random.Random(seed)
      names = ["x", "y"]
      rows: list[tuple[Any, ...]] = [
        ("x", "parameter", "", _VECTOR),
        ("y", "parameter", "", _VECTOR, {"parameter_number": 1}),
      ]
      places = dict(_XY)
      for i in range(rng.randint(2, 6)):
        opcode = rng.choice(["add", "add", "reverse"])
        count = 2 if opcode == "add" else 1
        operands = " ".join(rng.choices(names[-4:], k=count))
        names.append(f"n{i}")
        rows.append((names[-1], opcode, operands, _VECTOR))
        places[names[-1]] = ("temp", 4 * rng.choice([0, 1, 4, 4, 8, 12]))
      rows.append(("r", "add", " ".join(names[-2:]), _VECTOR))
      places["r"] = ("out", 0)
      report = _Builder().computation("main", *rows).check(places)
      reads_right, result_right = self._run(rows, places)
      kinds = set(_kinds(report))
      self.assertContainsSubset(kinds, {"overwritten", "overlap"})
      if report.ok:
        num_ok += 1
        self.assertTrue(reads_right and result_right, (seed, rows, places))
      elif kinds == {"overwritten"}:
        num_overwritten += 1
        self.assertFalse(reads_right, (seed, rows, places))
    self.assertGreater(num_ok, 40)
    self.assertGreater(num_overwritten, 40)


if __name__ == "__main__":
  absltest.main()
