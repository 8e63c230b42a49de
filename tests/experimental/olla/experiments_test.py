"""Tests of the graphs on which OLLA's experiments are repeated."""

import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized

from benchmarks import olla_models, olla_report, synthetic
from jaxmem.experimental import jaxpr_order
from jaxmem.graph import check_order, liveness


def _graph(function, *shapes, donated=()):
  args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  traced = jaxpr_order.from_function(
    function, *args, jit_kwargs={"donate_argnums": donated}
  )
  return olla_models.update_in_place(olla_models.view_transposes(traced.graph))


def _sizes(graph):
  return sorted(b.size_bytes for b in graph.buffers)


class UpdateInPlaceTest(absltest.TestCase):
  def test_the_new_weight_and_its_gradient_need_no_memory_of_their_own(self):
    def step(weight, gradient):
      twice = gradient * gradient
      return weight - 0.1 * twice

    graph = _graph(step, (8,), (8,), donated=0)
    # The weight, the gradient, its square; the product with 0.1 is written
    # over the square, the new weight over the old one.
    self.assertEqual(_sizes(graph), [32, 32, 32])
    (weight,) = [
      b
      for b in graph.buffers
      if b.live_at_start and b.touchers == (graph.num_nodes - 1,)
    ]
    self.assertTrue(weight.live_at_end)
    self.assertEqual(liveness.peak_bytes(graph, range(graph.num_nodes)), 96)

  def test_whoever_reads_the_old_weight_precedes_the_update(self):
    def step(weight, x):
      used = jnp.sin(weight)
      return weight + x, used

    graph = _graph(step, (8,), (8,), donated=0)
    names = [node.name.split(".")[0] for node in graph.nodes]
    self.assertEqual(names, ["sin", "add"])
    self.assertEqual(graph.nodes[1].predecessors, (0,))

  def test_an_update_does_not_write_over_what_is_read_later(self):
    def step(weight, x):
      new = weight + x
      return new, jnp.sin(weight) * new

    graph = _graph(step, (8,), (8,), donated=0)
    # The sum has memory of its own. The sine is the last to read the weight:
    # it is written over it, and so is the product.
    touchers = sorted(b.touchers for b in graph.buffers)
    self.assertEqual(touchers, [(0,), (0, 1, 2), (0, 2)])

  def test_activations_are_not_written_over(self):
    graph = _graph(lambda x: jnp.sin(jnp.cos(jnp.tanh(x))), (8,))
    self.assertLen(graph.buffers, 4)
    self.assertFalse(any(node.shares for node in graph.nodes))

  def test_transposes_are_views(self):
    graph = _graph(lambda x: jnp.sin(x.T) + 1, (4, 2))
    # x, sin and the sum.
    self.assertEqual(_sizes(graph), [32, 32, 32])


class ModelsTest(parameterized.TestCase):
  @parameterized.parameters(*sorted(olla_models.PUBLISHED))
  @pytest.mark.slow
  def test_counts_of_parameters(self, model):
    step = olla_models.build(model, 1, "authors")
    self.assertEqual(step.num_params, olla_models.AUTHORS_PARAMS[model])

  @parameterized.parameters("Transformer", "ResNet3D")
  @pytest.mark.slow
  def test_graphs_are_in_program_order_and_keep_their_weights(self, model):
    step = olla_models.build(model, 1, "authors")
    graph = olla_models.build_graph(step)
    order = range(graph.num_nodes)
    check_order(graph, order)
    weights = olla_models.weight_bytes(graph.buffers)
    self.assertGreaterEqual(weights, 4 * step.num_params)
    kept = sum(b.size_bytes for b in graph.buffers if b.live_at_end)
    self.assertLess(kept, weights + 1024)
    # The gradients of all weights are live before the first update.
    peak_bytes = liveness.peak_bytes(graph, order)
    self.assertGreater(peak_bytes, 8 * step.num_params)

  def test_refuses_unknown_models(self):
    with self.assertRaisesRegex(ValueError, "got 'LeNet' and 'authors'"):
      olla_models.build("LeNet", 1, "authors")


class ReportTest(absltest.TestCase):
  def test_a_plot_draws_the_fraction_of_its_rows(self):
    def row(model, variant, batch, peak_bytes):
      return {
        "model": model,
        "set": variant,
        "batch": batch,
        "peak_bytes": peak_bytes,
        "program_peak_bytes": 100,
      }

    rows = [
      row("a", "authors", 1, 50),
      row("b", "authors", 1, 75),
      row("a", "authors", 32, 100),
      row("b", "authors", 32, 0),
      row("a", "published", 1, 90),
      {"summary": True, "set": "authors", "batch": 1},
    ]
    series = [
      (f"batch {batch}", "authors", batch, olla_report.order_saving)
      for batch in (1, 32)
    ]
    root = ElementTree.fromstring(olla_report.plot(rows, "t", series))
    heights = [
      float(r.get("height", "0").rstrip("%"))
      for r in root.iter("{http://www.w3.org/2000/svg}rect")
      if r.get("width") == "8"
    ]
    # Of 220 pixels for 100 %; by model, then by series.
    self.assertEqual(heights, [110, 0, 55, 220])
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    self.assertContainsSubset(["t", "a", "b", "batch 1", "batch 32"], texts)
    self.assertIn("100 %", texts)

  def test_random_graphs_are_graphs(self):
    for seed in range(5):
      graph = synthetic.random_graph(30, seed)
      check_order(graph, range(30))


if __name__ == "__main__":
  absltest.main()
