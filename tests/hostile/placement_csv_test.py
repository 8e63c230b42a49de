"""CSV files that nobody meant well with: placed, or one line that says why."""

import pathlib
import tempfile

import hostile
from absl.testing import absltest, parameterized
from hypothesis import given
from hypothesis import strategies as st

from jaxmem import placement

_COLUMNS = (
  *("id", "lower", "upper", "size", "alignment", "gaps", "pool", "offset"),
  *("hint", "cost", "buffer", "end", "begin", "colour"),
)
_GAPS = st.sampled_from(("", "1-2", "1-2@0:4", "2-1", "1-2 2-3", "1-2@9:3"))
_CELLS = st.one_of(
  hostile.integers.map(str),
  st.integers(0, 9).map(str),
  _GAPS,
  hostile.written_texts,
)


@st.composite
def _tables(draw):
  """Draws a table whose columns are mostly there and mostly hold integers."""
  wanted = ["id", "lower", "upper", "size"]
  columns = wanted + draw(st.lists(st.sampled_from(_COLUMNS), max_size=2))
  if draw(st.integers(0, 5)) == 0:
    columns.pop(draw(st.integers(0, len(columns) - 1)))
  lines = [",".join(columns)]
  for number in range(draw(st.integers(0, 4))):
    lower = draw(st.integers(0, 5))
    plain = [f"b{number}", str(lower), str(lower + 1 + number), "4"]
    cells = [*plain, "", ""][: len(columns)]
    for at in range(len(cells)):
      if draw(st.integers(0, 4)) == 0:
        cells[at] = draw(_CELLS)
    lines.append(",".join(cells))
  return "\n".join(lines)


_TEXTS = st.one_of(_tables(), hostile.written_texts)
_NUMBERS = st.one_of(hostile.integers.map(str), hostile.written_texts)


class CsvTest(parameterized.TestCase):
  def check(self, text, *options):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "problem.csv")
      path.write_text(text, encoding="utf-8")
      output = pathlib.Path(folder, "out.csv")
      code, out, err = hostile.run(
        "place", str(path), f"--output={output}", *options
      )
      self.assertIn(code, (0, 1, 2), err)
      self.assertNotIn("Traceback", err)
      self.assertEqual(bool(out), code == 0 or "was found" in err, out + err)
      if code == 0:
        placement.from_csv(output.read_text(encoding="utf-8"))
      elif options == ():
        # Without a capacity all fits, so that the table was wrong.
        self.assertEqual(code, 2, err)
        self.assertEqual(err.count("\n"), 1, err)

  @hostile.examples(150)
  @given(text=_TEXTS)
  def test_any_table(self, text):
    self.check(text)

  @hostile.examples(60)
  @given(text=_tables(), number=_NUMBERS)
  def test_any_capacity(self, text, number):
    self.check(text, f"--capacity={number}")

  @hostile.examples(60)
  @given(text=_tables(), numbers=st.lists(_NUMBERS, max_size=3))
  def test_any_pools(self, text, numbers):
    self.check(text, f"--pools={','.join(numbers)}")

  @hostile.examples(200)
  @given(text=st.one_of(hostile.texts, _tables(), st.text(max_size=100)))
  def test_a_text_is_read_or_the_line_is_named(self, text):
    try:
      placement.from_csv(text)
    except ValueError as error:
      self.assertRegex(str(error), "^line [0-9]+: |buffer")

  def test_a_field_that_is_too_long(self):
    with self.assertRaisesRegex(ValueError, "^line 2: .*field larger"):
      placement.from_csv("id,lower,upper,size\n" + "x" * 200_000 + ",0,1,1\n")

  def test_a_lone_carriage_return(self):
    with self.assertRaisesRegex(ValueError, "^line [12]: "):
      placement.from_csv("id,lower,upper,size\na\rb,0,1,1\n")

  @parameterized.parameters("", "1,,2", "many", "-1", "9" * 5000)
  def test_pools_that_are_no_numbers(self, pools):
    text = "id,lower,upper,size\na,0,1,1\n"
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "problem.csv")
      path.write_text(text)
      code, _, err = hostile.run("place", str(path), f"--pools={pools}")
    self.assertEqual(code, 2)
    self.assertRegex(err, "--pools|capacities")
    self.assertNotIn("invalid literal", err)


if __name__ == "__main__":
  absltest.main()
