"""Tests of jaxmem.cost: operations, bytes and roofline seconds."""

import dataclasses
import importlib
import unittest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import record_modules
import small_steps
import tiny_hlo
from absl.testing import absltest, parameterized
from jax import lax
from jaxmem_hlo.module import Module
from tiny_hlo import f32, named, tuple_of
from unit_costs import UNIT, dot, root_seconds

from benchmarks import zoo
from jaxmem import cost, targets
from jaxmem.cost.flops import FlopCounter
from jaxmem.cost.traffic import TrafficCounter, trip_count


def _totals(module):
  """Flops, transcendentals and bytes; loops once, as XLA counts them."""
  flops, traffic = FlopCounter(module), TrafficCounter(module)

  def of(instruction):
    if instruction.opcode in ("async-start", "call", "conditional", "while"):
      bodies = [total(module.by_id[c]) for c in instruction.callees]
      is_choice = instruction.opcode == "conditional"
      return max(bodies) if is_choice else map(sum, zip(*bodies, strict=True))
    found = flops.count(instruction)
    return (
      sum(found.products.values()) + found.looped + found.scalar,
      found.transcendental,
      traffic.count(instruction),
    )

  def total(computation):
    return tuple(map(sum, zip(*map(of, computation.instructions), strict=True)))

  return total(module.entry)


def _captured(function, *args, target=None, **kwargs):
  return record_modules.capture(function, args, target=target, **kwargs)


class XlaTest(parameterized.TestCase):
  """XLA's own analysis of compiled programs says the same."""

  def _check(self, module, analysis, byte_tolerance):
    flops, transcendentals, num_bytes = _totals(module)
    self.assertGreater(flops, 0)
    self.assertAlmostEqual(flops / analysis["flops"], 1, delta=1e-3)
    expected = analysis.get("transcendentals", 0)
    self.assertAlmostEqual(transcendentals, expected, delta=0)
    ratio = num_bytes / analysis["bytes accessed"]
    self.assertAlmostEqual(ratio, 1, delta=byte_tolerance)

  @parameterized.parameters(
    "mlp", "scan", "cond", "update_slice", "conv", "sort"
  )
  def test_small_steps(self, name):
    function, params, x = small_steps.STEPS[name]
    captured = _captured(function, params, x)
    analysis = captured.compiled.cost_analysis()
    self._check(captured.module, analysis, 0.002)

  def test_a_model(self):
    step = zoo.build("gpt2_small", 2, size="tiny")
    captured = _captured(step.function, *step.args, **step.jit_kwargs)
    analysis = captured.compiled.cost_analysis()
    self._check(captured.module, analysis, 0.03)

  @unittest.skipUnless(targets.is_available("h200"), "needs JAX's CUDA plugin")
  def test_a_gpu_module(self):
    function, params, x = small_steps.STEPS["mlp"]
    captured = _captured(function, params, x, target="h200")
    # XLA analyses no described device; its CPU client reads the module.
    hlo: Any = importlib.import_module("jaxlib._hlo")
    module = hlo.HloModule.from_serialized_hlo_module_proto(
      captured.module.to_bytes()
    )
    analyse = importlib.import_module("jaxlib._jax").hlo_module_cost_analysis
    analysis = analyse(jax.devices("cpu")[0].client, module)
    self._check(captured.module, analysis, 0.01)

  @unittest.skipUnless(targets.is_available("h200"), "needs JAX's CUDA plugin")
  def test_convolutions_of_both_platforms(self):
    # cuDNN's calls, which XLA's analysis does not know, multiply as much as
    # XLA:CPU's convolutions do.
    function, args = record_modules.convolutions, _CONVOLUTIONS
    on_cpu = _captured(function, *args).module
    on_gpu = _captured(function, *args, target="h200").module
    self.assertTrue(
      any("cudnn" in i.proto.custom_call_target for i in _all(on_gpu))
    )
    self.assertEqual(_products(on_gpu), _products(on_cpu))


_CONVOLUTIONS = (
  [
    small_steps.normal(0, 3, 3, 8, 16),
    small_steps.normal(1, 3, 3, 16, 16),
    small_steps.normal(2, 1, 1, 16, 8),
  ],
  small_steps.normal(3, 2, 16, 16, 8),
)


def _all(module):
  return [i for c in module.computations for i in c.instructions]


