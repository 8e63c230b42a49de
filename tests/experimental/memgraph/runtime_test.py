"""Runs on CPU devices: equal results, the budget, and all ways to fail."""

import _thread
import ctypes
import gc
import itertools
import signal
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import SingleDeviceSharding

from jaxmem.experimental import memgraph
from jaxmem.experimental.memgraph import host_memory

_ALIGNMENT = 256


def _live_bytes() -> int:
  """Returns the bytes that jax holds; arrays may share a buffer."""
  arrays = [array for array in jax.live_arrays() if array.size]
  buffers = {array.unsafe_buffer_pointer(): array.nbytes for array in arrays}
  return sum(buffers.values())


def _vectors(num_tensors: int, size: int = 1024):
  """m_i makes x_i; use_i reads x_i and x_{i+1}; all survive two at a time."""
  builder = memgraph.Builder()
  size_bytes = 4 * size
  base = builder.tensor("base", size_bytes)
  made = [
    builder.task(f"m{i}", [base], [(f"x{i}", size_bytes)])[0]
    for i in range(num_tensors)
  ]
  used = [
    builder.task(f"use{i}", made[i : i + 2], [(f"y{i}", 4)], source="f.py:7")[0]
    for i in range(num_tensors - 1)
  ]
  kernels = [jax.jit(lambda x, i=i: [x + i]) for i in range(num_tensors)]
  dot = jax.jit(lambda a, b: [jnp.vdot(a, b)])
  kernels += [dot] * (num_tensors - 1)
  return builder.build(used), kernels, {base: np.arange(size, dtype="f4")}


def _runtime(num_tensors=5, num_resident=3, **options):
  graph, kernels, inputs = _vectors(num_tensors)
  built = memgraph.build_memgraph(graph, num_resident * 4096 + _ALIGNMENT)
  memgraph.check(built)
  return memgraph.Runtime(built, kernels, **options), inputs


def _expected(num_tensors=5) -> list[np.ndarray]:
  base = np.arange(1024, dtype="f4")
  return [
    np.asarray(jnp.vdot(jnp.asarray(base + i), jnp.asarray(base + i + 1)))
    for i in range(num_tensors - 1)
  ]


class RuntimeTest(parameterized.TestCase):
  def test_any_order_gives_the_same(self):
    graph, kernels, inputs = _vectors(5)
    built = memgraph.build_memgraph(graph, 3 * 4096 + _ALIGNMENT)
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
      for output, expected in zip(result.outputs, _expected(), strict=True):
        np.testing.assert_array_equal(output, expected)
      self.assertLessEqual(result.peak_bytes[0], built.capacity_bytes[0])
      self.assertLessEqual(result.start_s.max(), result.elapsed_s)
      self.assertTrue((result.start_s <= result.end_s).all())
      for vertex, before in enumerate(built.predecessors):
        for b in before:
          self.assertLessEqual(result.end_s[b], result.start_s[vertex])
      self.assertEqual(runtime.host.used_bytes, 0)

  def test_live_arrays_stay_within_the_budget(self):
    runtime, inputs = _runtime(8, 3)
    seen: list[int] = []
    kernels = runtime._kernels

    def watched(kernel):
      def run(*operands):
        results = jax.block_until_ready(kernel(*operands))
        seen.append(_live_bytes())
        return results

      return run

    built = runtime._memgraph
    watching = memgraph.Runtime(built, [watched(k) for k in kernels])
    watching.run(inputs)  # Compiles.
    gc.collect()
    seen.clear()
    before = _live_bytes()
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
    graph, kernels, _ = _vectors(3)
    built = memgraph.build_memgraph(graph, 10 * 4096)
    with self.assertRaisesRegex(ValueError, "'base'"):
      memgraph.Runtime(built, kernels).run({})
    with self.assertRaisesRegex(ValueError, "'m0' must have a kernel"):
      memgraph.Runtime(built, [None, *kernels[1:]])
    with self.assertRaisesRegex(ValueError, "devices"):
      memgraph.Runtime(built, kernels, devices=[])


