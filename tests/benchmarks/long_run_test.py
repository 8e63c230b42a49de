"""The benchmark of long runs, in small: what is counted stays what it is."""

import benchmark_process
import pytest
from absl.testing import absltest

_KINDS = ("jax", "jit", "limit", "refused", "enable")


class LongRunTest(absltest.TestCase):
  @pytest.mark.slow
  def test_nothing_grows_but_the_records(self):
    rows = benchmark_process.rows(
      "long_run_benchmark", "--compiles=25", "--calls=20000"
    )
    self.assertEqual(
      [(row["case"], row["kind"]) for row in rows],
      [
        *(("compile", kind) for kind in _KINDS),
        *(("call", kind) for kind in _KINDS if kind != "refused"),
      ],
    )
    for row in rows:
      start, end = row["start"], row["end"]
      self.assertEqual(start["threads"], end["threads"])
      # One each, and little that comes and goes.
      grown = end.get("records", 0) - start.get("records", 0)
      self.assertLess(end["objects"] - start["objects"], grown + 50, row)
      for name in ("handlers", "hooks", "under_way"):
        self.assertEqual(end.get(name, 0), 0, name)
      for name in ("policies", "programs"):
        self.assertEqual(end.get(name), start.get(name), name)
      # In so short a run the heap has not settled yet.
      self.assertLess(row["growth"], 0.05)


if __name__ == "__main__":
  absltest.main()
