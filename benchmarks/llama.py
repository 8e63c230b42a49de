"""Llama-3's decoder, with the residuals named as MaxText names them.

Grattafiori et al., The Llama 3 Herd of Models, 2024: grouped-query attention,
RMSNorm, RoPE and SwiGLU. Master weights and AdamW's state are float32, products
and activations bfloat16. Layers are a Python loop ("unrolled"), or one
`jax.lax.scan` over stacked weights ("scanned").

Order, precision and names follow MaxText (github.com/AI-Hypercomputer/maxtext,
commit e591f30c: models/llama2.py, layers/attentions.py and layers/linears.py of
src/maxtext/): queries and keys get their name after RoPE, and with its default,
`fused_qkv: false`, nothing bears the name qkv_proj.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal
from unittest import mock

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name

from benchmarks.zoo import cross_entropy

Params = Any
Form = Literal["scanned", "unrolled"]
Attention = Literal["xla", "cudnn"]
FORMS: tuple[Form, ...] = ("scanned", "unrolled")

_PROJECTIONS = ("query_proj", "value_proj", "key_proj", "kv_proj", "qkv_proj")
_MLP = ("mlpwi_0", "mlpwi_1", "mlpwi", "mlpwo")
# What each of MaxText's policies keeps, on the device and on the host:
# `get_remat_policy` of layers/decoders.py, and `get_save_and_offload_names` of
# utils/maxtext_utils.py.
_SAVED: dict[str, tuple[str, ...]] = {
  "minimal": (*_PROJECTIONS, "out_proj", *_MLP),
  "save_dot_except_mlp": (*_PROJECTIONS, "out_proj"),
  "save_qkv_proj": _PROJECTIONS,
  "save_out_proj": ("out_proj",),
  "full": (),
}
_OFFLOADED: dict[str, tuple[str, ...]] = {
  "qkv_proj_offloaded": ("query_proj", "value_proj", "key_proj", "kv_proj"),
  "minimal_offloaded": (*_PROJECTIONS, "out_proj", *_MLP),
}
POLICIES = (
  "minimal",
  "save_dot_except_mlp",
  "save_qkv_proj",
  "save_out_proj",
  "qkv_proj_offloaded",
  "minimal_offloaded",
  "full",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
  """Sizes of a decoder and of its batch; those of Llama-3-8B by default.

  Attributes:
    num_layers: How many layers; Llama-3-8B has 32.
    width: Features between layers.
    num_heads: Heads of queries.
    num_key_heads: Heads of keys and values; divides `num_heads`.
    head_width: Features of a head.
    inner: Features within the feed-forward layer.
    vocabulary: Tokens.
    batch: Examples per step.
    length: Tokens of an example.
  """

  num_layers: int = 2
  width: int = 4096
  num_heads: int = 32
  num_key_heads: int = 8
  head_width: int = 128
  inner: int = 14_336
  vocabulary: int = 128_256
  batch: int = 1
  length: int = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """A train step, and the shapes it runs on.

  Attributes:
    function: The step, not jitted: `(params, opt_state, tokens, labels)` to
      `(params, opt_state, loss)`.
    args: Of `jax.ShapeDtypeStruct`s.
    jit_kwargs: What to pass to `jax.jit`: the state is donated.
  """

  function: Callable[..., tuple[Any, Any, jax.Array]]
  args: tuple[Any, ...]
  jit_kwargs: dict[str, Any]


@contextlib.contextmanager
def described_cudnn(version: int = 91_000) -> Iterator[None]:
  """Lets cuDNN's attention be traced and compiled where cuDNN is not.

  jax asks the library which version it is before it traces a call of it, and
  only checks that number; XLA compiles for a described device without it.

  Args:
    version: What jax is told: major 10,000 + minor 100 + patch. By default
      that of the described H200, 9.10.
  """
  module = "jax._src.cudnn.fused_attention_stablehlo"
  with mock.patch(f"{module}.check_cudnn_version", lambda: version):
    yield


def remat_policy(name: str) -> Callable[..., Any]:
  """Returns a policy of MaxText's, for `jax.checkpoint` around a layer.

  Args:
    name: One of `POLICIES`.
  """
  every = jax.checkpoint_policies
  if name in _OFFLOADED:
    return every.save_and_offload_only_these_names(
      names_which_can_be_saved=[],
      names_which_can_be_offloaded=list(_OFFLOADED[name]),
      offload_src="device",
      offload_dst="pinned_host",
    )
  return every.save_only_these_names(*_SAVED[name])


def build(
  shape: Shape,
  form: Form,
  policy: str | None = None,
  attention: Attention = "xla",
) -> Step:
  """Builds a step of AdamW on all parameters.

  Args:
    shape: Its sizes.
    form: Of the stack of layers.
    policy: One of `POLICIES`, around each layer.
    attention: Implementation of `jax.nn.dot_product_attention`.
  """
  optimizer = optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)

  def run(x: jax.Array, layer: Params) -> jax.Array:
    return _layer(x, layer, shape, attention)

  if policy is not None:
    run = jax.checkpoint(
      run,
      policy=remat_policy(policy),
      # Inside a loop, nothing merges the two runs.
      prevent_cse=form == "unrolled",
    )

  def loss(params: Params, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    x = params["tokens"].astype(jnp.bfloat16)[tokens]
    if form == "scanned":
      x, _ = jax.lax.scan(lambda x, p: (run(x, p), None), x, params["layers"])
    else:
      for layer in params["layers"]:
        x = run(x, layer)
    logits = _product(_normalize(x, params["norm"]), params["head"])
    return cross_entropy(logits.astype(jnp.float32), labels)

  def llama_train_step(
    params: Params, opt_state: Any, tokens: jax.Array, labels: jax.Array
  ) -> tuple[Params, Any, jax.Array]:
    value, gradients = jax.value_and_grad(loss)(params, tokens, labels)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value

  params = _params(shape, form)
  batch = jax.ShapeDtypeStruct((shape.batch, shape.length), jnp.int32)
  return Step(
    function=llama_train_step,
    args=(params, jax.eval_shape(optimizer.init, params), batch, batch),
    jit_kwargs={"donate_argnums": (0, 1)},
  )


def _params(shape: Shape, form: Form) -> Params:
  """Returns the shapes of all parameters, float32."""
  width = shape.width
  query = shape.num_heads * shape.head_width
  key = shape.num_key_heads * shape.head_width
  layer = {
    "attention_norm": (width,),
    "query": (width, query),
    "key": (width, key),
    "value": (width, key),
    "out": (query, width),
    "mlp_norm": (width,),
    "gate": (width, shape.inner),
    "up": (width, shape.inner),
    "down": (shape.inner, width),
  }

  def arrays(shapes: dict[str, tuple[int, ...]], *leading: int) -> Params:
    return {
      name: jax.ShapeDtypeStruct((*leading, *own), jnp.float32)
      for name, own in shapes.items()
    }

  outside = {
    "tokens": (shape.vocabulary, width),
    "norm": (width,),
    "head": (width, shape.vocabulary),
  }
  if form == "scanned":
    return {"layers": arrays(layer, shape.num_layers), **arrays(outside)}
  layers = [arrays(layer) for _ in range(shape.num_layers)]
  return {"layers": layers, **arrays(outside)}


def _product(x: jax.Array, weights: jax.Array) -> jax.Array:
  """Multiplies in bfloat16; `weights` are float32."""
  return x @ weights.astype(x.dtype)


def _normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
  """RMSNorm over the last axis, in float32 inside."""
  wide = x.astype(jnp.float32)
  mean = jnp.square(wide).mean(-1, keepdims=True)
  return (wide * jax.lax.rsqrt(mean + 1e-5)).astype(x.dtype) * scale.astype(
    x.dtype
  )


def _rotate(x: jax.Array) -> jax.Array:
  """RoPE: turns pairs of features by angles that grow with the position.

  Args:
    x: `[batch, position, head, feature]`.
  """
  half = x.shape[-1] // 2
  rates = 500_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angles = jnp.arange(x.shape[1])[:, None, None] * rates
  sine, cosine = jnp.sin(angles), jnp.cos(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = (first * cosine - second * sine, second * cosine + first * sine)
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _layer(
  x: jax.Array, layer: Params, shape: Shape, attention: Attention
) -> jax.Array:
  """Runs attention and a gated feed-forward layer, each around a residual.

  Args:
    x: `[batch, position, feature]`, bfloat16.
    layer: Its weights, float32.
    shape: Sizes.
    attention: Implementation of attention.
  """
  x = checkpoint_name(x, "decoder_layer_input")
  normed = _normalize(x, layer["attention_norm"])
  query, key, value = (
    _product(normed, layer[name]).reshape(*x.shape[:2], -1, shape.head_width)
    for name in ("query", "key", "value")
  )
  mixed = jax.nn.dot_product_attention(
    checkpoint_name(_rotate(query), "query_proj"),
    checkpoint_name(_rotate(key), "key_proj"),
    checkpoint_name(value, "value_proj"),
    is_causal=True,
    implementation=attention,
  )
  mixed = checkpoint_name(mixed, "attention_out")
  out = _product(mixed.reshape(*x.shape[:2], -1), layer["out"])
  x = x + checkpoint_name(out, "out_proj")
  normed = _normalize(x, layer["mlp_norm"])
  gate = checkpoint_name(_product(normed, layer["gate"]), "mlpwi_0")
  up = checkpoint_name(_product(normed, layer["up"]), "mlpwi_1")
  down = _product(jax.nn.silu(gate) * up, layer["down"])
  return x + checkpoint_name(down, "mlpwo")
