"""Runs on CPU devices: equal results, within the budget.

runtime_failures_test has all ways to fail, host_memory_test the host's memory.
"""

import gc

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from memgraph_runs import (
  ALIGNMENT_BYTES,
  expected_outputs,
  live_bytes,
  vector_graph,
  vector_runtime,
)

from jaxmem.experimental import memgraph


class RuntimeTest(parameterized.TestCase):
  def test_any_order_gives_the_same(self):
    graph, kernels, inputs = vector_graph(5)
    built = memgraph.build_memgraph(graph, 3 * 4096 + ALIGNMENT_BYTES)
    self.assertGreater(built.bytes_moved("offload"), 0)
    rng = np.random.default_rng(0)
    for trial in range(20):
      runtime = memgraph.Runtime(
        built,
        kernels,
        slots=memgraph.Slots(compute=1 + trial % 3, reload=1 + trial % 2),
        priority=rng.permutation(built.num_vertices).tolist(),
      )
      result = runtime.run(inputs)
      for output, expected in zip(
        result.outputs, expected_outputs(), strict=True
      ):
        np.testing.assert_array_equal(output, expected)
      self.assertLessEqual(result.peak_bytes[0], built.capacity_bytes[0])
      self.assertLessEqual(result.start_s.max(), result.elapsed_s)
      self.assertTrue((result.start_s <= result.end_s).all())
      for vertex, before in enumerate(built.predecessors):
        for b in before:
          self.assertLessEqual(result.end_s[b], result.start_s[vertex])
      self.assertEqual(runtime.host.used_bytes, 0)

  def test_live_arrays_stay_within_the_budget(self):
    runtime, inputs = vector_runtime(8, 3)
    seen: list[int] = []
    kernels = runtime._kernels

    def watched(kernel):
      def run(*operands):
        results = jax.block_until_ready(kernel(*operands))
        seen.append(live_bytes())
        return results

      return run

    built = runtime._memgraph
    watching = memgraph.Runtime(built, [watched(k) for k in kernels])
    watching.run(inputs)  # Compiles.
    gc.collect()
    seen.clear()
    before = live_bytes()
    result = watching.run(inputs)
    self.assertLen(seen, len(kernels))
    self.assertLessEqual(max(seen) - before, built.capacity_bytes[0])
    # It is short of memory, and uses what it has.
    self.assertGreater(max(seen) - before, 2 * 4096)
    self.assertGreater(result.peak_bytes[0], 2 * 4096)
    total = built.task_graph.total_bytes
    self.assertGreater(total, 2 * built.capacity_bytes[0])

  def test_accumulations_in_any_order(self):
    builder = memgraph.Builder()
    total = builder.tensor("total", 4096)
    inputs = {}
    for i in range(6):
      x = builder.tensor(f"x{i}", 4096)
      inputs[x] = np.full(1024, 10**i, "i4")
      builder.accumulate(f"add{i}", [x], total)
    (end,) = builder.task("end", [total], [("end", 4096)])
    built = memgraph.build_memgraph(builder.build([end]), 3 * 4096)
    memgraph.check(built)
    add = memgraph.accumulating(lambda x: 2 * x)
    kernels = [add] * 6 + [jax.jit(lambda x: [x + 1])]
    for seed in range(5):
      priority = np.random.default_rng(seed).permutation(built.num_vertices)
      runtime = memgraph.Runtime(
        built,
        kernels,
        slots=memgraph.Slots(compute=4),
        priority=priority.tolist(),
      )
      (output,) = runtime.run(inputs).outputs
      np.testing.assert_array_equal(output, np.full(1024, 222223))

  def test_three_devices(self):
    builder = memgraph.Builder(3)
    x = builder.tensor("x", 4096, 0)
    here = x
    kernels = []
    for device in (1, 2, 0, 1):
      (here,) = builder.task(
        f"on{device}",
        [here],
        [("y", 4096)],
        device=builder._tensors[here].device,
      )
      here = builder.copy(here, device)
      kernels += [jax.jit(lambda x: [2 * x + 1]), None]
    built = memgraph.build_memgraph(builder.build([here]), 2 * 4096)
    memgraph.check(built)
    runtime = memgraph.Runtime(built, kernels)
    result = runtime.run({x: np.arange(1024, dtype="i4")})
    np.testing.assert_array_equal(result.outputs[0], 16 * np.arange(1024) + 15)
    self.assertEqual(result.outputs[0].devices(), {jax.devices()[1]})
    self.assertEqual(result.peak_bytes, (8192, 8192, 8192))

  def test_inputs_survive_and_outputs_are_not_shared(self):
    builder = memgraph.Builder()
    x = builder.tensor("x", 4096)
    y, z = builder.task("same", [x], [("y", 4096), ("z", 4096)])
    built = memgraph.build_memgraph(builder.build([x, y, z]), 4 * 4096)
    for value in (jnp.arange(1024.0), np.arange(1024, dtype="f4")):
      runtime = memgraph.Runtime(built, [lambda x: (x, x)])
      for _ in range(2):
        outputs = runtime.run({x: value}).outputs
        for output in outputs:
          np.testing.assert_array_equal(output, np.arange(1024))
        outputs[1].delete()
        np.testing.assert_array_equal(outputs[2], np.arange(1024))

  def test_bad_arguments(self):
    graph, kernels, _ = vector_graph(3)
    built = memgraph.build_memgraph(graph, 10 * 4096)
    with self.assertRaisesRegex(ValueError, "'base'"):
      memgraph.Runtime(built, kernels).run({})
    with self.assertRaisesRegex(ValueError, "'m0' must have a kernel"):
      memgraph.Runtime(built, [None, *kernels[1:]])
    with self.assertRaisesRegex(ValueError, "devices"):
      memgraph.Runtime(built, kernels, devices=[])


if __name__ == "__main__":
  absltest.main()
