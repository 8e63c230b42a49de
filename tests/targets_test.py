"""Tests of jaxmem.targets."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from jaxmem import targets
from jaxmem.targets import cuda_plugin, deviceless

_CUSTOM = """
gpu_device_info {
  core_count: 10
  fpus_per_core: 64
  clock_rate_ghz: 1.5
  memory_bandwidth: 1000000000
  device_memory_size: 8000000000
}
platform_name: "CUDA"
device_description_str: "Small card"
"""


def needs_plugin(test):
  return absltest.skipUnless(
    targets.is_available("h200"),
    "JAX's CUDA plugin is not installed: pip install jax-cuda13-plugin",
  )(test)


class GetTest(parameterized.TestCase):
  @parameterized.parameters(
    ("h200", "h200"),
    ("H200", "h200"),
    (" NVIDIA H200 ", "h200"),
    ("h100", "h100"),
    ("H100_80GB", "h100"),
    ("a100-80", "a100-80"),
    ("A100-80GB", "a100-80"),
  )
  def test_known_names(self, written, name):
    target = targets.get(written)
    self.assertEqual(target.name, name)
    self.assertEqual(target.platform, "cuda")
    self.assertIn("gpu_device_info", target.config_text)

  @parameterized.parameters(None, "cpu", "CPU")
  def test_cpu(self, written):
    self.assertEqual(targets.get(written), targets.CPU)
    self.assertTrue(targets.is_available(written))
    self.assertEqual(targets.compile_options(written), {})

  def test_a_target_is_itself(self):
    target = targets.get("h100")
    self.assertIs(targets.get(target), target)

  def test_every_known_name_is_readable(self):
    self.assertContainsSubset(
      ["cpu", "h100", "h200", "a100-80"], targets.known_names()
    )
    for name in targets.known_names():
      self.assertEqual(targets.get(name).name, name)

  def test_figures_of_the_data_sheets(self):
    h200 = targets.get("h200")
    self.assertEqual(h200.memory_bytes, 151397597184)
    self.assertEqual(h200.memory_bandwidth_bytes_per_s, 4.8e12)
    self.assertEqual(h200.host_bandwidth_bytes_per_s, 32 * 2**30)
    # H100 and H200 SXM: 67, 495, 989 and 989 Tflops.
    self.assertAlmostEqual(_tflops(h200, "fp32"), 67, delta=1)
    self.assertAlmostEqual(_tflops(h200, "tf32"), 495, delta=1)
    self.assertAlmostEqual(_tflops(h200, "fp16"), 989, delta=1)
    self.assertAlmostEqual(_tflops(h200, "bf16"), 989, delta=1)
    # A100: 19.5, 156 and 312 Tflops.
    a100 = targets.get("a100-80")
    self.assertAlmostEqual(_tflops(a100, "fp32"), 19.5, delta=0.1)
    self.assertAlmostEqual(_tflops(a100, "tf32"), 156, delta=1)
    self.assertAlmostEqual(_tflops(a100, "bf16"), 312, delta=1)

  def test_own_text(self):
    target = targets.get(_CUSTOM)
    self.assertEqual(target.name, "Small card")
    self.assertEqual(target.memory_bytes, 8_000_000_000)
    self.assertIsNone(target.host_bandwidth_bytes_per_s)
    # 2 flops * 10 cores * 64 units * 1.5 GHz = 1.92 Tflops.
    self.assertAlmostEqual(_tflops(target, "fp32"), 1.92)
    self.assertIsNone(target.flops_per_s("tf32"))

  @parameterized.parameters(str, pathlib.Path)
  def test_own_file(self, kind):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    path = os.path.join(folder, "small.gpu_target_config.pbtxt")
    pathlib.Path(path).write_text(_CUSTOM, encoding="utf-8")
    target = targets.get(kind(path))
    self.assertEqual(target.config_text, _CUSTOM)
    self.assertEqual(target.name, "small.gpu_target_config")

  @parameterized.parameters("h300", "a100", "tpu", "")
  def test_unknown_name(self, written):
    with self.assertRaisesRegex(
      ValueError, "one of cpu, a100-80, h100, h200, got .*xla_dump_to"
    ):
      targets.get(written)

  @parameterized.parameters("h" * 5000, "h\0")
  def test_no_name_of_a_file(self, written):
    with self.assertRaisesRegex(ValueError, "target must be one of") as caught:
      targets.get(written)
    self.assertLess(len(str(caught.exception)), 500)

  def test_missing_file(self):
    with self.assertRaisesRegex(ValueError, "none.txtpb.*No such file"):
      targets.get("/no/where/none.txtpb")

  @parameterized.parameters(
    "a { b: 1 }",
    _CUSTOM.replace("CUDA", "ROCM"),
    _CUSTOM.replace("device_memory_size", "shared_memory"),
  )
  def test_not_a_gpu_description(self, text):
    with self.assertRaisesRegex(ValueError, "platform_name: .CUDA., got"):
      targets.get(text)

  def test_wrong_type(self):
    with self.assertRaisesRegex(ValueError, "must be a name, a path or"):
      targets.get(3)  # pyright: ignore[reportArgumentType]

  @parameterized.parameters(
    ({}, 0.75),
    ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}, 0.9),
    ({"XLA_CLIENT_MEM_FRACTION": "0.5"}, 0.5),
  )
  def test_fraction_of_the_pool(self, environment, fraction):
    with mock.patch.dict(os.environ, environment, clear=True):
      self.assertEqual(targets.pool_fraction(), fraction)

  @parameterized.parameters("80%", "0", "1.5", "nan")
  def test_no_fraction(self, written):
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    with (
      mock.patch.dict(os.environ, {name: written}),
      self.assertRaisesRegex(ValueError, f"{name} must be a fraction in"),
    ):
      targets.pool_fraction()

  def test_unknown_flops(self):
    with self.assertRaisesRegex(ValueError, "kind must be one of .* 'fp4'"):
      targets.get("h200").flops_per_s("fp4")  # pyright: ignore


class CpuTest(absltest.TestCase):
  def test_lowers_arrays_shapes_and_static_arguments(self):
    step = jax.jit(lambda n, x, y: (x @ y) * n, static_argnums=0)
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    lowered = targets.lower(step, (3, jnp.ones((8, 8))), {"y": shape})
    self.assertEqual(lowered.out_info.shape, (8, 8))
    lowered.compile(compiler_options=targets.compile_options("cpu"))

  def test_has_no_topology(self):
    with self.assertRaisesRegex(ValueError, "described GPU, got target 'cpu'"):
      targets.CPU.topology()


class MissingPluginTest(absltest.TestCase):
  def test_names_the_remedy(self):
    text = targets.get("h200").config_text
    target = targets.get(text.replace("NVIDIA H200", "Unplugged"))
    with (
      mock.patch.object(cuda_plugin, "_PLUGINS", ()),
      self.assertRaisesRegex(
        RuntimeError,
        rf"pip install 'jax-cuda13-plugin=={metadata.version('jaxlib')}'",
      ),
    ):
      self.assertFalse(targets.is_available(target))
      target.topology()


class ImportTest(absltest.TestCase):
  def test_starts_no_backend(self):
    code = "import jaxmem.targets as t; t.get('h200'); t.is_available('h200'); "
    code += "from jax._src import xla_bridge as x; "
    code += "assert not x.backends_are_initialized()"
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_plugin
class DevicelessTest(parameterized.TestCase):
  def compiled(self, step, *args, target="h200", **kwargs):
    lowered = targets.lower(step, args, kwargs, target)
    return lowered.compile(compiler_options=targets.compile_options(target))

  def memory(self, compiled) -> Any:
    memory = compiled.memory_analysis()
    self.assertIsNotNone(memory)
    return memory

  @parameterized.parameters("h200", "h100", "a100-80")
  def test_compiles_and_reports_memory(self, name):
    step = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    compiled = self.compiled(step, jnp.ones((256, 256)), target=name)
    memory = self.memory(compiled)
    # The product of the two matrices is the least that has to be kept.
    self.assertGreaterEqual(memory.temp_size_in_bytes, 256 * 256 * 4)
    self.assertEqual(memory.argument_size_in_bytes, 256 * 256 * 4)
    self.assertEqual(memory.output_size_in_bytes, 4)

  def test_is_built_once(self):
    target = targets.get("h200")
    self.assertIs(target.topology(), targets.get("H200").topology())
    self.assertEqual(target.topology().devices[0].platform, "gpu")

  def test_arguments_of_every_kind(self):
    def step(config, params, key, scale, *, bias):
      noise = jax.random.normal(key, params["w"].shape)
      return (params["w"] @ noise) * scale + bias, config["depth"]

    class Config(dict):
      def __hash__(self):
        return 0

    jitted = jax.jit(step, static_argnums=0, donate_argnums=1)
    compiled = self.compiled(
      jitted,
      Config(depth=2),
      {"w": jax.ShapeDtypeStruct((64, 64), jnp.float32), "unused": None},
      jax.random.key(0),
      np.float32(2),
      bias=np.ones((64, 64), np.float32),
    )
    memory = self.memory(compiled)
    self.assertEqual(memory.alias_size_in_bytes, 64 * 64 * 4)

  @parameterized.parameters(((),), ((3.0,),))
  def test_steps_without_arrays(self, args):
    step = jax.jit(lambda *a: jnp.ones((512,)) * sum(a, start=1))
    sharding = self.compiled(step, *args).output_shardings
    (device,) = sharding.device_set
    self.assertIn("H200", device.device_kind)

  def test_captured_array(self):
    weights = jnp.ones((64, 64))
    compiled = self.compiled(jax.jit(lambda x: x @ weights), weights)
    self.assertIn("H200", str(compiled.input_shardings))

  def test_refuses_an_argument_on_many_devices(self):
    many = mock.Mock(num_devices=4)
    with (
      mock.patch.object(jax.ShapeDtypeStruct, "sharding", many, create=True),
      self.assertRaisesRegex(ValueError, "one device, got .* over 4 devices"),
    ):
      deviceless._place(
        jax.ShapeDtypeStruct((2,), jnp.float32), sharding=None, name="h200"
      )

  @parameterized.parameters("core_count", "threads_per_warp", "clock_rate_ghz")
  def test_an_incomplete_text_does_not_reach_xla(self, field):
    whole = targets.get("h200").config_text
    for broken in (
      whole.replace(f"{field}: ", "name_of_nothing: "),
      re.sub(rf"\b{field}: [0-9.]+", f"{field}: 0", whole),
    ):
      with self.assertRaisesRegex(ValueError, f"it has no .*{field}"):
        targets.get(broken).topology()

  def test_a_text_that_xla_refuses(self):
    whole = targets.get("h200").config_text
    broken = targets.get(
      whole.replace("block_dim_limit_x:", "no_such: 1 block_dim_limit_x:")
    )
    with self.assertRaisesRegex(ValueError, "must be a GpuTargetConfigProto"):
      broken.topology()

  def test_works_after_jax_gave_the_plugin_up(self):
    code = """
import jax, jax.numpy as jnp
jnp.ones(3).block_until_ready()
from jaxmem import targets
from jaxmem.targets import cuda_plugin, deviceless
step = jax.jit(lambda x: (x @ x).sum())
lowered = targets.lower(step, (jnp.ones((256, 256)),), target="h200")
compiled = lowered.compile(compiler_options=targets.compile_options("h200"))
print("temp", compiled.memory_analysis().temp_size_in_bytes)
"""
    unset = ("JAX_PLATFORMS", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK")
    env = {k: v for k, v in os.environ.items() if k not in unset}
    out = subprocess.run(
      [sys.executable, "-c", code],
      env=env,
      check=True,
      capture_output=True,
      text=True,
    )
    self.assertRegex(out.stdout, r"temp [1-9]")


def _tflops(target, kind):
  return target.flops_per_s(kind) / 1e12


if __name__ == "__main__":
  absltest.main()