class FailureTest(absltest.TestCase):
  """Every failure raises, ends all threads and frees all memory."""

  def setUp(self):
    super().setUp()
    jnp.zeros(()).block_until_ready()
    gc.collect()
    self._before = _live_bytes(), threading.active_count()

  def _assert_clean(self, runtime, inputs):
    gc.collect()
    self.assertEqual((_live_bytes(), threading.active_count()), self._before)
    self.assertEqual(runtime.host.used_bytes, 0)

  def test_failing_kernel(self):
    runtime, inputs = _runtime()
    good = runtime._kernels

    def fail(*operands):
      raise ArithmeticError("singular")

    bad = memgraph.Runtime(runtime._memgraph, [*good[:6], fail, *good[7:]])
    with self.assertRaisesRegex(
      memgraph.VertexError, r"compute 'use1' \(f.py:7\) failed: singular"
    ) as caught:
      bad.run(inputs)
    self.assertEqual(caught.exception.vertex, "use1")
    self.assertEqual(caught.exception.source, "f.py:7")
    self.assertIsInstance(caught.exception.__cause__, ArithmeticError)
    del caught
    self._assert_clean(bad, inputs)
    # The same runtime runs again.
    runtime.run(inputs)

  def test_wrong_number_of_outputs(self):
    runtime, inputs = _runtime()
    kernels = [lambda *_: [], *runtime._kernels[1:]]
    with self.assertRaisesRegex(memgraph.VertexError, "'m0'.*1 outputs"):
      memgraph.Runtime(runtime._memgraph, kernels).run(inputs)

  def test_failing_transfers(self):
    for name in ("store", "load"):
      with self.subTest(name):
        block = host_memory.HostBlock(10**6)

        def fail(*_):
          raise OSError("the link is down")

        setattr(block, name, fail)
        runtime, inputs = _runtime(host=block)
        kind = "offload" if name == "store" else "reload"
        with self.assertRaisesRegex(
          memgraph.VertexError, f"{kind} .*the link is down"
        ):
          runtime.run(inputs)
        self._assert_clean(runtime, inputs)

  def test_full_host(self):
    runtime, inputs = _runtime(host=host_memory.HostBlock(4096))
    with self.assertRaisesRegex(memgraph.StalledError, "Host memory is full"):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)

  def test_worker_that_exits(self):
    runtime, inputs = _runtime()

    def leave(*_):
      raise SystemExit

    kernels = [*runtime._kernels[:3], leave, *runtime._kernels[4:]]
    runtime = memgraph.Runtime(runtime._memgraph, kernels)
    with self.assertRaisesRegex(memgraph.WorkerLostError, "SystemExit"):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)

  def test_worker_that_is_killed(self):
    runtime, inputs = _runtime()

    def die(*_):
      ident = ctypes.c_ulong(threading.get_ident())
      exception = ctypes.py_object(KeyboardInterrupt)
      ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, exception)
      while True:
        time.sleep(0.001)

    kernels = [*runtime._kernels[:3], die, *runtime._kernels[4:]]
    runtime = memgraph.Runtime(runtime._memgraph, kernels)
    with self.assertRaisesRegex(memgraph.WorkerLostError, "KeyboardInterrupt"):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)

  def test_worker_that_is_killed_while_it_sleeps(self):
    runtime, inputs = _runtime()

    def kill_all_others(*_):
      for thread in threading.enumerate():
        is_worker = thread.name.startswith("memgraph-")
        if is_worker and thread is not threading.current_thread():
          # It is raised when the thread wakes up, with a job in its hands.
          ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
          )
      return [jnp.zeros(1024)]

    kernels = [*runtime._kernels[:3], kill_all_others, *runtime._kernels[4:]]
    runtime = memgraph.Runtime(runtime._memgraph, kernels)
    with self.assertRaisesRegex(memgraph.WorkerLostError, "SystemExit"):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)

  def test_threads_that_do_not_start(self):
    runtime, inputs = _runtime()
    start = threading.Thread.start
    num_started = 0

    def start_two(thread):
      nonlocal num_started
      if num_started == 2:
        raise RuntimeError("can't start new thread")
      num_started += 1
      start(thread)

    with (
      mock.patch.object(threading.Thread, "start", start_two),
      self.assertRaisesRegex(
        memgraph.WorkerLostError, "Worker thread 3 of 4 did not start"
      ),
    ):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)
    runtime.run(inputs)

  def test_caller_that_is_interrupted(self):
    # Test runners that use several processes have theirs ignore it.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    self.addCleanup(signal.signal, signal.SIGINT, handler)
    runtime, inputs = _runtime()

    def interrupt(x):
      _thread.interrupt_main()
      return [x]

    kernels = [*runtime._kernels[:3], interrupt, *runtime._kernels[4:]]
    runtime = memgraph.Runtime(runtime._memgraph, kernels)
    with self.assertRaises(KeyboardInterrupt):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)

  def test_device_that_runs_out_of_memory(self):
    runtime, inputs = _runtime()

    def allocate(x):
      return [jnp.zeros(1 << 60, "u1"), x]

    kernels = [*runtime._kernels[:3], allocate, *runtime._kernels[4:]]
    runtime = memgraph.Runtime(runtime._memgraph, kernels)
    with self.assertRaisesRegex(memgraph.VertexError, "'m3' failed"):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)

  def test_failing_copy_between_devices(self):
    builder = memgraph.Builder(2)
    (far,) = builder.task("far", [], [("far", 4096)], device=1, source="g.py:3")
    near = builder.copy(far, 0)
    (end,) = builder.task("end", [near], [("end", 4096)])
    built = memgraph.build_memgraph(builder.build([end]), 4 * 4096)
    there = jax.devices()[1]
    make = jax.jit(
      lambda: [jnp.ones(1024)], out_shardings=SingleDeviceSharding(there)
    )
    kernels = [make, None, jax.jit(lambda x: [x + 1])]
    runtime = memgraph.Runtime(built, kernels)
    runtime.run({})  # Compiles.
    gc.collect()
    with (
      mock.patch.object(jax, "device_put", side_effect=OSError("no peer")),
      self.assertRaisesRegex(memgraph.VertexError, "^copy .*no peer"),
    ):
      runtime.run({})
    self._assert_clean(runtime, {})

  def test_invalid_graph_does_not_exceed_the_budget(self):
    graph, kernels, inputs = _vectors(5)
    built = memgraph.build_memgraph(graph, 10 * 4096)
    lying = memgraph.MemGraph(
      task_graph=graph,
      vertices=built.vertices,
      residencies=built.residencies,
      data_edges=built.data_edges,
      memory_edges=built.memory_edges,
      capacity_bytes=(3 * 4096,),
    )
    runtime = memgraph.Runtime(lying, kernels)
    with self.assertRaisesRegex(memgraph.BudgetExceededError, "of 12.0 KiB"):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)


