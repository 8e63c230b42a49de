"""Steps of models of libraries: flax.nnx, Equinox, Keras, optax.contrib.

Written down together with `field_steps`, before the first of them was planned.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from optax import contrib

from benchmarks.held_out import keras_steps
from benchmarks.held_out.equinox_steps import checkpointed_module, split_arrays
from benchmarks.held_out.step import (
  Step,
  checkpointed,
  cross_entropy,
  floats,
  integers,
  make_train_step,
)

Params = Any


class EncoderBlock(nnx.Module):
  """A layer of an encoder of images."""

  def __init__(self, width: int, num_heads: int, rngs: nnx.Rngs):
    self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
    self.attend = nnx.MultiHeadAttention(
      num_heads, width, decode=False, rngs=rngs
    )
    self.inner = nnx.Linear(width, 4 * width, rngs=rngs)
    self.outer = nnx.Linear(4 * width, width, rngs=rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    x = x + self.attend(self.norms[0](x))
    return x + self.outer(nnx.gelu(self.inner(self.norms[1](x))))


class ImageEncoder(nnx.Module):
  """A transformer of an image's patches."""

  def __init__(self, width: int, num_blocks: int, rngs: nnx.Rngs):
    self.patches = nnx.Conv(3, width, (8, 8), strides=(8, 8), rngs=rngs)
    self.places = nnx.Param(0.02 * jax.random.normal(rngs(), (64, width)))
    self.blocks = nnx.List(
      [EncoderBlock(width, 6, rngs) for _ in range(num_blocks)]
    )
    self.norm = nnx.LayerNorm(width, rngs=rngs)
    self.head = nnx.Linear(width, 100, rngs=rngs)

  def __call__(self, images: jax.Array, policy: str | None) -> jax.Array:
    x = self.patches(images)
    x = x.reshape(len(x), 64, -1) + self.places[...]
    for block in self.blocks:
      definition, arrays = nnx.split(block)
      run = lambda arrays, x, of=definition: nnx.merge(of, arrays)(x)  # noqa: E731
      x = checkpointed(run, policy)(arrays, x)
    return self.head(self.norm(x).mean(1))


def vision_transformer(policy: str | None = None) -> Step:
  """Builds a ViT of 4 blocks, 192 wide, in nnx; schedule-free AdamW."""

  def build(key: jax.Array) -> ImageEncoder:
    return ImageEncoder(192, 4, nnx.Rngs(key))

  definition = nnx.graphdef(nnx.eval_shape(lambda: build(jax.random.key(0))))

  def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    model = nnx.merge(definition, params)
    return cross_entropy(model(images, policy), labels)

  return make_train_step(
    lambda key: nnx.state(build(key)),
    loss,
    contrib.schedule_free_adamw(1e-3),
    [floats(24, 64, 64, 3), integers(24)],
    num_classes=100,
  )


class TextLayer(eqx.Module):
  """A layer of an encoder of one text, normalized after each part."""

  attend: eqx.nn.MultiheadAttention
  norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
  mlp: eqx.nn.MLP

  def __init__(self, width: int, num_heads: int, *, key: jax.Array):
    keys = jax.random.split(key)
    self.attend = eqx.nn.MultiheadAttention(num_heads, width, key=keys[0])
    self.norms = (eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width))
    self.mlp = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=keys[1])

  def __call__(self, x: jax.Array, is_word: jax.Array) -> jax.Array:
    mask = jnp.broadcast_to(is_word, (len(x), len(x)))
    x = jax.vmap(self.norms[0])(x + self.attend(x, x, x, mask))
    return jax.vmap(self.norms[1])(x + jax.vmap(self.mlp)(x))


class TextEncoder(eqx.Module):
  """Guesses the words of one text that are hidden."""

  words: eqx.nn.Embedding
  places: eqx.nn.Embedding
  layers: list[TextLayer]
  out: eqx.nn.Linear

  def __init__(self, vocabulary: int, width: int, *, key: jax.Array):
    word_key, place_key, out_key, *keys = jax.random.split(key, 7)
    self.words = eqx.nn.Embedding(vocabulary, width, key=word_key)
    self.places = eqx.nn.Embedding(128, width, key=place_key)
    self.layers = [TextLayer(width, 4, key=k) for k in keys]
    self.out = eqx.nn.Linear(width, vocabulary, key=out_key)

  def __call__(self, words: jax.Array, policy: str | None) -> jax.Array:
    places = jax.vmap(self.places)(jnp.arange(len(words)))
    x = jax.vmap(self.words)(words) + places
    for layer in self.layers:
      x = checkpointed_module(layer, policy)(x, words > 0)
    return jax.vmap(self.out)(x)


def hidden_words(policy: str | None = None) -> Step:
  """Builds an encoder of 4 layers, 192 wide, of 16 texts; AdEMAMix."""
  init, rest = split_arrays(lambda key: TextEncoder(2048, 192, key=key))

  def loss(params: Params, words: jax.Array, hidden: jax.Array) -> jax.Array:
    model = eqx.combine(params, rest)
    is_hidden = hidden % 7 == 0
    shown = jnp.where(is_hidden, 1, words)
    logits = jax.vmap(lambda text: model(text, policy))(shown)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, words)
    return jnp.sum(each, where=is_hidden) / is_hidden.sum()

  return make_train_step(
    init,
    loss,
    contrib.ademamix(1e-3),
    [integers(16, 128), integers(16, 128)],
    num_classes=2048,
  )


class Tagger(eqx.Module):
  """Reads a text in both directions, and tags its words."""

  words: eqx.nn.Embedding
  cells: tuple[eqx.nn.GRUCell, eqx.nn.GRUCell]
  out: eqx.nn.Linear

  def __init__(self, width: int, *, key: jax.Array):
    keys = jax.random.split(key, 4)
    self.words = eqx.nn.Embedding(1000, width, key=keys[0])
    self.cells = (
      eqx.nn.GRUCell(width, width, key=keys[1]),
      eqx.nn.GRUCell(width, width, key=keys[2]),
    )
    self.out = eqx.nn.Linear(2 * width, 20, key=keys[3])

  def __call__(self, words: jax.Array) -> jax.Array:
    x = jax.vmap(self.words)(words)

    def read(cell: eqx.nn.GRUCell, *, is_reversed: bool) -> jax.Array:
      def advance(state: jax.Array, word: jax.Array) -> Any:
        state = cell(word, state)
        return state, state

      start = jnp.zeros(x.shape[-1])
      return jax.lax.scan(advance, start, x, reverse=is_reversed)[1]

    ways = [read(self.cells[0], is_reversed=False)]
    ways.append(read(self.cells[1], is_reversed=True))
    return jax.vmap(self.out)(jnp.concatenate(ways, axis=-1))


def tagger() -> Step:
  """Builds recurrent cells, 192 wide, on 64 texts of 64 words; D-Adaptation."""
  init, rest = split_arrays(lambda key: Tagger(192, key=key))

  def loss(params: Params, words: jax.Array, tags: jax.Array) -> jax.Array:
    return cross_entropy(jax.vmap(eqx.combine(params, rest))(words), tags)

  return make_train_step(
    init,
    loss,
    contrib.dadapt_adamw(1.0),
    [integers(64, 64), integers(64, 64)],
    num_classes=20,
  )


def densenet() -> Step:
  """Builds DenseNet121 on 8 images of 64 by 64, SGD with momentum."""
  return keras_steps.application("DenseNet121", images=8, side=64)
