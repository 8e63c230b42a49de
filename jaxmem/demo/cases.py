"""The train steps that the demo plans and runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmem.demo import gpt2, resnet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A train step with all it needs.

  Attributes:
    name: What tables call it.
    step: Takes the state and a batch, returns the next state and the loss.
    init_state: Takes a key, returns a state.
    batch: Shapes of the batch.
    num_labels: Integers of the batch lie below it.
  """

  name: str
  step: Callable[..., Any]
  init_state: Callable[[jax.Array], Any]
  batch: tuple[jax.ShapeDtypeStruct, ...]
  num_labels: int

  def state_shapes(self) -> Any:
    """Returns the state's shapes; allocates nothing."""
    return jax.eval_shape(self.init_state, jax.random.key(0))

  @property
  def num_params(self) -> int:
    """How many numbers are trained."""
    leaves = jax.tree.leaves(self.state_shapes()["params"])
    return sum(leaf.size for leaf in leaves)

  def state(self) -> Any:
    """Returns a state, the same in every process."""
    return jax.jit(self.init_state)(jax.random.key(0, impl="rbg"))

  def random_batch(self) -> list[jax.Array]:
    """Returns a batch, the same in every process."""
    generator = np.random.default_rng(0)
    batch = []
    for spec in self.batch:
      if jnp.issubdtype(spec.dtype, jnp.integer):
        values = generator.integers(0, self.num_labels, spec.shape)
      else:
        values = generator.standard_normal(spec.shape)
      batch.append(jnp.asarray(values, spec.dtype))
    return batch


def gpt2_case(
  name: str, config: gpt2.Config, *, batch: int, length: int
) -> Case:
  """Builds a GPT-2 that learns `batch` sequences of `length` tokens a step."""
  step = functools.partial(gpt2.train_step, config)
  return Case(
    name=name,
    step=_named(step, "gpt2_step"),
    init_state=functools.partial(gpt2.init_state, config),
    batch=(jax.ShapeDtypeStruct((batch, length + 1), jnp.int32),),
    num_labels=config.vocabulary,
  )


def resnet_case(
  name: str, config: resnet.Config, *, batch: int, side: int
) -> Case:
  """Builds a residual network that learns `batch` square images a step."""
  step = functools.partial(resnet.train_step, config)
  return Case(
    name=name,
    step=_named(step, "resnet_step"),
    init_state=functools.partial(resnet.init_state, config),
    batch=(
      jax.ShapeDtypeStruct((batch, side, side, 3), jnp.float32),
      jax.ShapeDtypeStruct((batch,), jnp.int32),
    ),
    num_labels=config.num_classes,
  )


def _named(fun: Callable[..., Any], name: str) -> Callable[..., Any]:
  def step(*args: Any) -> Any:
    return fun(*args)

  step.__name__ = name
  return step


def full_cases() -> list[Case]:
  """Returns the published models, to be planned."""
  return [
    gpt2_case(
      "GPT-2 small, AdamW, batch 1", gpt2.Config(), batch=1, length=512
    ),
    resnet_case(
      "ResNet-50, momentum, batch 1", resnet.Config(), batch=1, side=224
    ),
  ]


def limited_case() -> Case:
  """Returns a step to be planned under a limit."""
  config = resnet.Config(depths=(2, 2, 2), num_classes=100)
  return resnet_case("ResNet, 6 blocks, batch 64", config, batch=64, side=128)


def small_cases() -> list[Case]:
  """Returns models that take about half a second a step, to be run."""
  return [
    gpt2_case(
      "GPT-2, 4 layers, batch 4",
      gpt2.Config(
        vocabulary=8192,
        num_positions=256,
        width=256,
        num_heads=4,
        num_layers=4,
      ),
      batch=4,
      length=256,
    ),
    resnet_case(
      "ResNet, 3 blocks, batch 12",
      resnet.Config(depths=(1, 1, 1), num_classes=100),
      batch=12,
      side=128,
    ),
  ]


def tiny_cases() -> list[Case]:
  """Returns models that compile in a few seconds, to test the demo."""
  return [
    gpt2_case(
      "GPT-2, 1 layer, batch 2",
      gpt2.Config(
        vocabulary=512, num_positions=32, width=32, num_heads=2, num_layers=1
      ),
      batch=2,
      length=32,
    ),
    resnet_case(
      "ResNet, 1 block, batch 2",
      resnet.Config(depths=(1,), width=8, num_classes=10),
      batch=2,
      side=32,
    ),
  ]
