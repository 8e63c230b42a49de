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
  efficiency=cost.Efficiency(
    flops=1.0, memory=1.0, strided=cost.Strided(looped=0.25, tiled=0.5)
  ),
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
    for name in ("fused", "alone"):
      strided = traffic.strided(named(module, name))
      self.assertEqual((strided.num_bytes, strided.is_lost), (expected, False))
    self.assertEqual(traffic.strided(module.entry.root).num_bytes, 0)
    # 3 x 480 bytes at 10 a second; reading across rows takes twice as long, as
    # XLA goes through them by tiles.
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
    self.assertEqual(traffic.strided(named(module, "turned")).num_bytes, 80)
    self.assertEqual(traffic.strided(named(module, "same")).num_bytes, 0)

  @parameterized.parameters(
    # 16 lines, or more, of 512 sets: of 8192, as many as fit, and one too many.
    (8192, 192, 1, True),
    (8200, 192, 1, True, True),
    # Lines that are next to each other use all sets.
    (8200, 16, 1, True),
    (32784, 16, 1, True, True),
    # Twice as many are read.
    (4104, 192, 2, True, True),
    # Eight columns are in one line.
    (65536, 8, 1, True),
    # Without a broadcast XLA goes through it by tiles.
    (8200, 192, 1, False),
  )
  def test_loops_lose_lines(
    self, num_rows, num_columns, num_arrays, has_broadcast, expected=False
  ):
    given, turned = f32(num_rows, num_columns), f32(num_columns, num_rows)
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    value = body.parameter(given)
    for _ in range(1, num_arrays):
      value = body.op("add", given, value, body.parameter(given))
    if has_broadcast:
      one = body.op("constant", f32())
      value = body.op("add", given, value, body.op("broadcast", given, one))
    body.op("transpose", turned, value, dimensions=(1, 0))
    main = builder.computation("main")
    operands = [main.parameter(given) for _ in range(num_arrays)]
    main.op("fusion", turned, *operands, calls=(body,), name="fused")
    module = builder.module(main)
    strided = cost.TrafficCounter(module).strided(named(module, "fused"))
    num_bytes = 4 * num_rows * num_columns * num_arrays
    self.assertEqual(
      (strided.num_bytes, strided.is_lost), (num_bytes, expected)
    )
    self.assertEqual(strided.is_tiled, not has_broadcast)
    # What is lost costs no more here; plain loops take four times as long.
    more = 0 if expected else (3 if has_broadcast else 1)
    seconds = cost.instruction_seconds(module, _RATES)
    self.assertAlmostEqual(
      seconds[named(module, "fused").id],
      (num_bytes + 4 * num_rows * num_columns + more * num_bytes) / 10 + 0.01,
      delta=1.0,
    )

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
