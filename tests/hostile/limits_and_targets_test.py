"""Limits, targets and factories that nobody can mean: a clear error, no other.

What must hold is said in the errors' own words: they begin with the name of
what was wrong.
"""

import fractions
import pathlib
import sys
import tempfile
from typing import Any
from unittest import mock

import hostile
from absl.testing import absltest, parameterized
from hypothesis import given
from hypothesis import strategies as st

from jaxmem import factories, targets, units
from jaxmem.targets import description

_UNITS = ("", "b", "B", "kB", "MiB", "gib", "TB", "%", "G", "bytes", "KB")
_SIZES = st.builds(
  lambda whole, part, space, unit: f"{whole}{part}{space}{unit}",
  hostile.integers,
  st.sampled_from(("", ".", ".5", ".0", ".25.1", "e3", "_000")),
  st.sampled_from(("", " ", "\u00a0")),
  st.sampled_from(_UNITS),
)
_LIMITS = st.one_of(
  _SIZES,
  hostile.values,
  st.fractions(),
  st.decimals(),
  st.complex_numbers(),
  st.sampled_from((10**5000, fractions.Fraction(10**400), object(), b"24GiB")),
)


class LimitTest(parameterized.TestCase):
  @hostile.examples(500)
  @given(written=_LIMITS, total_bytes=st.sampled_from((None, 1, 2**40)))
  def test_bytes_or_an_error_that_says_what_to_write(
    self, written, total_bytes
  ):
    try:
      num_bytes = units.parse_bytes(written, total_bytes=total_bytes)
    except ValueError as error:
      self.assertRegex(str(error), r"^memory_limit must be .*'24GiB'")
      self.assertLess(len(str(error)), 600)
    else:
      self.assertIsInstance(num_bytes, int)
      self.assertBetween(num_bytes, 1, 2**63 - 1)

  @hostile.examples(100)
  @given(
    number=st.fractions(min_value=0, max_value=2**70, max_denominator=1),
    unit=st.sampled_from((("KiB", 1024), ("MB", 10**6), ("", 1))),
  )
  def test_whole_numbers_are_exact(self, number, unit):
    name, size_bytes = unit
    expected = int(number) * size_bytes
    try:
      self.assertEqual(units.parse_bytes(f"{number}{name}"), expected)
    except ValueError:
      self.assertFalse(1 <= expected < 2**63)

  def test_numbers_that_python_prints_or_converts_no_more(self):
    digits = "9" * 5000
    written: Any
    for written in (
      digits,
      digits + "GiB",
      10**5000,
      fractions.Fraction(10**400),
    ):
      with self.assertRaisesRegex(ValueError, "^memory_limit must be"):
        units.parse_bytes(written)


_DESCRIPTION = description._packaged("h200").config_text.splitlines()
_NUMBERS = ("1e999", "1e", "--", "-5", "0", "0.5", ".", "9" * 5000, "1", "")


@st.composite
def _descriptions(draw):
  """Draws a description with a line gone, and a number that is another."""
  lines = list(_DESCRIPTION)
  for _ in range(draw(st.integers(1, 4))):
    at = draw(st.integers(0, len(lines) - 1))
    name, colon, _ = lines[at].partition(":")
    if colon and draw(st.booleans()):
      lines[at] = f"{name}: {draw(st.sampled_from(_NUMBERS))}"
    else:
      del lines[at]
  return "\n".join(lines)


class TargetTest(parameterized.TestCase):
  def check(self, written):
    try:
      target = targets.get(written)
      target.check_described()
    except ValueError as error:
      self.assertRegex(str(error), "target")
      self.assertNotIn("codec", str(error).split("got")[0])
      return
    self.assertGreater(target.memory_bytes or 0, 0)
    self.assertGreaterEqual(target.nvlink_lanes or 0, 0)
    for kind in ("fp32", "bf16"):
      self.assertGreaterEqual(target.flops_per_s(kind) or 0, 0)

  @hostile.examples(200)
  @given(written=hostile.values)
  def test_names(self, written):
    if isinstance(written, str) and written.strip().lower() == "cpu":
      return
    if written is not None:
      with self.assertRaisesRegex(ValueError, "^target must be"):
        targets.get(written)

  @hostile.examples(200)
  @given(text=_descriptions())
  def test_descriptions(self, text):
    self.check(text)

  @hostile.examples(100)
  @given(content=st.one_of(st.binary(max_size=50), _descriptions()))
  def test_files(self, content):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "card.txtpb")
      data = content if isinstance(content, bytes) else content.encode()
      path.write_bytes(data)
      self.check(path)
      self.check(str(path))

  @parameterized.parameters("a\0b.txtpb", "\ud800.txtpb", "/.txtpb", "/dev")
  def test_paths_of_no_file(self, path):
    for written in (path, pathlib.Path(path)):
      with self.assertRaisesRegex(ValueError, "^target must be"):
        targets.get(written)

  @parameterized.parameters("1e999", "1e", "--", "-5", "0.5")
  def test_a_memory_of_no_size(self, number):
    text = 'gpu_device_info { device_memory_size: %s }platform_name: "CUDA"'
    with self.assertRaisesRegex(ValueError, "^target must be"):
      targets.get(text % number)


class FactoryTest(absltest.TestCase):
  @hostile.examples(150)
  @given(
    path=st.one_of(
      hostile.texts,
      st.builds(
        lambda module, name: f"{module}:{name}",
        st.one_of(hostile.texts, st.sampled_from(("json", "os.path"))),
        hostile.texts,
      ),
    )
  )
  def test_names(self, path):
    with (
      mock.patch.object(sys, "path", [*sys.path]),
      self.assertRaises(factories.UsageError),
    ):
      factories.load(path)

  def test_a_module_that_ends_the_process_is_no_success(self):
    with tempfile.TemporaryDirectory() as folder:
      pathlib.Path(folder, "ends_at_once.py").write_text(
        "import sys\nsys.exit()\n"
      )
      with mock.patch.object(sys, "path", [folder, *sys.path]):
        code, out, err = hostile.run("plan", "ends_at_once:make_step")
    self.assertEqual((code, out), (2, ""))
    self.assertIn("ended the process", err)
    self.assertEqual(err.count("\n"), 1)

  @hostile.examples(60)
  @given(
    option=st.sampled_from(("--target", "--memory-limit", "--devices")),
    value=hostile.texts.filter(
      lambda text: text.strip().lower() not in ("cpu", "1", "255", "2")
    ),
  )
  def test_options_of_the_command(self, option, value):
    code, out, err = hostile.run("plan", "json:no_such", f"{option}={value}")
    self.assertEqual((code, out), (2, ""))
    self.assertNotIn("Traceback", err)


if __name__ == "__main__":
  absltest.main()
