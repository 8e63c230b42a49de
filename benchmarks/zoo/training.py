"""The train step every zoo model shares, and arrays to run it on."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

# Gives the loss, a float32 scalar, of a module's outputs and the labels.
Loss = Callable[[Any, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """A train step and the shapes it runs on.

  Attributes:
    name: The model's name, a key of `MODELS`.
    function: The step, not jitted: `(variables, opt_state, *batch)` to
      `(variables, opt_state, loss)`. `variables` is flax's dictionary, with
      `params` and, where the model normalizes by batch, `batch_stats`.
    args: One pytree of `jax.ShapeDtypeStruct` per argument of `function`.
    jit_kwargs: What to pass to `jax.jit`: the state is donated.
    num_params: The number of trained scalars; running statistics and the
      optimizer's state do not count.
    num_classes: Every integer of the batch lies in [0, num_classes).
  """

  name: str
  function: Callable[..., tuple[Any, Any, jax.Array]]
  args: tuple[Any, ...]
  jit_kwargs: Mapping[str, Any]
  num_params: int
  num_classes: int


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the mean cross entropy, `logits` having one axis more."""
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def momentum() -> optax.GradientTransformation:
  """Returns the optimizer of the convolutional networks."""
  return optax.sgd(1e-3, momentum=0.9)


def adam() -> optax.GradientTransformation:
  """Returns the optimizer of the transformers."""
  return optax.adamw(3e-4)


def make_step(
  name: str,
  module: nn.Module,
  batch: Sequence[jax.ShapeDtypeStruct],
  *,
  num_classes: int,
  optimizer: optax.GradientTransformation,
  loss: Loss = cross_entropy,
) -> Step:
  """Returns the train step of a module.

  Args:
    name: The model's name; the step is called `<name>_train_step`, so that the
      HLO module says which model it is.
    module: Called with every array of the batch but the last.
    batch: The shapes of the batch; the last is the labels.
    num_classes: The labels, and tokens if any, lie in [0, num_classes).
    optimizer: Updates `params`.
    loss: Compares the module's outputs with the labels.

  Returns:
    The step. Nothing is compiled and no parameter is allocated.
  """
  variables = jax.eval_shape(module.init, jax.random.key(0), *batch[:-1])
  opt_state = jax.eval_shape(optimizer.init, variables["params"])

  def train_step(variables, opt_state, *batch):
    *features, labels = batch
    params = variables["params"]
    state = {key: variables[key] for key in variables if key != "params"}

    def loss_function(params):
      outputs, updated = module.apply(
        {"params": params, **state}, *features, mutable=list(state)
      )
      return loss(outputs, labels), updated

    (value, updated), gradients = jax.value_and_grad(
      loss_function, has_aux=True
    )(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    params = optax.apply_updates(params, updates)
    return {"params": params, **updated}, opt_state, value

  train_step.__name__ = train_step.__qualname__ = f"{name}_train_step"
  return Step(
    name=name,
    function=train_step,
    args=(variables, opt_state, *batch),
    jit_kwargs={"donate_argnums": (0, 1)},
    num_params=sum(
      math.prod(leaf.shape) for leaf in jax.tree.leaves(variables["params"])
    ),
    num_classes=num_classes,
  )


def concrete(step: Step, seed: int = 0) -> tuple[Any, ...]:
  """Returns arrays to run a step on, the same for the same seed.

  Kernels are normal with variance one over their fan-in, so that neither a
  deep network without normalization nor a wide one loses its signal; other
  weights are normal with deviation 0.02, about one for scales and variances.
  The optimizer's state is zero, as `init` leaves it for the zoo's optimizers.

  Args:
    step: The step to feed.
    seed: Seeds numpy's generator.

  Returns:
    One pytree of arrays per argument of `step.function`. They are new at each
    call: the step donates its state.
  """
  generator = np.random.default_rng(seed)
  variables, opt_state, *batch = step.args
  return (
    jax.tree_util.tree_map_with_path(
      lambda path, leaf: _weights(generator, path[-1].key, leaf), variables
    ),
    jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), opt_state),
    *(_data(generator, leaf, step.num_classes) for leaf in batch),
  )


def _weights(
  generator: np.random.Generator, name: str, leaf: jax.ShapeDtypeStruct
) -> jax.Array:
  values = generator.standard_normal(leaf.shape, np.float32)
  if name == "kernel":
    values *= np.float32(
      math.sqrt(leaf.shape[-1] / max(math.prod(leaf.shape), 1))
    )
  else:
    values *= np.float32(0.02)
  if name in ("scale", "var"):
    values += np.float32(1)
  return jnp.asarray(values, leaf.dtype)


def _data(
  generator: np.random.Generator, leaf: jax.ShapeDtypeStruct, num_classes: int
) -> jax.Array:
  if jnp.issubdtype(leaf.dtype, jnp.integer):
    values = generator.integers(num_classes, size=leaf.shape)
  else:
    values = generator.standard_normal(leaf.shape, np.float32)
  return jnp.asarray(values, leaf.dtype)
