"""How much loops are asked not to stack."""

from absl.testing import absltest, parameterized

from jaxmem.versions.drop_amounts import amounts_to_drop, less_to_drop


class AmountsToDropTest(parameterized.TestCase):
  @parameterized.parameters(
    # What has to go, then the larger shares of 1,000 bytes, then everything.
    (100, False, [100, 500, 750, 875, "all"]),
    (100, True, [50, 100, 500, 750, 875, "all"]),
    (600, False, [600, 750, 875, "all"]),
    # More than there is: the shares would be too little.
    (2000, True, [1000, 2000, "all"]),
    # It fits, and less may be faster.
    (0, True, [500, 750, 875, "all"]),
  )
  def test_ascending(self, excess_bytes, may_halve, amounts):
    self.assertEqual(amounts_to_drop(excess_bytes, 1000, may_halve), amounts)

  @parameterized.parameters(
    (100, [500, 750, 875, "all"]),
    (600, [750, 875, "all"]),
    # No share is enough.
    (900, [900, "all"]),
    (0, [500, 750, 875, "all"]),
  )
  def test_the_first_leaves_little(self, excess_bytes, amounts):
    found = amounts_to_drop(excess_bytes, 1000, False, leaves_little=True)
    self.assertEqual(found, amounts)


class LessToDropTest(parameterized.TestCase):
  @parameterized.parameters(
    # Dropping 3,000 saved 6,000, where 3,000 had to go: half of it will do.
    (3000, 3000, 3000, [1500]),
    # Dropping 1,500 saved 4,000, of which 3,000 had to go.
    (1500, 3000, 1000, [1125]),
    # Another compile is not worth a tenth of what was saved, or less.
    (3000, 3000, 300, []),
    (3000, 3000, 0, []),
    # It fitted before.
    (500, 0, 900, []),
    # Nothing says how much that was by the jaxpr.
    ("all", 3000, 3000, []),
  )
  def test_in_proportion(self, amount, excess_bytes, spare_bytes, less):
    self.assertEqual(less_to_drop(amount, excess_bytes, spare_bytes), less)


if __name__ == "__main__":
  absltest.main()
