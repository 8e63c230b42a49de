"""Decoders whose authors have done something about memory by themselves.

A loss in chunks, attention with a gradient of its own, a state that is carried
from chunk to chunk, experts in a loop. They were written down before the first
of them was planned.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out.step import (
  Step,
  checkpointed,
  cross_entropy,
  encoder_layer,
  encoder_shapes,
  integers,
  layers_and_ends,
  make_train_step,
  standardize,
)

Params = Any


def rotated(x: jax.Array) -> jax.Array:
  """Returns (batch, length, heads, size), turned by its place (RoPE)."""
  half = x.shape[-1] // 2
  rates = 10_000.0 ** -(jnp.arange(half) / half)
  angles = (jnp.arange(x.shape[1])[:, None] * rates)[None, :, None]
  one, other = x[..., :half], x[..., half:]
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1)


def chunked_loss(policy: str | None = None) -> Step:
  """Builds 4 layers with grouped queries; a loss in 8 chunks; Muon.

  Logits are made of an eighth of the tokens at a time, and made again for their
  gradient, whatever the policy of the layers is.
  """
  width, num_heads, num_groups, num_words = 192, 6, 2, 4096
  shapes = {
    "query": (width, width),
    "both": (width, 2 * num_groups * width // num_heads),
    "mixed": (width, width),
    "gate": (width, 3 * width),
    "inner": (width, 3 * width),
    "outer": (3 * width, width),
  }

  def run_layer(layer: Params, x: jax.Array) -> jax.Array:
    y = standardize(x)
    query = (y @ layer["query"]).reshape(*x.shape[:2], num_heads, -1)
    both = (y @ layer["both"]).reshape(*x.shape[:2], 2 * num_groups, -1)
    key, value = both[:, :, :num_groups], both[:, :, num_groups:]
    mixed = jax.nn.dot_product_attention(
      rotated(query), rotated(key), value, is_causal=True
    )
    x += mixed.reshape(x.shape) @ layer["mixed"]
    y = standardize(x)
    gate = jax.nn.silu(y @ layer["gate"])
    return x + (gate * (y @ layer["inner"])) @ layer["outer"]

  def loss(params: Params, tokens: jax.Array) -> jax.Array:
    layers, ends = params
    x = ends["words"][tokens[:, :-1]]
    for layer in layers:
      x = checkpointed(run_layer, policy)(layer, x)
    chunks = standardize(x).reshape(8, -1, width)

    @jax.checkpoint
    def add(total: jax.Array, chunk: Any) -> tuple[jax.Array, None]:
      states, labels = chunk
      return total + cross_entropy(states @ ends["out"], labels), None

    labels = tokens[:, 1:].reshape(8, -1)
    total, _ = jax.lax.scan(add, jnp.zeros(()), (chunks, labels))
    return total / 8

  ends = {"words": (num_words, width), "out": (width, num_words)}
  return make_train_step(
    layers_and_ends(4, shapes, ends),
    loss,
    optax.contrib.muon(1e-3),
    [integers(4, 257)],
    num_classes=num_words,
  )


def _in_parts(x: jax.Array) -> jax.Array:
  """Returns (parts, batch, 64, heads, size) of (batch, length, heads, size)."""
  return x.reshape(len(x), -1, 64, *x.shape[2:]).swapaxes(0, 1)


@jax.custom_vjp
def attention_by_rows(
  query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
  """Returns attention of (batch, length, heads, size), 64 queries at a time."""
  return _attend_by_rows(query, key, value)[0]


def _attend_by_rows(
  query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, Any]:
  size = query.shape[-1]

  def attend(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    scores = jnp.einsum("bqhd,bkhd->bhqk", rows, key) / size**0.5
    total = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - total[..., None])
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value), total

  mixed, totals = jax.lax.map(attend, _in_parts(query))
  mixed = mixed.swapaxes(0, 1).reshape(query.shape)
  return mixed, (query, key, value, mixed, totals)


def _gradient_by_rows(
  kept: Any, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  query, key, value, mixed, totals = kept
  size = query.shape[-1]

  def add(sums: Any, rows: Any) -> tuple[Any, jax.Array]:
    key_sum, value_sum = sums
    query, mixed, gradient, total = rows
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / size**0.5
    weights = jnp.exp(scores - total[..., None])
    value_sum += jnp.einsum("bhqk,bqhd->bkhd", weights, gradient)
    of_weights = jnp.einsum("bqhd,bkhd->bhqk", gradient, value)
    mean = jnp.einsum("bqhd,bqhd->bhq", gradient, mixed)
    of_scores = weights * (of_weights - mean[..., None]) / size**0.5
    key_sum += jnp.einsum("bhqk,bqhd->bkhd", of_scores, query)
    of_query = jnp.einsum("bhqk,bkhd->bqhd", of_scores, key)
    return (key_sum, value_sum), of_query

  zeros = (jnp.zeros_like(key), jnp.zeros_like(value))
  rows = (_in_parts(query), _in_parts(mixed), _in_parts(gradient), totals)
  (of_key, of_value), of_query = jax.lax.scan(add, zeros, rows)
  return of_query.swapaxes(0, 1).reshape(query.shape), of_key, of_value


attention_by_rows.defvjp(_attend_by_rows, _gradient_by_rows)


def _tagger(
  shapes: Mapping[str, tuple[int, ...]],
  run_layer: Callable[[Params, jax.Array], jax.Array],
  policy: str | None,
) -> Step:
  """Builds 4 layers, 128 wide, that label each of 512 tokens; AdamW."""

  def loss(params: Params, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    layers, ends = params
    x = ends["words"][tokens]
    for layer in layers:
      x = checkpointed(run_layer, policy)(layer, x)
    return cross_entropy(standardize(x) @ ends["out"], labels)

  ends = {"words": (256, 128), "out": (128, 256)}
  return make_train_step(
    layers_and_ends(4, shapes, ends),
    loss,
    optax.adamw(1e-3),
    [integers(4, 512), integers(4, 512)],
    num_classes=256,
  )


def own_attention(policy: str | None = None) -> Step:
  """Builds 4 layers whose attention has a gradient of its own; AdamW.

  Dao et al., FlashAttention, 2022, as a user writes it: a loop over rows in a
  `jax.custom_vjp`, so that no square of the length is kept.
  """

  def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return attention_by_rows(rotated(query), rotated(key), value)

  run_layer = functools.partial(encoder_layer, num_heads=4, attend=attend)
  return _tagger(encoder_shapes(128), run_layer, policy)


def linear_attention(policy: str | None = None) -> Step:
  """Builds 4 layers that carry a state over chunks of 64 tokens; AdamW.

  Sun et al., Retentive Network, 2023: attention within a chunk, and a state
  that fades, of all chunks before it, in a loop in each layer.
  """
  width, num_heads, chunk = 128, 4, 64
  shapes = {
    **{name: (width, width) for name in ("query", "key", "value", "gate")},
    "mixed": (width, width),
    "inner": (width, 2 * width),
    "outer": (2 * width, width),
  }
  rates = 1 - 2.0 ** (-5.0 - jnp.arange(num_heads))
  places = jnp.arange(chunk)
  ages = (places[:, None] - places[None])[None]
  fading = jnp.where(ages >= 0, rates[:, None, None] ** abs(ages), 0.0)
  of_state = rates[:, None] ** (places + 1)
  to_state = rates[:, None] ** (chunk - 1 - places)

  def advance(state: jax.Array, parts: Any) -> tuple[jax.Array, jax.Array]:
    query, key, value = parts
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * fading
    inside = jnp.einsum("bhqk,bkhd->bqhd", scores, value)
    before = jnp.einsum("bqhd,bhde,hq->bqhe", query, state, of_state)
    added = jnp.einsum("bkhd,bkhe,hk->bhde", key, value, to_state)
    state = state * (rates**chunk)[:, None, None] + added
    return state, inside + before

  def run_layer(layer: Params, x: jax.Array) -> jax.Array:
    y = standardize(x)

    def chunks(name: str) -> jax.Array:
      z = (y @ layer[name]).reshape(len(x), -1, chunk, num_heads, 32)
      return z.swapaxes(0, 1)

    zero = jnp.zeros((len(x), num_heads, 32, 32))
    parts = (chunks("query"), chunks("key"), chunks("value"))
    _, mixed = jax.lax.scan(advance, zero, parts)
    mixed = standardize(mixed.swapaxes(0, 1)).reshape(x.shape)
    x += (jax.nn.silu(y @ layer["gate"]) * mixed) @ layer["mixed"]
    hidden = jax.nn.gelu(standardize(x) @ layer["inner"])
    return x + hidden @ layer["outer"]

  return _tagger(shapes, run_layer, policy)


def scanned_experts(policy: str | None = None) -> Step:
  """Builds 6 layers in a loop, 4 experts each, in half precision; AdamW.

  Fedus et al., Switch Transformers, 2022: each token is sent to one expert, as
  far as there is room, and the loop gives a loss of balance beside its state.
  """
  width, num_experts, num_heads, capacity = 128, 4, 4, 320
  shapes = {
    "joint": (width, 3 * width),
    "mixed": (width, width),
    "router": (width, num_experts),
    "inner": (num_experts, width, 2 * width),
    "outer": (num_experts, 2 * width, width),
  }

  def send(layer: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    flat = x.reshape(-1, width)
    chances = jax.nn.softmax((flat @ layer["router"]).astype(jnp.float32))
    chosen = jax.nn.one_hot(chances.argmax(-1), num_experts)
    place = (jnp.cumsum(chosen, 0) * chosen).sum(-1).astype(jnp.int32) - 1
    slots = jax.nn.one_hot(place, capacity, dtype=x.dtype)
    routes = chosen.astype(x.dtype)[:, :, None] * slots[:, None]
    sent = jnp.einsum("tec,td->ecd", routes, flat)
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", sent, layer["inner"]))
    got = jnp.einsum("ecf,efd->ecd", hidden, layer["outer"])
    weight = (chances * chosen).sum(-1, keepdims=True).astype(x.dtype)
    back = jnp.einsum("tec,ecd->td", routes, got) * weight
    balance = (chosen.mean(0) * chances.mean(0)).sum() * num_experts
    return back.reshape(x.shape), balance

  def run_layer(x: jax.Array, layer: Params) -> tuple[jax.Array, jax.Array]:
    layer = jax.tree.map(lambda array: array.astype(jnp.bfloat16), layer)
    joint = (standardize(x) @ layer["joint"]).reshape(
      *x.shape[:2], 3, num_heads, -1
    )
    query, key, value = jnp.moveaxis(joint, 2, 0)
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x += mixed.reshape(x.shape) @ layer["mixed"]
    back, balance = send(layer, standardize(x))
    return x + back, balance

  def loss(params: Params, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    layers, ends = params
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)
    x = ends["words"][tokens].astype(jnp.bfloat16)
    run = checkpointed(run_layer, policy, prevent_cse=False)
    x, balances = jax.lax.scan(run, x, stacked)
    logits = standardize(x).astype(jnp.float32) @ ends["out"]
    return cross_entropy(logits, labels) + 0.01 * balances.mean()

  ends = {"words": (1024, width), "out": (width, 1024)}
  return make_train_step(
    layers_and_ends(6, shapes, ends),
    loss,
    optax.adamw(1e-3),
    [integers(4, 256), integers(4, 256)],
    num_classes=1024,
  )
