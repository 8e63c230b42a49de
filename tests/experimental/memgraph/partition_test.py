"""Steps cut into segments, and run within a fraction of their memory."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from benchmarks import turnip_graphs, turnip_models
from jaxmem.experimental import memgraph


def _loss(weights, x):
  for number, weight in enumerate(weights):
    with jax.named_scope(f"layer_{number}"):
      with jax.named_scope("linear"):
        y = x @ weight
      with jax.named_scope("act"):
        x = x + jnp.tanh(y)
  return jnp.square(x).mean()


def _train(weights, x):
  loss, grads = jax.value_and_grad(_loss)(weights, x)
  return loss, [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]


def _arguments(num_layers=3, width=32):
  keys = jax.random.split(jax.random.key(0), num_layers + 1)
  weights = [jax.random.normal(k, (width, width)) / 6 for k in keys[1:]]
  return weights, jax.random.normal(keys[0], (8, width))


def _needed_bytes(step, args) -> int:
  """Returns what XLA needs for the whole step."""
  analysis = jax.jit(step).lower(*args).compile().memory_analysis()
  assert analysis is not None
  return (
    analysis.argument_size_in_bytes
    + analysis.output_size_in_bytes
    + analysis.temp_size_in_bytes
  )


def _assert_equal(test, actual, expected):
  test.assertEqual(jax.tree.structure(actual), jax.tree.structure(expected))
  for a, b in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_array_equal(a, b)


class PartitionTest(parameterized.TestCase):
  def _names(self, step, args, **options) -> list[str]:
    cut = memgraph.partition(step, *args, **options)
    return [task.name for task in cut.task_graph.tasks]

  def test_by_layer(self):
    names = self._names(_train, _arguments())
    # The loss goes with layer 2, the updates with the gradients they read.
    self.assertEqual(
      names,
      [
        "layer_0",
        "layer_1",
        "layer_2",
        "layer_2 backward",
        "layer_1 backward",
        "layer_0 backward",
      ],
    )

  def test_by_scope(self):
    names = self._names(_loss, _arguments(2), by="scope", depth=2)
    self.assertEqual(
      names,
      ["layer_0/linear", "layer_0/act", "layer_1/linear", "layer_1/act"],
    )

  def test_by_size(self):
    args = _arguments()
    cut = memgraph.partition(_loss, *args, by="size", segment_bytes=2048)
    one = memgraph.partition(_loss, *args, by="size", segment_bytes=10**9)
    self.assertLen(one.task_graph.tasks, 1)
    self.assertGreater(len(cut.task_graph.tasks), 5)

  def test_large_segments_are_cut(self):
    args = _arguments()
    # A weight is 4 KiB, an activation 1 KiB. A product needs 6 KiB.
    limit = 6 * 1024
    cut = memgraph.partition(_loss, *args, max_segment_bytes=limit)
    names = [task.name for task in cut.task_graph.tasks]
    self.assertGreater(len(names), 3)
    self.assertIn("layer_1.1", names)
    graph = cut.task_graph
    for task in graph.tasks:
      touched = (*task.inputs, *task.outputs)
      self.assertLessEqual(
        sum(graph.tensors[t].size_bytes for t in touched), limit
      )

  def test_all_results_are_found(self):
    constant = jnp.arange(3.0)

    def step(x, y):
      return {"arg": y, "sum": x + constant, "const": constant, "lit": 2.0}

    args = jnp.ones(3), jnp.zeros(2)
    offloaded = memgraph.offload(
      step, *args, memory_limit="1MiB", partition_options={"by": "size"}
    )
    _assert_equal(self, offloaded(*args), jax.jit(step)(*args))
    changed = jnp.full(3, 7.0), jnp.ones(2)
    _assert_equal(self, offloaded(*changed), jax.jit(step)(*changed))

  def test_random_keys_and_keywords(self):
    def step(key, x, *, scale):
      with jax.named_scope("layer_0"):
        first, second = jax.random.split(key)
        x = x + jax.random.normal(first, x.shape)
      with jax.named_scope("layer_1"):
        return scale * x + jax.random.normal(second, x.shape), second

    args = jax.random.key(3), jnp.ones((4, 4))
    offloaded = memgraph.offload(step, *args, memory_limit=10**5, scale=2.0)
    output, key = offloaded(*args, scale=2.0)
    expected, expected_key = jax.jit(step)(*args, scale=2.0)
    np.testing.assert_allclose(output, expected, rtol=1e-6)
    self.assertTrue(
      (jax.random.key_data(key) == jax.random.key_data(expected_key)).all()
    )

  def test_recomputation_reads_weights_themselves(self):
    def loss(weights, x):
      for number, weight in enumerate(weights):
        with jax.named_scope(f"layer_{number}"):
          x = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))(x, weight)
      return x.sum()

    cut = memgraph.partition(jax.grad(loss), *_arguments())
    graph = cut.task_graph
    made = {t for task in graph.tasks for t in task.outputs}
    sizes = [graph.tensors[t].size_bytes for t in made]
    # Of the size of a weight there are the three gradients only.
    self.assertEqual(sizes.count(4096), 3)

  def test_what_cannot_be_cut_is_refused(self):
    with self.assertRaisesRegex(ValueError, "named_scope"):
      memgraph.partition(lambda x: x + 1, jnp.ones(2))
    with self.assertRaisesRegex(ValueError, "effects"):
      memgraph.partition(lambda x: jax.debug.print("{}", x), jnp.ones(2))
    with self.assertRaisesRegex(ValueError, "schedule"):
      memgraph.offload(
        _loss,
        *_arguments(),
        memory_limit="1MiB",
        schedule=cast(Any, "random"),
      )

  def test_equal_layers_are_compiled_once(self):
    args = _arguments(6)
    cut = memgraph.partition(_train, *args)
    segments = memgraph.compile_segments(cut)
    # First, middle, last; forwards and backwards.
    self.assertLen(cut.task_graph.tasks, 12)
    self.assertLessEqual(segments.num_compiled, 6)


class OffloadTest(parameterized.TestCase):
  def _assert_runs(self, step, args, schedules, num_steps=1):
    """Asserts equality with the segments in order, and with the plain step.

    Yields what ran within 40 % of the memory of the plain step.
    """
    limit = int(0.4 * _needed_bytes(step, args))
    cut = memgraph.partition(step, *args, max_segment_bytes=limit // 2)
    segments = memgraph.compile_segments(cut)

    def run(capacity_bytes, change):
      built = memgraph.build_memgraph(segments.task_graph, capacity_bytes)
      built = change(built)
      runtime = memgraph.Runtime(built, segments.kernels)
      return memgraph.OffloadedStep(cut, segments, built, runtime)

    calm = run(10**9, memgraph.fixed_order)
    self.assertEqual(calm.memgraph.bytes_moved("offload"), 0)
    expected = calm(*args)
    plain = jax.jit(step)(*args)
    for a, b in zip(
      jax.tree.leaves(expected), jax.tree.leaves(plain), strict=True
    ):
      # Fusions end where segments do: sums may round differently.
      np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    for change in schedules:
      short = run(limit, change)
      for _ in range(num_steps):
        _assert_equal(self, short(*args), expected)
        assert short.last_run is not None
        self.assertLessEqual(max(short.last_run.peak_bytes), limit)
      yield short

  def test_training_in_short_memory(self):
    args = _arguments(6, 64)
    schedules = (
      lambda built: built,
      memgraph.fixed_order,
      memgraph.layer_streaming,
    )
    for step in self._assert_runs(_train, args, schedules, 3):
      self.assertGreater(step.memgraph.bytes_moved("offload"), 0)

  @parameterized.parameters("event", "fixed", "streaming")
  def test_schedules(self, schedule):
    args = _arguments(2, 64)
    step = memgraph.offload(
      _loss, *args, memory_limit="40KiB", schedule=schedule
    )
    np.testing.assert_allclose(step(*args), _loss(*args), rtol=1e-5)
    kinds = {vertex.kind for vertex in step.memgraph.vertices}
    self.assertEqual("sync" in kinds, schedule == "streaming")

  @parameterized.parameters(32, 48)
  def test_prefill(self, length):
    params = turnip_models.init(turnip_models.TINY, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(2), (2, length), 0, 64)
    step = functools.partial(turnip_models.prefill, turnip_models.TINY)
    schedules = (lambda built: built, memgraph.fixed_order)
    runs = self._assert_runs(step, (params, tokens), schedules)
    for run, is_event in zip(runs, (True, False), strict=True):
      moved = run.memgraph.bytes_moved("reload")
      weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
      # Every weight comes in, into less memory than all of them take.
      self.assertGreaterEqual(moved, weights, is_event)
      self.assertLess(run.memgraph.capacity_bytes[0], weights)

  @pytest.mark.slow
  def test_lora(self):
    config = turnip_models.TINY._replace(num_layers=2)
    params = turnip_models.init(config, jax.random.key(0))
    lora = turnip_models.init_lora(config, jax.random.key(1))
    tokens = jax.random.randint(jax.random.key(2), (2, 33), 0, config.vocab)
    step = functools.partial(turnip_models.lora_step, config)
    runs = self._assert_runs(step, (params, lora, tokens), [lambda b: b])
    self.assertLen(list(runs), 1)

  @parameterized.parameters(2, 3)
  def test_several_devices(self, num_devices):
    args = _arguments(6)
    step = memgraph.offload(
      _train, *args, memory_limit="40KiB", num_devices=num_devices
    )
    kinds = [vertex.kind for vertex in step.memgraph.vertices]
    self.assertIn("copy", kinds)
    _assert_equal(self, step(*args), jax.jit(_train)(*args))
    assert step.last_run is not None
    self.assertTrue(all(0 < p <= 40 * 1024 for p in step.last_run.peak_bytes))

  def test_assigned_devices(self):
    args = _arguments(4)
    step = memgraph.offload(
      _loss,
      *args,
      memory_limit="1MiB",
      num_devices=2,
      partition_options={"assign": lambda i, n: i % 2},
    )
    devices = [t.device for t in step.memgraph.task_graph.tasks]
    self.assertContainsSubset({0, 1}, set(devices))
    _assert_equal(self, step(*args), jax.jit(_loss)(*args))


class ModelGraphsTest(parameterized.TestCase):
  """The graphs that the benchmark simulates."""

  @parameterized.product(
    make=[turnip_graphs.prefill, turnip_graphs.lora_training],
    batch=[1, 2, 4],
    num_devices=[1, 4],
  )
  def test_graph(self, make, batch, num_devices):
    config = turnip_models.TINY
    workload = turnip_graphs.Workload(
      config=config, batch=batch, length=64, num_devices=num_devices
    )
    graph = make(workload)
    built = memgraph.build_memgraph(graph, 10**6)
    memgraph.check(built)
    memgraph.check(memgraph.layer_streaming(built))
    tokens = batch * 64
    h, f = config.hidden, config.ffn
    linear = 2 * tokens * (4 * h * h + 3 * h * f)
    flops = sum(task.flops for task in graph.tasks)
    if make is turnip_graphs.prefill:
      # Between causal and full attention, by how finely it is cut.
      attention = 4 * tokens * 64 * h
      low = config.num_layers * (linear + attention / 2)
      high = config.num_layers * (linear + attention)
      self.assertBetween(flops, low, high)
    else:
      # Forwards twice, and once for the gradients of activations.
      self.assertGreater(flops, 3 * config.num_layers * linear)

  @parameterized.product(
    make=[turnip_graphs.prefill, turnip_graphs.lora_training],
    num_devices=[1, 4],
  )
  def test_event_driven_is_no_slower_than_a_fixed_order(
    self, make, num_devices
  ):
    """In virtual time, within 40 % of what stays if nothing leaves."""
    workload = turnip_graphs.Workload(
      config=turnip_models.TINY._replace(hidden=512, ffn=1376),
      batch=8,
      length=256,
      num_devices=num_devices,
    )
    graph = make(workload)
    needed_bytes = turnip_graphs.resident_bytes(graph)
    built = memgraph.build_memgraph(graph, int(0.4 * needed_bytes))
    memgraph.check(built)
    server = memgraph.SERVERS["p100x4"]
    noise = memgraph.Noise(
      compute_sigma=0.05,
      transfer_sigma=0.3,
      stall_probability=0.02,
      stall_factor=10.0,
    )
    spans = {}
    for name, change in (
      ("event", lambda built: built),
      ("fixed", memgraph.fixed_order),
      ("streaming", memgraph.layer_streaming),
    ):
      changed = change(built)
      expected_s = memgraph.expected_times(changed, server)
      draws = [
        memgraph.draw_times(changed, expected_s, noise, seed)
        for seed in range(5)
      ]
      spans[name] = [memgraph.simulate(changed, d).makespan_s for d in draws]
    for seed in range(5):
      # One seed may favour a fixed order by a little: no list schedule is best.
      self.assertLess(spans["event"][seed], 1.01 * spans["fixed"][seed])
    self.assertLessEqual(sum(spans["event"]), sum(spans["fixed"]))
    self.assertLess(sum(spans["event"]), 1.01 * sum(spans["streaming"]))
    if num_devices > 1:
      # Only where devices wait for each other is there much to react to.
      self.assertLess(sum(spans["event"]), 0.99 * sum(spans["fixed"]))

  def test_weights_are_counted_once(self):
    workload = turnip_graphs.Workload(
      config=turnip_models.LLAMA_7B, batch=1, length=1024, num_devices=4
    )
    graph = turnip_graphs.prefill(workload)
    weights = [t for t in graph.inputs if graph.tensors[t].name.startswith("w")]
    num_bytes = sum(graph.tensors[t].size_bytes for t in weights)
    # 32 layers of 4 h^2 + 3 h f half-precision numbers.
    self.assertEqual(num_bytes, 32 * 2 * (4 * 4096**2 + 3 * 4096 * 11_008))


if __name__ == "__main__":
  absltest.main()
