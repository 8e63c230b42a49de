"""The benchmark of what jaxmem costs where it plans nothing, in small."""

import benchmark_process
import pytest
from absl.testing import absltest

_SMALL = ("--calls=4", "--chunk=2", "--compiles=2", "--repetitions=1")


class DoorOverheadTest(absltest.TestCase):
  @pytest.mark.slow
  def test_a_row_for_each_case(self):
    call, kept, process = benchmark_process.rows(
      "door_overhead_benchmark", *_SMALL
    )
    self.assertEqual(
      [row["case"] for row in (call, kept, process)],
      ["call", "keep_arena", "process"],
    )
    self.assertEqual((call["calls"], kept["calls"]), (4, 4))
    for row, name in ((call, "cpu"), (kept, "wall"), (process, "process_cpu")):
      self.assertGreater(row[name]["median_of_ratios"], 0)
    # A process without jaxmem has nothing of it, nor does one with it load
    # what it does not need.
    self.assertEqual(process["xla_loaded"], [])
    self.assertEqual(process["loaded"], ["jaxmem"])
    # At least an interpreter with jax, and less than a gigabyte.
    self.assertBetween(process["peak_bytes"], 5e7, 1e9)


if __name__ == "__main__":
  absltest.main()
