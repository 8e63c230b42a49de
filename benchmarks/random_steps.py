"""Small train steps made at random: layers of many kinds, put together."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_POLICIES: dict[str, Any] = {
  "none": None,
  "nothing_saveable": jax.checkpoint_policies.nothing_saveable,
  "dots_saveable": jax.checkpoint_policies.dots_saveable,
}
_MIXERS = ("none", "attention", "convolution", "sort", "branch", "prefix_sum")
_NUM_TOKENS = 64
_KEEP = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traits:
  """What a random step is made of.

  Attributes:
    num_layers: Residual blocks, all alike.
    width: Of each.
    num_rows: Examples.
    dtype: Of the weights and the layers.
    policy: Of `jax.checkpoint` around each block.
    is_scanned: Whether the blocks are a `jax.lax.scan`.
    has_dropout: Whether a block drops out.
    has_norm: Whether it normalizes.
    mixer: How a block mixes its examples, of `_MIXERS`.
    has_embedding: Whether examples are tokens, so that the step scatters.
    has_momentum: Whether the optimizer has a state.
    is_donated: Whether weights and state are donated.
  """

  num_layers: int
  width: int
  num_rows: int
  dtype: str
  policy: str
  is_scanned: bool
  has_dropout: bool
  has_norm: bool
  mixer: str
  has_embedding: bool
  has_momentum: bool
  is_donated: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomStep:
  """A step, its arguments, and what is donated.

  Attributes:
    traits: What it is made of.
    function: The step: (weights, state, examples, key) -> (weights, state,
      loss).
    args: Its arguments.
    donate_argnums: As `jax.jit` takes them.
  """

  traits: Traits
  function: Callable[..., Any]
  args: tuple[Any, ...]
  donate_argnums: tuple[int, ...]


def build(seed: int, traits: Traits | None = None) -> RandomStep:
  """Returns the step of a seed, the same on every machine.

  Args:
    seed: Of traits, weights and examples.
    traits: What it is made of, if that is not left to chance.
  """
  source = np.random.default_rng(seed)
  traits = traits or _random_traits(source)
  blocks, width = traits.num_layers, traits.width
  weights = {
    "in": _normal(source, blocks, width, width).astype(traits.dtype),
    "out": _normal(source, blocks, width, width).astype(traits.dtype),
  }
  examples: Any = _normal(source, traits.num_rows, width)
  if traits.has_embedding:
    weights["table"] = _normal(source, _NUM_TOKENS, width).astype(traits.dtype)
    examples = source.integers(0, _NUM_TOKENS, traits.num_rows)
  state = jax.tree.map(jnp.zeros_like, weights)
  return RandomStep(
    traits=traits,
    function=_step(traits),
    args=(weights, state, jnp.asarray(examples), jax.random.key(seed)),
    donate_argnums=(0, 1) if traits.is_donated else (),
  )


def _random_traits(source: np.random.Generator) -> Traits:
  return Traits(
    num_layers=int(source.integers(2, 5)),
    width=int(source.choice([16, 32, 48])),
    num_rows=int(source.choice([32, 128, 200])),
    dtype=str(source.choice(["float32", "bfloat16"])),
    policy=str(source.choice([*_POLICIES])),
    is_scanned=bool(source.random() < 0.3),
    has_dropout=bool(source.random() < 0.4),
    has_norm=bool(source.random() < 0.5),
    mixer=str(source.choice(_MIXERS)),
    has_embedding=bool(source.random() < 0.3),
    has_momentum=bool(source.random() < 0.5),
    is_donated=bool(source.random() < 0.7),
  )


def _normal(source: np.random.Generator, *shape: int) -> jax.Array:
  return jnp.asarray(0.2 * source.standard_normal(shape), jnp.float32)


def _mixed(
  mixer: str, x: jax.Array, into: jax.Array, out: jax.Array
) -> jax.Array:
  """Lets the rows of an array depend on each other."""
  if mixer == "attention":
    scores = (x @ into) @ (x @ out).T
    return jax.nn.softmax(scores / np.sqrt(x.shape[-1])) @ x
  if mixer == "convolution":
    filters = jnp.stack([into, out, into])
    x = jax.lax.conv_general_dilated(
      x[None], filters, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    return x[0]
  if mixer == "sort":
    return jnp.take_along_axis(x, jnp.argsort(x, axis=0)[::-1], axis=0)
  if mixer == "branch":
    return jax.lax.cond(
      jnp.sum(x) > 0, lambda x: jnp.tanh(x @ into), lambda x: jnp.sin(x), x
    )
  if mixer == "prefix_sum":
    return jnp.cumsum(x, axis=0) / x.shape[0]
  return x


def _block(traits: Traits) -> Callable[..., jax.Array]:
  def block(
    hidden: jax.Array, into: jax.Array, out: jax.Array, key: jax.Array
  ) -> jax.Array:
    x = hidden
    if traits.has_norm:
      scale = jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
      x = (x - x.mean(-1, keepdims=True)) * scale
    x = _mixed(traits.mixer, x, into, out)
    x = jax.nn.gelu(x @ into) @ out
    if traits.has_dropout:
      x = jnp.where(jax.random.bernoulli(key, _KEEP, x.shape), x, 0)
    return (hidden + x).astype(hidden.dtype)

  if traits.policy == "none":
    return block
  return jax.checkpoint(block, policy=_POLICIES[traits.policy])


def _step(traits: Traits) -> Callable[..., Any]:
  block = _block(traits)

  def loss(weights: Any, examples: jax.Array, key: jax.Array) -> jax.Array:
    hidden = examples.astype(traits.dtype)
    if traits.has_embedding:
      hidden = weights["table"][examples]
    layers = weights["in"], weights["out"]
    keys = jax.random.split(key, traits.num_layers)
    if traits.is_scanned:
      hidden, _ = jax.lax.scan(
        lambda h, layer: (block(h, *layer), None), hidden, (*layers, keys)
      )
    else:
      for number in range(traits.num_layers):
        into, out = (w[number] for w in layers)
        hidden = block(hidden, into, out, keys[number])
    return jnp.mean(hidden.astype(jnp.float32) ** 2)

  def step(weights: Any, state: Any, examples: jax.Array, key: jax.Array):
    value, changes = jax.value_and_grad(loss)(weights, examples, key)
    if traits.has_momentum:
      state = jax.tree.map(_decayed, state, changes)
      changes = state
    weights = jax.tree.map(_moved, weights, changes)
    return weights, state, value

  return step


def _decayed(state: jax.Array, change: jax.Array) -> jax.Array:
  return (0.9 * state + 0.1 * change).astype(state.dtype)


def _moved(weights: jax.Array, change: jax.Array) -> jax.Array:
  return (weights - 0.1 * change).astype(weights.dtype)