class HostMemoryTest(parameterized.TestCase):
  def test_block_hands_out_disjoint_ranges(self):
    rng = np.random.default_rng(0)
    block = host_memory.HostBlock(64 * 100)
    taken = []
    num_refused = 0
    for _ in range(3000):
      if taken and rng.random() < 0.45:
        block.free(taken.pop(rng.integers(len(taken))))
        continue
      size_bytes = int(rng.integers(0, 900))
      handle = block.allocate(size_bytes)
      if handle is None:
        num_refused += 1
        gaps = self._gaps(taken, 6400)
        self.assertLess(max(gaps), -(-size_bytes // 64) * 64)
        continue
      self.assertGreaterEqual(handle.end - handle.begin, size_bytes)
      self.assertLessEqual(handle.end, 6400)
      taken.append(handle)
      ranges = sorted((h.begin, h.end) for h in taken if h.end > h.begin)
      for (_, end), (begin, _) in itertools.pairwise(ranges):
        self.assertLessEqual(end, begin)
      self.assertEqual(block.used_bytes, sum(e - b for b, e in ranges))
    self.assertGreater(num_refused, 10)
    for handle in taken:
      block.free(handle)
    self.assertEqual(block.used_bytes, 0)
    self.assertIsNotNone(block.allocate(6400))

  def _gaps(self, taken, size_bytes) -> list[int]:
    ends = [0]
    begins = []
    for handle in sorted(taken, key=lambda h: (h.begin, h.end)):
      if handle.end > handle.begin:
        begins.append(handle.begin)
        ends.append(handle.end)
    begins.append(size_bytes)
    return [b - e for b, e in zip(begins, ends, strict=True)]

  @parameterized.product(
    host=[host_memory.HostBlock, host_memory.PinnedHost],
    value=[
      np.arange(6, dtype="f4").reshape(2, 3),
      np.float64(1.5),
      np.array([True, False]),
      np.arange(5).astype(ml_dtypes.bfloat16),
      np.zeros((0, 3), "i4"),
    ],
  )
  def test_round_trip(self, host, value):
    memory = host(4096)
    array = jnp.asarray(value)
    handle = memory.allocate(array.nbytes)
    memory.store(handle, array)
    back = memory.load(handle, jax.devices()[1])
    kept = memory.read(handle)
    self.assertEqual(back.dtype, array.dtype)
    self.assertEqual(back.devices(), {jax.devices()[1]})
    # The place is given to another one.
    memory.free(handle)
    other = memory.allocate(array.nbytes)
    memory.store(other, jnp.ones_like(array))
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(kept, array)

  @parameterized.parameters(host_memory.HostBlock, host_memory.PinnedHost)
  def test_random_keys(self, host):
    key = jax.random.key(7)
    memory = host(4096)
    handle = memory.allocate(8)
    memory.store(handle, key)
    back = memory.load(handle, jax.devices()[0])
    self.assertEqual(jax.random.uniform(back), jax.random.uniform(key))
    fetched = host_memory.fetch(key, jax.devices()[0])
    self.assertEqual(jax.random.uniform(fetched), jax.random.uniform(key))

  @parameterized.parameters(host_memory.HostBlock, host_memory.PinnedHost)
  def test_limit(self, host):
    memory = host(128)
    first = memory.allocate(128)
    self.assertIsNone(memory.allocate(1))
    memory.free(first)
    self.assertIsNotNone(memory.allocate(128))
    self.assertEqual(memory.peak_bytes, 128)

  def test_fetch_copies(self):
    value = np.arange(64, dtype="f4")
    fetched = host_memory.fetch(value, jax.devices()[0])
    value[:] = 0
    np.testing.assert_array_equal(fetched, np.arange(64))
    array = jnp.arange(64.0)
    fetched = host_memory.fetch(array, jax.devices()[0])
    fetched.delete()
    np.testing.assert_array_equal(array, np.arange(64))


if __name__ == "__main__":
  absltest.main()
