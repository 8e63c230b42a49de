"""What matrix units reach of their rates, by hand-computed examples."""

import dataclasses

import tiny_hlo
from absl.testing import absltest, parameterized
from tiny_hlo import f32, tuple_of
from unit_costs import dot, root_seconds

from jaxmem import cost

# One flop of any kind takes 1 s, bytes and launches take next to nothing.
_UNIT = cost.Rates(
  memory_bytes_per_s=1e9,
  tf32_flops_per_s=1.0,
  bf16_flops_per_s=1.0,
  fp32_flops_per_s=1.0,
  launch_s=0.0,
  efficiency=cost.Efficiency(flops=1.0, memory=1.0),
)


class MatrixUnitsTest(parameterized.TestCase):
  @parameterized.parameters(
    # Rows of 32 bytes; of 28 in a factor, and in the product.
    (8, 8, 8, "", "tf32", 1.0),
    (8, 8, 7, "", "tf32", 0.5),
    (8, 7, 8, "", "tf32", 0.5),
    (8, 7, 8, "", "fp32", 1.0),
    # One row alone begins where it should.
    (1, 7, 8, "rhs", "tf32", 1.0),
    # Both factors lie across what is summed over, then only the second.
    (8, 8, 8, "lhs", "tf32", 0.25),
    (8, 8, 8, "lhs", "fp32", 1.0),
  )
  def test_what_matrix_units_reach(self, m, n, k, lies, float32, reached):
    module = dot(m, n, k)
    by_id = module.entry.by_id
    a, b = (by_id[o].proto.shape for o in module.entry.root.operands)
    for shape, name in ((a, "lhs"), (b, "rhs")):
      # "lhs" lies across: the first dimension is innermost.
      order = [0, 1] if lies == name else [1, 0]
      shape.layout.minor_to_major[:] = order
    efficiency = dataclasses.replace(
      _UNIT.efficiency, misaligned=0.5, crosswise=0.25
    )
    rates = dataclasses.replace(
      _UNIT, efficiency=efficiency, float32_products=float32
    )
    found = root_seconds(module, rates)
    self.assertAlmostEqual(found, 2 * m * n * k / reached, places=4)

  @parameterized.parameters(
    ("Forward", "tf32", 0.5),
    ("BackwardInput", "tf32", 0.5),
    ("BackwardFilter", "tf32", 0.25),
    ("BackwardFilter", "fp32", 1.0),
  )
  def test_what_convolutions_reach(self, name, float32, reached):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    image, kernel = f32(1, 4, 4, 1), f32(1, 1, 1, 1)
    is_gradient = name == "BackwardFilter"
    operands = (image, image if is_gradient else kernel)
    result = kernel if is_gradient else image
    main.op(
      "custom-call",
      tuple_of(result, f32(1)),
      *map(main.parameter, operands),
      name="convolution",
      custom_call_target=f"__cudnn$conv{name}",
    )
    module = builder.module(main)
    proto = module.entry.root.proto
    numbers = proto.convolution_dimension_numbers
    numbers.input_feature_dimension = numbers.output_feature_dimension = 3
    numbers.kernel_input_feature_dimension = 2
    numbers.kernel_output_feature_dimension = 3
    for dimensions in (
      numbers.input_spatial_dimensions,
      numbers.kernel_spatial_dimensions,
      numbers.output_spatial_dimensions,
    ):
      dimensions.extend([1, 2])
    numbers.kernel_spatial_dimensions[:] = [0, 1]
    for _ in range(2):
      proto.window.dimensions.add(size=1, stride=1)
    efficiency = dataclasses.replace(
      _UNIT.efficiency, convolution=0.5, kernel_gradient=0.25
    )
    rates = dataclasses.replace(
      _UNIT, efficiency=efficiency, float32_products=float32
    )
    # One multiply-add for each of 16 places.
    self.assertAlmostEqual(root_seconds(module, rates), 32 / reached, places=4)


if __name__ == "__main__":
  absltest.main()
