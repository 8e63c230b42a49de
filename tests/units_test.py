"""Tests of jaxmem.units."""

import numpy as np
from absl.testing import absltest, parameterized

from jaxmem import units


class ParseBytesTest(parameterized.TestCase):
  @parameterized.parameters(
    (1, 1),
    (np.int64(4096), 4096),
    (24e9, 24_000_000_000),
    ("24GiB", 24 * 2**30),
    ("24 gib", 24 * 2**30),
    ("512MB", 512_000_000),
    (" 1.5 KiB ", 1536),
    (".5KiB", 512),
    ("2TB", 2 * 10**12),
    ("1_000_000", 1_000_000),
    ("7b", 7),
    ("7.", 7),
    ("1_0.5kB", 10_500),
  )
  def test_reads_absolute_sizes(self, value, expected):
    self.assertEqual(units.parse_bytes(value), expected)
    self.assertIsInstance(units.parse_bytes(value), int)

  @parameterized.parameters(
    ("80%", 800), ("12.5%", 125), ("100%", 1000), (0.25, 250), (1.0, 1000)
  )
  def test_reads_shares_of_the_total(self, value, expected):
    self.assertEqual(units.parse_bytes(value, total_bytes=1000), expected)

  @parameterized.parameters("1.5", "1.5 B", "9" * 400 + ".5")
  def test_refuses_parts_of_a_byte(self, value):
    with self.assertRaisesRegex(ValueError, "not a whole number of bytes"):
      units.parse_bytes(value)

  @parameterized.parameters("9" * 400 + ".5KiB", 10**400, "8388608TiB", 1e300)
  def test_refuses_more_than_a_64_bit_integer_holds(self, value):
    with self.assertRaisesRegex(ValueError, r"less than 2\*\*63 bytes"):
      units.parse_bytes(value)

  def test_large_integers_are_exact(self):
    # 2**53 + 1 bytes is not a float.
    self.assertEqual(units.parse_bytes(str(2**53 + 1)), 2**53 + 1)

  @parameterized.parameters(
    "24G",
    "24 parsecs",
    "GiB",
    "",
    "1,000",
    "-5GiB",
    "nan",
    "1e9",
    2.5,
    float("nan"),
    float("inf"),
    True,
    None,
    ([1],),
  )
  def test_refuses_what_is_not_a_size(self, value):
    with self.assertRaisesRegex(
      ValueError, r"^memory_limit must be .*, got .*; use e\.g\. '24GiB'"
    ):
      units.parse_bytes(value)

  @parameterized.parameters(0, -3, "0GiB", 0.0)
  def test_refuses_less_than_a_byte(self, value):
    with self.assertRaisesRegex(ValueError, "capacity must be at least one"):
      units.parse_bytes(value, name="capacity")

  @parameterized.parameters("80%", 0.8)
  def test_a_share_needs_a_total(self, value):
    with self.assertRaisesRegex(ValueError, "memory of the device is unknown"):
      units.parse_bytes(value)

  def test_a_share_is_at_most_all(self):
    with self.assertRaisesRegex(ValueError, "at most 100%"):
      units.parse_bytes("120%", total_bytes=1000)


class FormatBytesTest(parameterized.TestCase):
  @parameterized.parameters(
    (0, "0 B"),
    (512, "512 B"),
    (1023, "1023 B"),
    (1536, "1.50 KiB"),
    (24 * 2**30, "24.0 GiB"),
    (-135 * 2**20, "-135 MiB"),
    (2**20 - 1, "1.00 MiB"),
    (5000 * 2**40, "5000 TiB"),
  )
  def test_formats(self, num_bytes, expected):
    self.assertEqual(units.format_bytes(num_bytes), expected)

  def test_parses_back_to_within_its_digits(self):
    rng = np.random.default_rng(0)
    for exponent in rng.uniform(0, 44, size=200):
      size = int(2**exponent)
      parsed = units.parse_bytes(units.format_bytes(size))
      self.assertAlmostEqual(parsed / size, 1, delta=0.006)


if __name__ == "__main__":
  absltest.main()
