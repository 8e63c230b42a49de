"""The rows of the peak, of recorded modules: they add up, whatever is known."""

import record_modules
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem.report import origins_in, peak_rows


def _rows(module: Module, platform: str, orders=None, extra_bytes=0):
  model = AssignmentModel(module, platform)
  assigned = model.assign(orders)
  total_bytes = assigned.program_bytes + extra_bytes
  rows = peak_rows(
    origins_in(model, {}),
    assigned,
    output_paths=(),
    total_bytes=total_bytes,
  )
  return rows, total_bytes


class PeakRowsTest(parameterized.TestCase):
  @parameterized.product(
    name=list(record_modules.PROGRAMS), is_shuffled=(False, True)
  )
  def test_rows_add_up_and_nothing_is_counted_twice(self, name, is_shuffled):
    recorded = record_modules.load(name)
    orders = recorded.orders if is_shuffled else None
    rows, total_bytes = _rows(recorded.module, recorded.platform, orders)
    self.assertEqual(sum(row.size_bytes for row in rows), total_bytes)
    # Were an array counted twice, packing would have to make up for it.
    self.assertGreaterEqual(min(row.size_bytes for row in rows), 1)
    sizes = [row.size_bytes for row in rows]
    self.assertEqual(sizes, sorted(sizes, reverse=True))

  @parameterized.parameters("mlp_cpu", "mlp_h200")
  def test_donated_weights_and_momenta(self, name):
    recorded = record_modules.load(name)
    rows, _ = _rows(recorded.module, recorded.platform)
    size = 4 * (96 * 128 + 128 * 128 + 128 * 64)
    for kind in ("parameters", "optimizer state"):
      found = [row for row in rows if row.kind == kind]
      self.assertEqual(sum(row.size_bytes for row in found), size)
      self.assertLen(found, 3)

  @parameterized.parameters("mlp_cpu", "scan_h200", "branch_cpu")
  def test_a_module_that_knows_no_names(self, name):
    recorded = record_modules.load(name)
    module = recorded.module
    for computation in module.computations:
      for instruction in computation.instructions:
        instruction.proto.ClearField("metadata")
    rows, total_bytes = _rows(module, recorded.platform)
    self.assertEqual(sum(row.size_bytes for row in rows), total_bytes)
    self.assertFalse([row for row in rows if row.source or row.module])
    kinds = {row.kind for row in rows}
    self.assertEmpty(kinds & {"residuals", "parameter gradients"})

  @parameterized.parameters(4096, -4096)
  def test_what_xla_changed_afterwards_has_a_row(self, extra_bytes):
    recorded = record_modules.load("mlp_cpu")
    rows, total_bytes = _rows(
      recorded.module, recorded.platform, extra_bytes=extra_bytes
    )
    self.assertEqual(sum(row.size_bytes for row in rows), total_bytes)
    (row,) = [r for r in rows if r.kind == "changed by XLA afterwards"]
    self.assertEqual(row.size_bytes, extra_bytes)


if __name__ == "__main__":
  absltest.main()
