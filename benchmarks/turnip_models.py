"""LLaMA-style steps in jax: prefill, and LoRA training with checkpoints."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.zoo import layers

LORA_RANK = 16
# What the paper adapts: K, V, Q and the feed-forward matrices.
_ADAPTED = ("wq", "wk", "wv", "w1", "w2", "w3")


class Config(NamedTuple):
  """The size of a model.

  Attributes:
    num_layers: Transformer blocks.
    hidden: Width of the residual stream.
    num_heads: Attention heads.
    ffn: Width of the feed-forward layers.
    vocab: Tokens.
  """

  num_layers: int
  hidden: int
  num_heads: int
  ffn: int
  vocab: int = 32_000


# Touvron et al., 2023.
LLAMA_7B = Config(num_layers=32, hidden=4096, num_heads=32, ffn=11_008)
LLAMA_65B = Config(num_layers=80, hidden=8192, num_heads=64, ffn=22_016)
SMALL = Config(num_layers=6, hidden=256, num_heads=4, ffn=688, vocab=512)
TINY = Config(num_layers=3, hidden=64, num_heads=4, ffn=128, vocab=64)


def init(config: Config, key: jax.Array, dtype: Any = jnp.float32) -> Any:
  """Returns weights."""
  shapes = {
    "wq": (config.hidden, config.hidden),
    "wk": (config.hidden, config.hidden),
    "wv": (config.hidden, config.hidden),
    "wo": (config.hidden, config.hidden),
    "w1": (config.hidden, config.ffn),
    "w2": (config.ffn, config.hidden),
    "w3": (config.hidden, config.ffn),
  }

  def matrix(key, shape):
    return (jax.random.normal(key, shape) / shape[0] ** 0.5).astype(dtype)

  keys = jax.random.split(key, config.num_layers + 2)
  layers = []
  for layer_key in keys[2:]:
    each = jax.random.split(layer_key, len(shapes))
    layer = {
      n: matrix(k, s) for k, (n, s) in zip(each, shapes.items(), strict=True)
    }
    layers.append(layer | {"norm1": _ones(config), "norm2": _ones(config)})
  return {
    "embed": matrix(keys[0], (config.vocab, config.hidden)),
    "head": matrix(keys[1], (config.hidden, config.vocab)),
    "norm": _ones(config),
    "layers": layers,
  }


def init_lora(config: Config, key: jax.Array, dtype: Any = jnp.float32) -> Any:
  """Returns adapters, per layer and matrix a pair of factors."""
  sizes = {name: (config.hidden, config.hidden) for name in ("wq", "wk", "wv")}
  sizes |= {name: (config.hidden, config.ffn) for name in ("w1", "w3")}
  sizes["w2"] = (config.ffn, config.hidden)
  adapters = []
  for layer_key in jax.random.split(key, config.num_layers):
    each = jax.random.split(layer_key, len(_ADAPTED))
    adapters.append(
      {
        name: (
          (jax.random.normal(k, (sizes[name][0], LORA_RANK)) / 16).astype(
            dtype
          ),
          jnp.zeros((LORA_RANK, sizes[name][1]), dtype),
        )
        for name, k in zip(_ADAPTED, each, strict=True)
      }
    )
  return adapters


def prefill(config: Config, params: Any, tokens: jax.Array) -> jax.Array:
  """Returns the logits of the first token to generate, `[batch, vocab]`."""
  x = params["embed"][tokens]
  for number, layer in enumerate(params["layers"]):
    with jax.named_scope(f"layer_{number}"):
      x = _block(config, x, layer, {})
  return _norm(x[:, -1], params["norm"]) @ params["head"]


def lora_step(
  config: Config, params: Any, lora: Any, tokens: jax.Array
) -> tuple[jax.Array, Any]:
  """Returns the loss and the adapters after a step of gradient descent."""
  loss, grads = jax.value_and_grad(
    lambda lora: _loss(config, params, lora, tokens)
  )(lora)
  return loss, jax.tree.map(lambda a, g: a - 0.01 * g, lora, grads)


def _loss(config: Config, params: Any, lora: Any, tokens: jax.Array):
  x = params["embed"][tokens[:, :-1]]
  block = jax.checkpoint(lambda *args: _block(config, *args))
  for number, (layer, adapters) in enumerate(
    zip(params["layers"], lora, strict=True)
  ):
    with jax.named_scope(f"layer_{number}"):
      x = block(x, layer, adapters)
  with jax.named_scope("head_0"):
    logits = _norm(x, params["norm"]) @ params["head"]
    targets = jax.nn.one_hot(tokens[:, 1:], config.vocab, dtype=x.dtype)
    return -(jax.nn.log_softmax(logits) * targets).sum(-1).mean()


def _ones(config: Config) -> jax.Array:
  return jnp.ones(config.hidden)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
  variance = jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True)
  return (x * jax.lax.rsqrt(variance + 1e-6) * scale).astype(x.dtype)


def _block(config: Config, x: jax.Array, layer: Any, adapters: Any):
  def linear(x, name):
    y = x @ layer[name]
    if name in adapters:
      down, up = adapters[name]
      y = y + (x @ down) @ up
    return y

  normed = _norm(x, layer["norm1"])
  shape = (*x.shape[:2], config.num_heads, -1)
  q, k, v = (linear(normed, n).reshape(shape) for n in ("wq", "wk", "wv"))
  mixed = _attend(layers.rotate(q), layers.rotate(k), v).reshape(x.shape)
  x = x + linear(mixed, "wo")
  normed = _norm(x, layer["norm2"])
  gated = jax.nn.silu(linear(normed, "w1")) * linear(normed, "w3")
  return x + linear(gated, "w2")


def _attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
  length = q.shape[1]
  scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
  is_past = jnp.tril(jnp.ones((length, length), bool))
  weights = jax.nn.softmax(jnp.where(is_past, scores, -1e9))
  return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)
