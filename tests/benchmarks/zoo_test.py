import math

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from benchmarks import zoo
from benchmarks.zoo import randwire


def _shapes(tree):
  return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


class BuildTest(parameterized.TestCase):
  @parameterized.product(
    name=sorted(zoo.MODELS), like=((32, "full"), (1, "tiny"))
  )
  @pytest.mark.slow
  def test_step_keeps_the_shapes_of_its_state(self, name, like):
    batch, size = like
    step = zoo.build(name, batch, size=size)
    outputs = jax.eval_shape(step.function, *step.args)
    if size == "full":
      self.assertEqual(step.num_params, zoo.PUBLISHED_PARAMS[name])
    self.assertEqual(step.function.__name__, f"{name}_train_step")
    self.assertEqual(_shapes(outputs[:2]), _shapes(step.args[:2]))
    self.assertEqual(outputs[2].shape, ())
    for leaf in step.args[2:]:
      self.assertEqual(leaf.shape[0], batch)

  @parameterized.parameters(*sorted(zoo.MODELS))
  def test_scaled_step_keeps_the_shapes_of_its_state(self, name):
    tiny = zoo.build(name, 2, size="tiny")
    outputs = jax.eval_shape(tiny.function, *tiny.args)
    self.assertEqual(_shapes(outputs[:2]), _shapes(tiny.args[:2]))
    small = zoo.build(name, 2, size="small")
    self.assertLess(tiny.num_params, small.num_params)
    self.assertLess(small.num_params, zoo.PUBLISHED_PARAMS[name])

  def test_every_model_has_a_published_count(self):
    self.assertSameElements(zoo.MODELS, zoo.PUBLISHED_PARAMS)

  @parameterized.parameters(
    (("lenet", 1, "tiny"), "name must be one of"),
    (("alexnet", 0, "tiny"), "batch must be positive, got 0"),
    (("alexnet", 1, "huge"), "size must be one of"),
  )
  def test_build_names_what_is_wrong(self, arguments, message):
    name, batch, size = arguments
    with self.assertRaisesRegex(ValueError, message):
      zoo.build(name, batch, size=size)


class CountTest(absltest.TestCase):
  """Counts that no paper gives to the last digit, from the architecture."""

  def test_unet(self):
    widths = [64, 128, 256, 512, 1024]

    def convolve(source, width):
      return 9 * source * width + width + 9 * width * width + width

    down = sum(map(convolve, [1, *widths[:-1]], widths))
    up = sum(4 * 2 * w * w + w + convolve(2 * w, w) for w in widths[:-1])
    classes = 64 * 2 + 2
    self.assertEqual(down + up + classes, zoo.PUBLISHED_PARAMS["unet"])

  def test_randwire(self):
    count = 27 * 39 + 2 * 39 + 9 * 39 * 78 + 2 * 78
    source = 78
    for stage in range(3):
      width = 78 * 2**stage
      for reads in randwire.watts_strogatz(32, 4, 0.75, stage):
        features = width if reads else source
        gates = len(reads) if len(reads) > 1 else 0
        count += gates + 9 * features + features * width + 2 * width
      source = width
    count += source * 1280 + 2 * 1280 + 1280 * 1000 + 1000
    self.assertEqual(count, zoo.PUBLISHED_PARAMS["randwire"])

  def test_small_world_keeps_its_edges_and_reads_earlier_nodes(self):
    wiring = randwire.watts_strogatz(32, 4, 0.75, 0)
    self.assertEqual(sum(map(len, wiring)), 64)
    for node, reads in enumerate(wiring):
      self.assertTrue(all(source < node for source in reads))


class ConcreteTest(parameterized.TestCase):
  def test_arrays_fit_the_step_and_follow_the_seed(self):
    step = zoo.build("resnet50", 3, size="tiny")
    args = zoo.concrete(step)
    self.assertEqual(_shapes(args), _shapes(step.args))
    jax.tree.map(np.testing.assert_array_equal, args, zoo.concrete(step))
    other = zoo.concrete(step, seed=1)
    self.assertFalse(np.array_equal(args[2], other[2]))

  def test_integers_are_classes(self):
    step = zoo.build("gpt2_small", 4, size="tiny")
    for tokens in zoo.concrete(step)[2:]:
      self.assertGreaterEqual(int(tokens.min()), 0)
      self.assertLess(int(tokens.max()), step.num_classes)

  def test_steps_lower_the_loss(self):
    self._check_losses("gpt2_small")

  @parameterized.parameters("moe_transformer", "resnet50")
  @pytest.mark.slow
  def test_others_lower_the_loss(self, name):
    self._check_losses(name)

  def _check_losses(self, name):
    step = zoo.build(name, 2, size="tiny")
    function = jax.jit(step.function, **step.jit_kwargs)
    variables, opt_state, *batch = zoo.concrete(step)
    losses = []
    for _ in range(3):
      variables, opt_state, loss = function(variables, opt_state, *batch)
      losses.append(float(loss))
    self.assertTrue(all(map(math.isfinite, losses)), losses)
    self.assertEqual(losses, sorted(set(losses), reverse=True))


if __name__ == "__main__":
  absltest.main()
