"""A branching convolutional net in Flax Linen, its TrainState donated."""

import functools
import hashlib

import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state


class Net(nn.Module):
  """Blocks of three branches each, a mean over pixels and a classifier."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns logits for images `[batch, height, width, 3]`."""
    x = nn.Conv(16, (3, 3))(x)
    for _ in range(3):
      branches = [nn.relu(nn.Conv(16, (size, size))(x)) for size in (1, 3, 5)]
      x = nn.relu(x + nn.Conv(16, (1, 1))(jax.numpy.concatenate(branches, -1)))
    return nn.Dense(10)(x.mean(axis=(1, 2)))


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state: train_state.TrainState, x, labels):
  """Takes one step of Adam; returns the new state and the loss."""

  def loss_fn(params):
    logits = state.apply_fn(params, x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()

  loss, grads = jax.value_and_grad(loss_fn)(state.params)
  return state.apply_gradients(grads=grads), loss


rng = np.random.default_rng(0)
images = rng.standard_normal((16, 32, 32, 3)).astype(np.float32)
classes = rng.integers(0, 10, 16)
net = Net()
state = train_state.TrainState.create(
  apply_fn=net.apply,
  params=net.init(jax.random.key(0), images),
  tx=optax.adam(1e-3),
)
for _ in range(3):
  state, loss = train_step(state, images, classes)
  print("loss", float(loss))
leaves = jax.tree.leaves(state.params)
print(hashlib.sha256(b"".join(np.asarray(p) for p in leaves)).hexdigest())
