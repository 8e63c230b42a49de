"""A residual convolutional net in Flax NNX: nnx.jit and nnx.Optimizer."""

import hashlib

import jax
import numpy as np
import optax
from flax import nnx


class Net(nnx.Module):
  """A stem, residual blocks, a mean over pixels and a classifier."""

  def __init__(self, rngs: nnx.Rngs):
    self.stem = nnx.Conv(3, 16, (3, 3), rngs=rngs)
    self.blocks = nnx.List(
      nnx.Sequential(
        nnx.Conv(16, 16, (3, 3), rngs=rngs),
        nnx.relu,
        nnx.Conv(16, 16, (3, 3), rngs=rngs),
      )
      for _ in range(4)
    )
    self.head = nnx.Linear(16, 10, rngs=rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns logits for images `[batch, height, width, 3]`."""
    x = self.stem(x)
    for block in self.blocks:
      x = nnx.relu(x + block(x))
    return self.head(x.mean(axis=(1, 2)))


@nnx.jit
def train_step(net: Net, optimizer: nnx.Optimizer, x, labels):
  """Takes one step of Adam in place; returns the loss."""

  def loss_fn(net: Net):
    losses = optax.softmax_cross_entropy_with_integer_labels(net(x), labels)
    return losses.mean()

  loss, grads = nnx.value_and_grad(loss_fn)(net)
  optimizer.update(net, grads)
  return loss


rng = np.random.default_rng(0)
images = rng.standard_normal((16, 32, 32, 3)).astype(np.float32)
classes = rng.integers(0, 10, 16)
model = Net(nnx.Rngs(0))
adam = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
for _ in range(3):
  print("loss", float(train_step(model, adam, images, classes)))
leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
print(hashlib.sha256(b"".join(np.asarray(p) for p in leaves)).hexdigest())
