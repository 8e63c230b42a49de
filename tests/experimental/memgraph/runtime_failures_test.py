"""Runs that fail: each raises, ends all threads and frees all memory."""

import _thread
import ctypes
import gc
import signal
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest
from jax.sharding import SingleDeviceSharding
from memgraph_runs import live_bytes, vector_graph, vector_runtime

from jaxmem.experimental import memgraph
from jaxmem.experimental.memgraph import HostBlock


class FailureTest(absltest.TestCase):
  """Every failure raises, ends all threads and frees all memory."""

  def setUp(self):
    super().setUp()
    jnp.zeros(()).block_until_ready()
    gc.collect()
    self._before = live_bytes(), threading.active_count()

  def _assert_clean(self, runtime, inputs):
    gc.collect()
    self.assertEqual((live_bytes(), threading.active_count()), self._before)
    self.assertEqual(runtime.host.used_bytes, 0)

  def test_failing_kernel(self):
    runtime, inputs = vector_runtime()
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
    runtime, inputs = vector_runtime()
    kernels = [lambda *_: [], *runtime._kernels[1:]]
    with self.assertRaisesRegex(memgraph.VertexError, "'m0'.*1 outputs"):
      memgraph.Runtime(runtime._memgraph, kernels).run(inputs)

  def test_failing_transfers(self):
    for name in ("store", "load"):
      with self.subTest(name):
        block = HostBlock(10**6)

        def fail(*_):
          raise OSError("the link is down")

        setattr(block, name, fail)
        runtime, inputs = vector_runtime(host=block)
        kind = "offload" if name == "store" else "reload"
        with self.assertRaisesRegex(
          memgraph.VertexError, f"{kind} .*the link is down"
        ):
          runtime.run(inputs)
        self._assert_clean(runtime, inputs)

  def test_full_host(self):
    runtime, inputs = vector_runtime(host=HostBlock(4096))
    with self.assertRaisesRegex(memgraph.StalledError, "Host memory is full"):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)

  def test_worker_that_exits(self):
    runtime, inputs = vector_runtime()

    def leave(*_):
      raise SystemExit

    kernels = [*runtime._kernels[:3], leave, *runtime._kernels[4:]]
    runtime = memgraph.Runtime(runtime._memgraph, kernels)
    with self.assertRaisesRegex(memgraph.WorkerLostError, "SystemExit"):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)

  def test_worker_that_is_killed(self):
    runtime, inputs = vector_runtime()

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
    runtime, inputs = vector_runtime()

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
    runtime, inputs = vector_runtime()
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
    runtime, inputs = vector_runtime()

    def interrupt(x):
      _thread.interrupt_main()
      return [x]

    kernels = [*runtime._kernels[:3], interrupt, *runtime._kernels[4:]]
    runtime = memgraph.Runtime(runtime._memgraph, kernels)
    with self.assertRaises(KeyboardInterrupt):
      runtime.run(inputs)
    self._assert_clean(runtime, inputs)

  def test_device_that_runs_out_of_memory(self):
    runtime, inputs = vector_runtime()

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
    graph, kernels, inputs = vector_graph(5)
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


if __name__ == "__main__":
  absltest.main()
