"""Steps that do more than layers do: transforms, equations, parts, curvature.

They were written down, with those of `several_models`, before the first of them
was planned.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks.held_out.step import (
  Step,
  checkpointed,
  cross_entropy,
  floats,
  integers,
  layers_and_ends,
  make_step,
  make_train_step,
  normal_layers,
  standardize,
)

Params = Any


def fourier_operator() -> Step:
  """Builds 5 layers that multiply the low frequencies of fields; Adam.

  Li et al., Fourier Neural Operator for Parametric Partial Differential
  Equations, 2021: complex numbers, and transforms that XLA calls a library for.
  No policy is taken: jax 0.12 differentiates none that saves complex products.
  """
  width, modes = 24, 12
  shapes = {
    "real": (width, width, modes, modes),
    "imaginary": (width, width, modes, modes),
    "local": (width, width),
  }
  init = layers_and_ends(5, shapes, {"lift": (3, width), "out": (width, 1)})

  def run_layer(layer: Params, x: jax.Array) -> jax.Array:
    frequencies = jnp.fft.rfft2(x, axes=(1, 2))
    weights = jax.lax.complex(layer["real"], layer["imaginary"])
    low = frequencies[:, :modes, :modes]
    low = jnp.einsum("bxyc,cdxy->bxyd", low, weights)
    mixed = jnp.zeros_like(frequencies).at[:, :modes, :modes].set(low)
    spectral = jnp.fft.irfft2(mixed, s=x.shape[1:3], axes=(1, 2))
    return jax.nn.gelu(spectral + x @ layer["local"])

  def loss(params: Params, fields: jax.Array, wanted: jax.Array) -> jax.Array:
    layers, end = params
    x = fields @ end["lift"]
    for layer in layers:
      x = run_layer(layer, x)
    return jnp.square(x @ end["out"] - wanted).mean()

  batch = [floats(8, 64, 64, 3), floats(8, 64, 64, 1)]
  return make_train_step(init, loss, optax.adam(1e-3), batch)


def differential_equation(policy: str | None = None) -> Step:
  """Builds a flow of 16 steps of Runge and Kutta's, in one loop; Adam.

  Chen et al., Neural Ordinary Differential Equations, 2018, with the gradient
  of what is computed instead of an adjoint equation.
  """
  width, num_steps = 128, 16
  shapes = {"first": (width, 256), "second": (256, 256), "third": (256, width)}
  init = layers_and_ends(1, shapes, {"out": (width, 10)})

  def slope(layer: Params, x: jax.Array) -> jax.Array:
    hidden = jax.nn.softplus(x @ layer["first"])
    return jnp.tanh(jax.nn.softplus(hidden @ layer["second"]) @ layer["third"])

  def loss(params: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    (layer,), end = params
    length = 1 / num_steps

    def advance(layer: Params, x: jax.Array) -> jax.Array:
      first = slope(layer, x)
      second = slope(layer, x + length / 2 * first)
      third = slope(layer, x + length / 2 * second)
      fourth = slope(layer, x + length * third)
      return x + length / 6 * (first + 2 * second + 2 * third + fourth)

    again = checkpointed(advance, policy, prevent_cse=False)
    x, _ = jax.lax.scan(
      lambda x, _: (again(layer, x), None), x, length=num_steps
    )
    return cross_entropy(x @ end["out"], labels)

  batch = [floats(256, width), integers(256)]
  return make_train_step(init, loss, optax.adam(1e-3), batch, num_classes=10)


class SpeechNet(nn.Module):
  """Three recurrent layers, each read from both ends."""

  @nn.compact
  def __call__(self, sounds: jax.Array) -> jax.Array:
    x = nn.relu(nn.Conv(128, (5,), (2,))(sounds))
    for _ in range(3):
      both = nn.Bidirectional(nn.RNN(nn.GRUCell(96)), nn.RNN(nn.GRUCell(96)))
      x = nn.LayerNorm()(both(x))
    return nn.Dense(32)(x)


def speech() -> Step:
  """Builds a recognizer of speech that is not aligned; Adafactor."""
  net = SpeechNet()

  def loss(params: Params, sounds: jax.Array, labels: jax.Array) -> jax.Array:
    logits: Any = net.apply(params, sounds)
    silent = jnp.zeros(logits.shape[:2])
    unused = jnp.zeros(labels.shape)
    return optax.ctc_loss(logits, silent, labels, unused).mean()

  return make_train_step(
    lambda key: net.init(key, jnp.zeros((1, 160, 80))),
    loss,
    optax.adafactor(1e-3),
    [floats(16, 160, 80), integers(16, 20)],
    num_classes=32,
  )


def accumulated(policy: str | None = None) -> Step:
  """Builds 4 microbatches in a loop, in half precision, with dropout; AdamW.

  The loss is scaled, and the step is left out where a gradient is not finite.
  """
  width, num_parts = 192, 4
  shapes = {"inner": (width, 4 * width), "outer": (4 * width, width)}
  init = layers_and_ends(
    6, shapes, {"embed": (1024, width), "out": (width, 1024)}
  )
  optimizer = optax.adamw(3e-4)

  def run_layer(layer: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    hidden = jax.nn.silu(standardize(x) @ layer["inner"])
    kept = jax.random.bernoulli(key, 0.9, hidden.shape)
    return x + jnp.where(kept, hidden / 0.9, 0) @ layer["outer"]

  def loss(
    params: Params, scale: jax.Array, tokens: jax.Array, key: jax.Array
  ) -> jax.Array:
    layers, end = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    run = checkpointed(run_layer, policy)
    x = end["embed"][tokens[:, :-1]]
    for layer, each in zip(layers, jax.random.split(key, 6), strict=True):
      x = run(layer, x, each)
    logits = (x @ end["out"]).astype(jnp.float32)
    return scale * cross_entropy(logits, tokens[:, 1:])

  def train_step(params: Params, state: Any, tokens: jax.Array) -> Any:
    opt_state, scale = state
    parts = tokens.reshape(num_parts, -1, tokens.shape[1])
    keys = jax.random.split(jax.random.key(3), num_parts)

    def add(total: Any, part: Any) -> tuple[Any, None]:
      found = jax.value_and_grad(loss)(params, scale, *part)
      return jax.tree.map(jnp.add, total, found), None

    nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    (value, gradients), _ = jax.lax.scan(add, nothing, (parts, keys))
    gradients = jax.tree.map(lambda g: g / (scale * num_parts), gradients)
    is_finite = jnp.isfinite(optax.global_norm(gradients))

    def update(_: None) -> Any:
      updates, new = optimizer.update(gradients, opt_state, params)
      return optax.apply_updates(params, updates), (new, scale)

    params, state = jax.lax.cond(
      is_finite, update, lambda _: (params, (opt_state, scale / 2)), None
    )
    return params, state, value / (scale * num_parts)

  def init_both(key: jax.Array) -> tuple[Params, Any]:
    params = init(key)
    return params, (optimizer.init(params), jnp.float32(1024.0))

  return make_step(train_step, init_both, [integers(32, 65)], num_classes=1024)


def natural_gradient() -> Step:
  """Builds a step along a curvature that a loop solves for; no optimizer.

  Martens, Deep Learning via Hessian-Free Optimization, 2010: conjugate
  gradients on products with the Gauss-Newton matrix, 8 at most.
  """
  width, num_layers = 256, 5

  def init(key: jax.Array) -> tuple[Params, Any]:
    params = normal_layers(key, num_layers, {"weight": (width, width)})
    return params, jax.tree.map(jnp.zeros_like, params)

  def net(params: Params, x: jax.Array) -> jax.Array:
    for layer in params:
      x = jnp.tanh(x @ layer["weight"])
    return x

  def train_step(
    params: Params, last: Params, x: jax.Array, labels: jax.Array
  ) -> Any:
    def run(params: Params) -> jax.Array:
      return net(params, x)

    def loss(outputs: jax.Array) -> jax.Array:
      return cross_entropy(outputs, labels)

    outputs, pull = jax.vjp(run, params)
    value, slope = jax.value_and_grad(loss)(outputs)
    (gradient,) = pull(slope)

    def curve(direction: Params) -> Params:
      _, change = jax.jvp(run, (params,), (direction,))
      _, bent = jax.jvp(jax.grad(loss), (outputs,), (change,))
      (back,) = pull(bent)
      return jax.tree.map(lambda b, d: b + 0.01 * d, back, direction)

    step, _ = jax.scipy.sparse.linalg.cg(curve, gradient, last, maxiter=8)
    params = jax.tree.map(lambda p, s: p - 0.5 * s, params, step)
    return params, step, value

  batch = [floats(512, width), integers(512)]
  return make_step(train_step, init, batch, num_classes=width)
