"""Steps in plain JAX: dictionaries of arrays, and functions of them."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out.step import (
  Step,
  checkpointed,
  cross_entropy,
  floats,
  integers,
  make_step,
  make_train_step,
)

Params = Any


def _matrices(
  key: jax.Array, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, jax.Array]:
  """Returns normal arrays of variance one over their last axis but one."""
  keys = jax.random.split(key, len(shapes))
  return {
    name: jax.random.normal(k, shape) * shape[-2] ** -0.5
    for k, (name, shape) in zip(keys, shapes.items(), strict=True)
  }


def _normalize(x: jax.Array) -> jax.Array:
  return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


def _attend(x: jax.Array, fused: jax.Array, num_heads: int) -> jax.Array:
  """Returns causal attention.

  Args:
    x: `[batch, position, feature]`.
    fused: Queries, keys and values, `[batch, position, 3 * feature]`.
    num_heads: Divides the features.
  """
  heads = fused.reshape(*x.shape[:2], 3, num_heads, -1)
  query, key, value = jnp.moveaxis(heads, 2, 0)
  mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
  return mixed.reshape(x.shape)


_LAYER = {"fused": (192, 576), "out": (192, 192)}
_GATED = {"gate": (192, 512), "up": (192, 512), "down": (512, 192)}


def _gated_layer(layer: Params, x: jax.Array) -> jax.Array:
  """Runs attention and a gated feed-forward layer."""
  x = x + _attend(x, _normalize(x) @ layer["fused"], 4) @ layer["out"]
  h = _normalize(x)
  return (
    x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]
  )


def scanned_transformer(policy: str | None = None) -> Step:
  """Builds 6 layers, 192 wide, under one `lax.scan`; AdaFactor."""

  def init(key: jax.Array) -> Params:
    shapes = {name: (6, *s) for name, s in (_LAYER | _GATED).items()}
    return _matrices(key, {"tokens": (1024, 192), **shapes})

  def loss(params: Params, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    layers = {name: params[name] for name in _LAYER | _GATED}
    # Inside a loop, nothing merges the two runs.
    run = checkpointed(_gated_layer, policy, prevent_cse=False)
    x = params["tokens"][tokens]
    x, _ = jax.lax.scan(lambda x, layer: (run(layer, x), None), x, layers)
    return cross_entropy(_normalize(x) @ params["tokens"].T, labels)

  return make_train_step(
    init,
    loss,
    optax.adafactor(1e-3),
    [integers(8, 128), integers(8, 128)],
    num_classes=1024,
  )


def lora(policy: str | None = None) -> Step:
  """Builds adapters of rank 8 beside 4 frozen layers, 192 wide; Adam."""
  frozen_shapes = _LAYER | _GATED
  adapted = ("fused", "out", "up")

  def init(key: jax.Array) -> Params:
    pairs = {}
    for name in adapted:
      rows, columns = frozen_shapes[name]
      pairs[f"{name}_in"] = (rows, 8)
      pairs[f"{name}_out"] = (8, columns)
    return [_matrices(k, pairs) for k in jax.random.split(key, 4)]

  def run_layer(layer: Params, pairs: Params, x: jax.Array) -> jax.Array:
    def apply(name: str, x: jax.Array) -> jax.Array:
      low = x @ pairs[f"{name}_in"]
      return x @ layer[name] + low @ pairs[f"{name}_out"]

    x = x + apply("out", _attend(x, apply("fused", _normalize(x)), 4))
    h = _normalize(x)
    gated = jax.nn.silu(h @ layer["gate"]) * apply("up", h)
    return x + gated @ layer["down"]

  def loss(params: Params, table: jax.Array, *arrays: jax.Array) -> jax.Array:
    *weights, tokens, labels = arrays
    frozen = dict(zip(frozen_shapes, weights, strict=True))
    run = checkpointed(run_layer, policy)
    x = table[tokens]
    for i, pairs in enumerate(params):
      # The frozen weights are drawn with variance one.
      layer = {n: w[i] * w.shape[-2] ** -0.5 for n, w in frozen.items()}
      x = run(layer, pairs, x)
    return cross_entropy(_normalize(x) @ table.T, labels)

  frozen = [floats(4, *shape) for shape in frozen_shapes.values()]
  return make_train_step(
    init,
    loss,
    optax.adam(1e-3),
    [floats(1024, 192), *frozen, integers(8, 128), integers(8, 128)],
    num_classes=1024,
  )


def _choose_tokens(layer: Params, x: jax.Array) -> jax.Array:
  """Runs experts, each on the quarter of a sequence that it likes best.

  Zhou et al., Mixture-of-Experts with Expert Choice Routing, 2022.
  """
  scores = jax.nn.softmax(x @ layer["router"])
  weights, tokens = jax.lax.top_k(scores.swapaxes(1, 2), x.shape[1] // 4)
  rows = jnp.arange(len(x))[:, None, None]
  h = jnp.einsum("bend,edf->benf", x[rows, tokens], layer["expert_in"])
  h = jnp.einsum("benf,efd->bend", jax.nn.gelu(h), layer["expert_out"])
  return jnp.zeros_like(x).at[rows, tokens].add(weights[..., None] * h)


def moe(policy: str | None = None) -> Step:
  """Builds 4 layers, 192 wide, of 8 experts that choose tokens; AdamW."""
  experts = {
    "router": (192, 8),
    "expert_in": (8, 192, 384),
    "expert_out": (8, 384, 192),
  }

  def init(key: jax.Array) -> Params:
    table_key, *keys = jax.random.split(key, 5)
    layers = [_matrices(k, _LAYER | experts) for k in keys]
    return layers, _matrices(table_key, {"tokens": (1024, 192)})

  def run_layer(layer: Params, x: jax.Array) -> jax.Array:
    x = x + _attend(x, _normalize(x) @ layer["fused"], 4) @ layer["out"]
    return x + _choose_tokens(layer, _normalize(x))

  def loss(params: Params, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    layers, table = params[0], params[1]["tokens"]
    run = checkpointed(run_layer, policy)
    x = table[tokens]
    for layer in layers:
      x = run(layer, x)
    return cross_entropy(_normalize(x) @ table.T, labels)

  return make_train_step(
    init,
    loss,
    optax.adamw(1e-3),
    [integers(8, 128), integers(8, 128)],
    num_classes=1024,
  )


def sam_mlp(policy: str | None = None) -> Step:
  """Builds 6 residual dense blocks, 256 wide, under optax.contrib's SAM."""
  optimizer = optax.contrib.sam(
    optax.sgd(0.01, momentum=0.9),
    optax.chain(optax.contrib.normalize(), optax.sgd(0.05)),
    opaque_mode=True,
  )

  def init(key: jax.Array) -> tuple[Params, Any]:
    shapes = {"inner": (256, 1024), "outer": (1024, 256)}
    head_key, *keys = jax.random.split(key, 7)
    blocks = [_matrices(k, shapes) for k in keys]
    params = (blocks, _matrices(head_key, {"head": (256, 10)}))
    return params, optimizer.init(params)

  def run_block(block: Params, x: jax.Array) -> jax.Array:
    return x + jax.nn.gelu(_normalize(x) @ block["inner"]) @ block["outer"]

  def loss(params: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    run = checkpointed(run_block, policy)
    for block in params[0]:
      x = run(block, x)
    return cross_entropy(x @ params[1]["head"], labels)

  def train_step(params: Params, opt_state: Any, *batch: jax.Array) -> Any:
    value, gradients = jax.value_and_grad(loss)(params, *batch)
    updates, opt_state = optimizer.update(
      gradients,
      opt_state,
      params,
      grad_fn=lambda params, _: jax.grad(loss)(params, *batch),
    )
    return optax.apply_updates(params, updates), opt_state, value

  batch = [floats(512, 256), integers(512)]
  return make_step(train_step, init, batch, num_classes=10)
