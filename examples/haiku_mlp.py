"""A multi-layer perceptron in Haiku."""

import functools
import hashlib

import haiku as hk
import jax
import numpy as np
import optax


def forward(x: jax.Array) -> jax.Array:
  """Returns logits for vectors `[batch, 64]`."""
  return hk.nets.MLP([128] * 6 + [10], activation=jax.nn.gelu)(x)


net = hk.without_apply_rng(hk.transform(forward))
adam = optax.adam(1e-3)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params: hk.Params, state: optax.OptState, x, labels):
  """Takes one step of Adam; returns parameters, Adam's state and the loss."""

  def loss_fn(params: hk.Params):
    logits = net.apply(params, x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()

  loss, grads = jax.value_and_grad(loss_fn)(params)
  updates, state = adam.update(grads, state)
  return optax.apply_updates(params, updates), state, loss


rng = np.random.default_rng(0)
vectors = rng.standard_normal((4096, 64)).astype(np.float32)
classes = rng.integers(0, 10, 4096)
params = net.init(jax.random.key(0), vectors)
state = adam.init(params)
for _ in range(3):
  params, state, loss = train_step(params, state, vectors, classes)
  print("loss", float(loss))
leaves = jax.tree.leaves(params)
print(hashlib.sha256(b"".join(np.asarray(p) for p in leaves)).hexdigest())
