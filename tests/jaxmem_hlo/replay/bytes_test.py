"""Tests of replay against modules that are run on real bytes."""

import random
from typing import Any

import numpy as np
from absl.testing import absltest, parameterized
from replay_modules import (
  VECTOR,
  XY,
  ModuleBuilder,
  fault_kinds,
)


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
        ("x", "parameter", "", VECTOR),
        ("y", "parameter", "", VECTOR, {"parameter_number": 1}),
      ]
      places = dict(XY)
      for i in range(rng.randint(2, 6)):
        opcode = rng.choice(["add", "add", "reverse"])
        count = 2 if opcode == "add" else 1
        operands = " ".join(rng.choices(names[-4:], k=count))
        names.append(f"n{i}")
        rows.append((names[-1], opcode, operands, VECTOR))
        places[names[-1]] = ("temp", 4 * rng.choice([0, 1, 4, 4, 8, 12]))
      rows.append(("r", "add", " ".join(names[-2:]), VECTOR))
      places["r"] = ("out", 0)
      report = ModuleBuilder().computation("main", *rows).check(places)
      reads_right, result_right = self._run(rows, places)
      kinds = set(fault_kinds(report))
      self.assertContainsSubset(kinds, {"overwritten", "overlap"})
      if not report.faults:
        num_ok += 1
        self.assertTrue(reads_right and result_right, (seed, rows, places))
      elif kinds == {"overwritten"}:
        num_overwritten += 1
        self.assertFalse(reads_right, (seed, rows, places))
    self.assertGreater(num_ok, 40)
    self.assertGreater(num_overwritten, 40)


if __name__ == "__main__":
  absltest.main()
