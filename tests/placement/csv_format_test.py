"""Tests of the CSV format of placement problems, and of the command."""

import contextlib
import io
import pathlib
import tempfile

from absl.testing import absltest, parameterized
from placement_problems import random_problem

from jaxmem import cli
from jaxmem.placement import Buffer, Gap, Problem, from_csv, place, to_csv

_FOLDER = pathlib.Path(__file__).parents[1] / "testdata" / "minimalloc"


class CsvTest(parameterized.TestCase):
  def test_all_columns(self):
    text = (
      "size,id,lower,upper,gaps,alignment,offset,hint\n"
      "8,a,0,9,2-3 4-6@0:4,4,12,\n"
      "5,b,-1,2,,,,7\n"
    )
    a = Buffer(
      name="a",
      size_bytes=8,
      lower=0,
      upper=9,
      alignment_bytes=4,
      offset_bytes=12,
      gaps=(Gap(2, 3), Gap(4, 6, (0, 4))),
    )
    b = Buffer(name="b", size_bytes=5, lower=-1, upper=2, hint_bytes=7)
    self.assertEqual(from_csv(text), Problem((a, b)))

  def test_older_names(self):
    # In MiniMalloc's older files `end` is the last time, not one past it.
    given = from_csv("buffer_id,start,end,size,gaps\nx,0,4,7,1-2\n")
    self.assertEqual(given.buffers[0].upper, 5)
    self.assertEqual(given.buffers[0].gaps, (Gap(1, 3),))

  @parameterized.parameters(*range(8))
  def test_round_trip(self, seed):
    given = random_problem(seed, num_buffers=15)
    self.assertEqual(from_csv(to_csv(given)), given)

  def test_a_solution_is_read_as_fixed_offsets(self):
    given = from_csv((_FOLDER / "input.12.csv").read_text(encoding="utf-8"))
    solution = place(given, 12)
    fixed = from_csv(to_csv(given, solution))
    self.assertEqual(
      tuple(b.offset_bytes for b in fixed.buffers), solution.offsets
    )
    self.assertEqual(place(fixed, 12).offsets, solution.offsets)

  @parameterized.parameters(
    ("", "line 1: expected column names"),
    ("id,lower,upper\n", "line 1: column 'size' is missing"),
    ("id,lower,upper,size,color\n", "line 1: unknown column 'color'"),
    ("id,lower,start,upper,size\n", "line 1: column 'lower' is there twice"),
    ("id,lower,upper,size\n", "at least one buffer"),
    ("id,lower,upper,size\na,0,1\n", "line 2: expected 4 fields, got 3"),
    ("id,lower,upper,size\na,0,1,2\n\nb,0,x,2\n", "line 4: upper must be an"),
    ("id,lower,upper,size\na,0,1,-2\n", "line 2: .*not be negative, got -2"),
    ("id,lower,upper,size\na,1,1,2\n", r"line 2: .*got \[1, 1\)"),
    ("id,lower,upper,size,gaps\na,0,9,2,3\n", "line 2: a gap must be"),
    ("id,lower,upper,size,gaps\na,0,9,2,3-10\n", "line 2: .*gaps must be"),
    ("id,lower,upper,size,gaps\na,0,9,2,3-4@0:3\n", "line 2: .*the window"),
    ("id,lower,upper,size,alignment\na,0,9,2,0\n", "line 2: .*positive, got 0"),
    ("id,lower,upper,size,offset\na,0,9,2,-4\n", "line 2: .*negative, got -4"),
    (
      "id,lower,upper,size,offset,alignment\na,0,9,2,3,2\n",
      "line 2: .*a multiple of 2, got 3",
    ),
    ("id,lower,upper,size\na,0,1,2\na,0,1,2\n", "Two buffers are named 'a'"),
    (f"id,lower,upper,size\na,0,1,{1 << 62}\nb,0,1,{1 << 62}\n", r"2\*\*63"),
    (f"id,lower,upper,size\na,0,{1 << 63},1\n", "line 2: .*64 bits"),
  )
  def test_errors(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      from_csv(text)


class PlaceCommandTest(absltest.TestCase):
  def _run(self, *argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      code = cli.main(["place", *argv])
    return code, out.getvalue(), err.getvalue()

  def test_places_and_writes(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    output = pathlib.Path(folder) / "out.csv"
    code, out, err = self._run(
      str(_FOLDER / "input.12.csv"), "--capacity", "12", "--output", str(output)
    )
    self.assertEqual((code, err), (0, ""))
    self.assertStartsWith(out, "5 buffers in 12 bytes, optimal")
    lines = output.read_text(encoding="utf-8").splitlines()
    self.assertEqual(lines[0], "id,lower,upper,size,offset")
    self.assertLen(lines, 6)

  def test_too_small_a_capacity(self):
    path = str(_FOLDER / "input.12.csv")
    code, out, err = self._run(path, "--capacity", "11")
    self.assertEqual((code, out), (1, ""))
    self.assertIn("these do not fit together: b1, b3, b5", err)

  def test_unreadable_files(self):
    code, _, err = self._run("no/such/file.csv")
    self.assertEqual(code, 2)
    self.assertIn("cannot read no/such/file.csv", err)
    code, _, err = self._run(str(_FOLDER / "README.md"))
    self.assertEqual(code, 2)
    self.assertIn("line 1: column 'id' is missing", err)


if __name__ == "__main__":
  absltest.main()