def _products(module):
  counter = FlopCounter(module)
  found = [counter.count(i) for i in module.entry.instructions]
  return sum(f.looped + sum(f.products.values()) for f in found)


# Of a 24 by 24 matrix: functions, and the flops of what a library computes.
_FACTORIZATIONS = (
  (
    lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False),
    24**3 / 3,
  ),
  (lambda a: jax.lax.linalg.lu(a)[0], 2 / 3 * 24**3),
  # Householder vectors, and the matrix that they stand for.
  (lambda a: jnp.linalg.qr(a).Q, 4 * 24**3),
  (lambda a: jax.lax.linalg.eigh(a, symmetrize_input=False), 9 * 24**3),
  (
    lambda a: jax.lax.linalg.triangular_solve(a, a[:, :5], left_side=True),
    24 * 24 * 5,
  ),
)


class FlopsTest(parameterized.TestCase):
  def _products_of(self, function, *args):
    return _products(_captured(function, *args).module)

  def test_dots(self):
    a, b = np.ones((3, 4, 5), np.float32), np.ones((3, 5, 6), np.float32)
    # For each of 3 x 4 x 6 outputs, 5 multiplications and 5 additions.
    self.assertEqual(self._products_of(lax.batch_matmul, a, b), 3 * 4 * 6 * 10)

  @parameterized.parameters(
    # Every output but those at the border meets all 9 kernel positions: 100 of
    # 144 nine, 40 six, 4 four. Times 3 x 5 channels, times 2.
    (dict(), 1, (100 * 9 + 40 * 6 + 4 * 4) * 3 * 5 * 2),
    (dict(padding="VALID"), 1, 100 * 9 * 3 * 5 * 2),
    # A depthwise convolution: one input channel for each output.
    (dict(padding="VALID", feature_group_count=3), 3, 100 * 9 * 6 * 2),
    (dict(padding="VALID", window_strides=(2, 2)), 1, 25 * 9 * 3 * 5 * 2),
    (dict(padding="VALID", rhs_dilation=(2, 2)), 1, 64 * 9 * 3 * 5 * 2),
  )
  def test_convolutions(self, options, groups, expected):
    image = np.ones((1, 12, 12, 3), np.float32)
    kernel = np.ones((3, 3, 3 // groups, 5 if groups == 1 else 6), np.float32)
    options = {"window_strides": (1, 1), "padding": "SAME", **options}

    def convolve(image, kernel):
      return lax.conv_general_dilated(
        image, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
      )

    self.assertEqual(self._products_of(convolve, image, kernel), expected)

  @parameterized.parameters(
    (("NHWC", "HWIO", "NHWC"), 1, False),
    (("NHWC", "HWIO", "NHWC"), 3, True),
    (("HWNC", "HWIO", "NHWC"), 1, True),
    (("NHWC", "HWIO", "NCHW"), 1, True),
    (("NHWC", "OHWI", "NHWC"), 1, True),
  )
  def test_convolutions_in_plain_loops(self, dimensions, groups, is_looped):
    shapes = {"NHWC": (2, 8, 8, 3), "HWNC": (8, 8, 2, 3)}
    kernels = {"HWIO": (3, 3, 3 // groups, 6), "OHWI": (6, 3, 3, 3)}
    image, kernel, _ = dimensions
    lowered = jax.jit(
      lambda x, w: lax.conv_general_dilated(
        x,
        w,
        (1, 1),
        "VALID",
        dimension_numbers=dimensions,
        feature_group_count=groups,
      )
    ).lower(np.ones(shapes[image]), np.ones(kernels[kernel]))
    # As it is written, before XLA changes it.
    written = lowered.compiler_ir("hlo")
    assert written is not None
    module = Module.from_bytes(written.as_serialized_hlo_module_proto())
    (found,) = (
      FlopCounter(module).count(i)
      for i in module.entry.instructions
      if i.opcode == "convolution"
    )
    flops = 2 * 6 * 6 * 6 * (9 * 3 // groups) * 2
    products = sum(found.products.values())
    expected = (flops, 0) if is_looped else (0, flops)
    self.assertEqual((found.looped, products), expected)

  @parameterized.parameters(*_FACTORIZATIONS)
  def test_factorizations(self, function, expected):
    self._check_factorized(function, expected, None)

  @parameterized.parameters(*_FACTORIZATIONS)
  @unittest.skipUnless(targets.is_available("h200"), "needs JAX's CUDA plugin")
  def test_factorizations_of_gpus(self, function, expected):
    self._check_factorized(function, expected, "h200")

  def _check_factorized(self, function, expected, target):
    a = jax.ShapeDtypeStruct((24, 24), jnp.float32)
    module = _captured(function, a, target=target).module
    counter = FlopCounter(module)
    found = [counter.count(instruction) for instruction in _all(module)]
    self.assertAlmostEqual(sum(f.factorized for f in found), expected)
    self.assertEqual(sum(sum(f.products.values()) for f in found), 0.0)

  def test_cublas(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    a, b = main.parameter(f32(7, 3, 4)), main.parameter(f32(7, 4, 5))
    config = b'{"gemm_backend_config":{"dot_dimension_numbers":'
    config += b'{"lhs_batch_dimensions":["0"],"rhs_batch_dimensions":["0"]}}}'
    main.op(
      "custom-call",
      tuple_of(f32(7, 3, 5), f32(100)),
      a,
      b,
      custom_call_target="__cublas$gemm",
      backend_config=config,
    )
    self.assertAlmostEqual(_products(builder.module(main)), 2 * 7 * 3 * 4 * 5)


class RooflineTest(parameterized.TestCase):
  def test_the_slower_of_both(self):
    # 2 x 2 x 2 x 10 flops; 4 x (20 + 20 + 4) bytes.
    self.assertEqual(_totals(dot(2, 2, 10)), (80, 0, 176))
    found = root_seconds(dot(2, 2, 10), UNIT)
    self.assertAlmostEqual(found, 80 + 0.01)
    # 2 flops, 12 bytes at 0.1 s.
    found = root_seconds(dot(1, 1, 1), UNIT)
    self.assertAlmostEqual(found, 2 + 0.01)
    slow = dataclasses.replace(UNIT, memory_bytes_per_s=1.0)
    self.assertAlmostEqual(root_seconds(dot(1, 1, 1), slow), 12.01)

  @parameterized.parameters(
    ("tf32", (), 8 / 4), ("fp32", (), 8), ("tf32", (2, 2), 8)
  )
  def test_precision(self, float32_products, precision, expected):
    module = dot(2, 2, 1)
    config = module.entry.root.proto.precision_config
    config.operand_precision.extend(precision)
    rates = dataclasses.replace(
      UNIT,
      tf32_flops_per_s=4.0,
      memory_bytes_per_s=1e9,
      float32_products=float32_products,
      launch_s=0.0,
    )
    self.assertAlmostEqual(root_seconds(module, rates), expected, places=6)

  def test_bfloat16(self):
    captured = _captured(
      jnp.matmul, jnp.ones((64, 64), "bfloat16"), jnp.ones((64, 64), "bfloat16")
    )
    keys = set()
    counter = FlopCounter(captured.module)
    for instruction in captured.module.entry.instructions:
      keys |= set(counter.count(instruction).products)
    # XLA:CPU may widen the operands; they must not be taken for tf32 then.
    self.assertLen(keys, 1)
    fast = dataclasses.replace(UNIT, bf16_flops_per_s=100.0)
    (key,) = keys
    seconds = sum(cost.instruction_seconds(captured.module, fast).values())
    flops = 2 * 64**3
    if key.precision == "bf16":
      self.assertLess(seconds, flops)
    else:
      self.assertGreaterEqual(seconds, flops)

  def test_efficiency(self):
    half = dataclasses.replace(
      UNIT, efficiency=dataclasses.replace(UNIT.efficiency, flops=0.5)
    )
    found = root_seconds(dot(2, 2, 10), half)
    self.assertAlmostEqual(found, 160 + 0.01)

  @parameterized.parameters((b"", 1), (b'{"known_trip_count":{"n":"5"}}', 5))
  def test_loops(self, config, count):
    module = tiny_hlo.loop(kinds="u")
    loop = named(module, "loop")
    loop.proto.backend_config = config
    self.assertEqual(trip_count(loop), count)
    seconds = cost.instruction_seconds(module, UNIT)
    inner = sum(
      seconds[i.id] for c in module.computations[:2] for i in c.instructions
    )
    self.assertGreater(inner, 0)
    self.assertAlmostEqual(seconds[loop.id], count * inner)

  def test_a_real_loop_runs_as_often_as_it_does(self):
    function, params, x = small_steps.STEPS["scan"]
    module = _captured(function, params, x).module
    loops = [i for i in module.entry.instructions if i.opcode == "while"]
    self.assertEqual([trip_count(loop) for loop in loops], [5, 5])

  def test_conditionals_cost_their_dearest_branch(self):
    builder = tiny_hlo.Builder()
    branches = []
    for size in (4, 400):
      branch = builder.computation(f"branch{size}")
      p = branch.parameter(f32(size))
      branch.op("tanh", f32(8), p, name=f"tanh{size}")
      branches.append(branch)
    main = builder.computation("main")
    test = main.parameter(tiny_hlo.s32())
    x, y = main.parameter(f32(4)), main.parameter(f32(400))
    main.op("conditional", f32(8), test, x, y, calls=branches)
    module = builder.module(main)
    seconds = cost.instruction_seconds(module, UNIT)
    self.assertEqual(
      seconds[module.entry.root.id], seconds[named(module, "tanh400").id]
    )

  def test_every_scheduled_instruction_has_a_cost(self):
    function, params, x = small_steps.STEPS["cond"]
    module = _captured(function, params, x).module
    seconds = cost.instruction_seconds(module, cost.for_target("cpu"))
    for computation_id in module.scheduled_ids:
      for instruction in module.by_id[computation_id].instructions:
        self.assertGreaterEqual(seconds[instruction.id], 0)


class RatesTest(parameterized.TestCase):
  @parameterized.parameters("h200", "h100", "a100-80")
  def test_descriptions_agree_with_data_sheets(self, name):
    rates, sheet = cost.for_target(name), cost.DATA_SHEETS[name]
    for field in (
      "memory_bytes_per_s",
      "tf32_flops_per_s",
      "bf16_flops_per_s",
      "fp32_flops_per_s",
    ):
      found, expected = getattr(rates, field), getattr(sheet, field)
      self.assertAlmostEqual(found / expected, 1, delta=0.01, msg=field)
    self.assertGreater(rates.to_host_bytes_per_s, 0)
    self.assertLessEqual(rates.to_host_bytes_per_s, sheet.to_host_bytes_per_s)
    self.assertEqual(rates.float32_products, "tf32")

  @parameterized.parameters(("cpu", "cpu"), ("h200", "cuda"))
  def test_a_device_knows_its_platform_and_its_rates(self, name, platform):
    device = cost.device_for(name)
    self.assertEqual(device.platform, platform)
    self.assertEqual(device.rates, cost.for_target(name))

  def test_choice_of_precision(self):
    rates = cost.for_target("h200")
    with self.assertRaisesRegex(ValueError, "must be 'fp32', 'tf32' or"):
      dataclasses.replace(rates, float32_products="fp8")

  def test_cpu(self):
    self.assertEqual(cost.for_target(), cost.CPU)
    self.assertEqual(cost.CPU.to_host_bytes_per_s, 0)

  def test_only_large_temporaries_of_a_cpu_are_mapped_anew(self):
    cpu = cost.device_for()
    # 3 GB/s: 90 MB take 30 ms.
    self.assertEqual(cpu.mapping_s(90_000_000), 0.03)
    self.assertEqual(cpu.mapping_s(2**25 - 1), 0.0)
    self.assertGreater(cpu.mapping_s(2**25), 0.0)
    self.assertEqual(cost.device_for("h200").mapping_s(100_000_000), 0.0)

  def test_an_incomplete_description(self):
    text = targets.get("a100-80").config_text
    text = text.replace("fpus_per_core", "unknown").replace(
      'description_str: "NVIDIA A100-SXM4-80GB"', 'description_str: "Other"'
    )
    with self.assertRaisesRegex(ValueError, "describes no fp32_flops_per_s"):
      cost.for_target(text)

  def test_refuses_negative_rates(self):
    with self.assertRaisesRegex(ValueError, "launch_s must not be negative"):
      dataclasses.replace(UNIT, launch_s=-1.0)

  @parameterized.parameters(0.0, -1.0, 1.5)
  def test_refuses_other_fractions(self, fraction):
    with self.assertRaisesRegex(ValueError, r"strided must be in \(0, 1\]"):
      cost.Efficiency(strided=fraction)


if __name__ == "__main__":
  absltest.main()
