"""GPT-2 in plain jax: parameters, loss and one AdamW step.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]

_LEARNING_RATE = 3e-4
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.95, 1e-8
_WEIGHT_DECAY = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """The sizes of a model; the defaults are GPT-2 small's.

  Attributes:
    vocabulary: Number of tokens.
    num_positions: Rows of the position table.
    width: Features per token.
    num_heads: Divides `width`.
    num_layers: Blocks.
  """

  vocabulary: int = 50_257
  num_positions: int = 1024
  width: int = 768
  num_heads: int = 12
  num_layers: int = 12


def init(config: Config, key: jax.Array) -> Params:
  """Returns random parameters."""
  keys = iter(jax.random.split(key, 2 + 4 * config.num_layers))

  def normal(*shape: int) -> jax.Array:
    return 0.02 * jax.random.normal(next(keys), shape)

  def dense(rows: int, columns: int) -> Params:
    return {"kernel": normal(rows, columns), "bias": jnp.zeros(columns)}

  def norm() -> Params:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

  width = config.width
  return {
    "tokens": normal(config.vocabulary, width),
    "positions": normal(config.num_positions, width),
    "blocks": [
      {
        "norm_1": norm(),
        "query_key_value": dense(width, 3 * width),
        "output": dense(width, width),
        "norm_2": norm(),
        "expand": dense(width, 4 * width),
        "contract": dense(4 * width, width),
      }
      for _ in range(config.num_layers)
    ],
    "norm": norm(),
  }


def _dense(params: Params, x: jax.Array) -> jax.Array:
  return x @ params["kernel"] + params["bias"]


def _norm(params: Params, x: jax.Array) -> jax.Array:
  mean = x.mean(-1, keepdims=True)
  variance = x.var(-1, keepdims=True)
  x = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
  return x * params["scale"] + params["bias"]


def _attention(params: Params, x: jax.Array, num_heads: int) -> jax.Array:
  batch, length, width = x.shape
  fused = _dense(params["query_key_value"], x)
  fused = fused.reshape(batch, length, 3, num_heads, -1)
  query, key, value = jnp.moveaxis(fused, 2, 0)
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
  is_seen = jnp.tril(jnp.ones((length, length), bool))
  weights = jax.nn.softmax(jnp.where(is_seen, scores, -jnp.inf))
  x = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
  return _dense(params["output"], x.reshape(batch, length, width))


def _block(params: Params, x: jax.Array, num_heads: int) -> jax.Array:
  x += _attention(params, _norm(params["norm_1"], x), num_heads)
  hidden = jax.nn.gelu(_dense(params["expand"], _norm(params["norm_2"], x)))
  return x + _dense(params["contract"], hidden)


def _loss(config: Config, params: Params, tokens: jax.Array) -> jax.Array:
  """Returns the mean cross-entropy of predicting each next token."""
  inputs, labels = tokens[:, :-1], tokens[:, 1:]
  x = params["tokens"][inputs] + params["positions"][: inputs.shape[1]]
  for block in params["blocks"]:
    x = _block(block, x, config.num_heads)
  logits = _norm(params["norm"], x) @ params["tokens"].T
  log_probability = jax.nn.log_softmax(logits)
  return -jnp.take_along_axis(log_probability, labels[..., None], -1).mean()


def init_state(config: Config, key: jax.Array) -> Params:
  """Returns what a step updates: parameters, both moments, a step count."""
  params = init(config, key)
  zeros = functools.partial(jax.tree.map, jnp.zeros_like)
  return {
    "params": params,
    "mean": zeros(params),
    "variance": zeros(params),
    "count": jnp.zeros((), jnp.int32),
  }


def train_step(
  config: Config, state: Params, tokens: jax.Array
) -> tuple[Params, jax.Array]:
  """Does one step of AdamW.

  Args:
    config: Sizes.
    state: See `init_state`.
    tokens: int32 `[batch, length + 1]`.

  Returns:
    The next state and the loss.
  """
  loss, gradient = jax.value_and_grad(functools.partial(_loss, config))(
    state["params"], tokens
  )
  count = state["count"] + 1
  steps = count.astype(jnp.float32)

  def first(m: jax.Array, g: jax.Array) -> jax.Array:
    return _BETA_1 * m + (1 - _BETA_1) * g

  def second(v: jax.Array, g: jax.Array) -> jax.Array:
    return _BETA_2 * v + (1 - _BETA_2) * g * g

  def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
    m /= 1 - _BETA_1**steps
    v /= 1 - _BETA_2**steps
    direction = m / (jnp.sqrt(v) + _EPSILON) + _WEIGHT_DECAY * p
    return p - _LEARNING_RATE * direction

  mean = jax.tree.map(first, state["mean"], gradient)
  variance = jax.tree.map(second, state["variance"], gradient)
  params = jax.tree.map(update, state["params"], mean, variance)
  return {
    "params": params,
    "mean": mean,
    "variance": variance,
    "count": count,
  }, loss
