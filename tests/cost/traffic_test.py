"""Tests of the bytes that instructions read and write."""

import tiny_hlo
from absl.testing import absltest, parameterized
from tiny_hlo import f32, named

from jaxmem import cost

# A byte takes 0.1 s, a launch 0.01 s, a flop next to nothing.
_RATES = cost.Rates(
  memory_bytes_per_s=10.0,
  tf32_flops_per_s=1e9,
  bf16_flops_per_s=1e9,
  fp32_flops_per_s=1e9,
  launch_s=0.01,
  efficiency=cost.Efficiency(flops=1.0, memory=1.0, strided=0.5),
)


class TrafficTest(parameterized.TestCase):
  def _count(self, build):
    """Bytes of a fusion of f32[100] x and f32[10] y, whose body is built."""
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    build(body, body.parameter(f32(100)), body.parameter(f32(10)))
    main = builder.computation("main")
    x, y = main.parameter(f32(100)), main.parameter(f32(10))
    root = body.proto.instructions[-1]
    main.op("fusion", root.shape, x, y, calls=(body,), name="i")
    module = builder.module(main)
    return cost.TrafficCounter(module).count(named(module, "i"))

  def test_reads_once_what_is_used_twice(self):
    def build(body, x, y):
      del y
      body.op("add", f32(100), body.op("tanh", f32(100), x), x)

    self.assertEqual(self._count(build), 400 + 400)

  def test_reads_only_slices(self):
    def build(body, x, y):
      first = body.op("slice", f32(10), x)
      second = body.op("slice", f32(10), body.op("bitcast", f32(10, 10), x))
      body.op("add", f32(10), body.op("add", f32(10), first, second), y)

    # Two slices of x, y, and the output.
    self.assertEqual(self._count(build), 80 + 40 + 40)

  def test_slices_are_no_more_than_the_whole(self):
    def build(body, x, y):
      del y
      parts = [body.op("slice", f32(60), x) for _ in range(3)]
      body.op("add", f32(60), *parts)

    self.assertEqual(self._count(build), 400 + 240)

  def test_updates_in_place(self):
    def build(body, x, y):
      at = body.op("constant", tiny_hlo.s32())
      body.op("dynamic-update-slice", f32(100), x, y, at)

    # y is read and written; x stays where it is.
    self.assertEqual(self._count(build), 40 + 40)

  @parameterized.parameters(
    # The rows of x are those of the result.
    ((1, 0, 2), 0),
    # All of x is read across its rows, y as it lies.
    ((0, 2, 1), 4 * 120),
  )
  def test_reads_across_rows(self, order, expected):
    given = (4, 5, 6)
    turned = tuple(given[d] for d in order)
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    x, y = body.parameter(f32(*given)), body.parameter(f32(*turned))
    other = body.op("tanh", f32(*given), x)
    other = body.op("transpose", f32(*turned), other, dimensions=order)
    body.op("add", f32(*turned), other, y)
    main = builder.computation("main")
    operands = main.parameter(f32(*given)), main.parameter(f32(*turned))
    main.op("fusion", f32(*turned), *operands, calls=(body,), name="fused")
    alone = main.op(
      "transpose", f32(*turned), operands[0], dimensions=order, name="alone"
    )
    main.tuple(alone)
    module = builder.module(main)
    traffic = cost.TrafficCounter(module)
    self.assertEqual(traffic.strided(named(module, "fused")), expected)
    self.assertEqual(traffic.strided(named(module, "alone")), expected)
    self.assertEqual(traffic.strided(module.entry.root), 0)
    # 3 x 480 bytes at 10 a second; reading across rows takes twice as long.
    seconds = cost.instruction_seconds(module, _RATES)
    self.assertAlmostEqual(
      seconds[named(module, "fused").id], 144 + expected / 10 + 0.01, places=4
    )

  def test_a_copy_to_another_layout_reads_across_rows(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(4, 5))
    turned, same = f32(4, 5), f32(4, 5)
    turned.layout.minor_to_major[:] = [0, 1]
    main.op("copy", turned, x, name="turned")
    main.op("copy", same, x, name="same")
    traffic = cost.TrafficCounter(module := builder.module(main))
    self.assertEqual(traffic.strided(named(module, "turned")), 80)
    self.assertEqual(traffic.strided(named(module, "same")), 0)

  def test_renaming_is_free(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    b = main.op("bitcast", f32(2, 4), x, name="b")
    main.tuple(b, name="t")
    module = builder.module(main)
    seconds = cost.instruction_seconds(module, _RATES)
    self.assertEqual({*seconds.values()}, {0.0})


if __name__ == "__main__":
  absltest.main()
