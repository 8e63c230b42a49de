"""What a held-out step is, and how most are made: a loss and an optimizer."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.policies import policy_named

# Gives the loss of the parameters and the arrays of the batch.
Loss = Callable[..., jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """A train step, and the arrays it runs on.

  Attributes:
    function: The step, not jitted: `(params, opt_state, *batch)` to `(params,
      opt_state, loss)`.
    make_args: Returns the arguments, the same at each call; pure, so that
      `jax.eval_shape` gives their shapes.
    jit_kwargs: What to pass to `jax.jit`: the state is donated.
  """

  function: Callable[..., tuple[Any, Any, jax.Array]]
  make_args: Callable[[], tuple[Any, ...]]
  jit_kwargs: Mapping[str, Any]


def make_step(
  function: Callable[..., tuple[Any, Any, jax.Array]],
  init: Callable[[jax.Array], tuple[Any, Any]],
  batch: Sequence[jax.ShapeDtypeStruct],
  *,
  num_classes: int,
) -> Step:
  """Returns a step and random arrays to run it on.

  Args:
    function: The step, not jitted.
    init: Takes a key; returns the parameters and the optimizer's state.
    batch: The shapes of the batch.
    num_classes: Integers of the batch lie in [0, num_classes).
  """

  def make_args() -> tuple[Any, ...]:
    init_key, *keys = jax.random.split(jax.random.key(0), 1 + len(batch))
    arrays = [
      jax.random.randint(key, leaf.shape, 0, num_classes, leaf.dtype)
      if jnp.issubdtype(leaf.dtype, jnp.integer)
      else jax.random.normal(key, leaf.shape, leaf.dtype)
      for key, leaf in zip(keys, batch, strict=True)
    ]
    return (*init(init_key), *arrays)

  return Step(
    function=function,
    make_args=make_args,
    jit_kwargs={"donate_argnums": (0, 1)},
  )


def make_train_step(
  init: Callable[[jax.Array], Any],
  loss: Loss,
  optimizer: optax.GradientTransformation,
  batch: Sequence[jax.ShapeDtypeStruct],
  *,
  num_classes: int = 1,
) -> Step:
  """Returns the step that follows a gradient.

  Args:
    init: Takes a key; returns the parameters.
    loss: Of the parameters and the batch.
    optimizer: Updates the parameters.
    batch: The shapes of the batch.
    num_classes: Integers of the batch lie in [0, num_classes).
  """

  def train_step(params: Any, opt_state: Any, *batch: jax.Array) -> Any:
    value, gradients = jax.value_and_grad(loss)(params, *batch)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value

  init_both = with_optimizer(init, optimizer)
  return make_step(train_step, init_both, batch, num_classes=num_classes)


def with_optimizer(
  init: Callable[[jax.Array], Any], optimizer: optax.GradientTransformation
) -> Callable[[jax.Array], tuple[Any, Any]]:
  """Returns what makes parameters and the optimizer's state of a key."""

  def init_both(key: jax.Array) -> tuple[Any, Any]:
    params = init(key)
    return params, optimizer.init(params)

  return init_both


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the mean cross entropy, `logits` having one axis more."""
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def checkpointed(
  block: Callable[..., Any], policy: str | None, *, prevent_cse: bool = True
) -> Callable[..., Any]:
  """Returns a pure block, recomputed under a policy if one is named."""
  if policy is None:
    return block
  return jax.checkpoint(
    block, policy=policy_named(policy), prevent_cse=prevent_cse
  )


def floats(*shape: int) -> jax.ShapeDtypeStruct:
  """Returns the shape of a float32 array."""
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
  """Returns the shape of an int32 array."""
  return jax.ShapeDtypeStruct(shape, jnp.int32)


def normal_layers(
  key: jax.Array, number: int, shapes: Mapping[str, tuple[int, ...]]
) -> list[Any]:
  """Returns so many layers of normal arrays that keep the size of numbers."""
  initializer = jax.nn.initializers.lecun_normal()
  return [
    {
      name: initializer(each, shape)
      for each, (name, shape) in zip(
        jax.random.split(layer_key, len(shapes)), shapes.items(), strict=True
      )
    }
    for layer_key in jax.random.split(key, number)
  ]


def layers_and_ends(
  number: int,
  shapes: Mapping[str, tuple[int, ...]],
  ends: Mapping[str, tuple[int, ...]],
) -> Callable[[jax.Array], tuple[list[Any], Any]]:
  """Returns what makes a model's parameters of a key.

  Args:
    number: How many layers.
    shapes: Of each layer's arrays.
    ends: Of those before the first layer and after the last.
  """

  def init(key: jax.Array) -> tuple[list[Any], Any]:
    layers_key, key = jax.random.split(key)
    (end,) = normal_layers(key, 1, ends)
    return normal_layers(layers_key, number, shapes), end

  return init


def standardize(x: jax.Array) -> jax.Array:
  """Returns numbers of mean 0 and variance 1 along the last dimension."""
  centred = x - x.mean(-1, keepdims=True)
  variance = jnp.square(centred).mean(-1, keepdims=True)
  return centred * jax.lax.rsqrt(variance + 1e-6)


def encoder_shapes(width: int) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the arrays of an `encoder_layer`."""
  return {
    "joint": (width, 3 * width),
    "mixed": (width, width),
    "inner": (width, 4 * width),
    "outer": (4 * width, width),
  }


def encoder_layer(
  layer: Any,
  x: jax.Array,
  *,
  num_heads: int,
  attend: Callable[..., jax.Array] = jax.nn.dot_product_attention,
) -> jax.Array:
  """Returns (batch, length, width) behind attention and two products.

  Args:
    layer: Arrays of `encoder_shapes`.
    x: Of shape (batch, length, width).
    num_heads: Of the attention.
    attend: Takes queries, keys and values, (batch, length, heads, size) each.
  """
  joint = (standardize(x) @ layer["joint"]).reshape(
    *x.shape[:2], 3, num_heads, -1
  )
  query, key, value = jnp.moveaxis(joint, 2, 0)
  mixed = attend(query, key, value)
  x += mixed.reshape(x.shape) @ layer["mixed"]
  hidden = jax.nn.gelu(standardize(x) @ layer["inner"])
  return x + hidden @ layer["outer"]


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
  """Returns images (batch, height, width, channels) under a filter.

  Channels are in as many groups as the filter's (height, width, channels, new
  channels) has fewer of them.
  """
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    "SAME",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
    feature_group_count=x.shape[-1] // kernel.shape[2],
  )
