"""A residual convolutional net in Equinox: eqx.filter_jit with donation."""

import hashlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Net(eqx.Module):
  """A stem, residual blocks, a mean over pixels and a classifier."""

  stem: eqx.nn.Conv2d
  blocks: list[eqx.nn.Conv2d]
  head: eqx.nn.Linear

  def __init__(self, key: jax.Array):
    first, last, *keys = jax.random.split(key, 8)
    self.stem = eqx.nn.Conv2d(3, 16, 3, padding=1, key=first)
    self.blocks = [eqx.nn.Conv2d(16, 16, 3, padding=1, key=k) for k in keys]
    self.head = eqx.nn.Linear(16, 10, key=last)

  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns logits for one image `[3, height, width]`."""
    x = self.stem(x)
    for block in self.blocks:
      x = x + jax.nn.gelu(block(x))
    return self.head(x.mean(axis=(1, 2)))


adam = optax.adam(1e-3)


@eqx.filter_jit(donate="all")
def train_step(net: Net, state: optax.OptState, x, labels):
  """Takes one step of Adam; returns the net, Adam's state and the loss."""

  def loss_fn(net: Net):
    logits = jax.nn.log_softmax(jax.vmap(net)(x))
    return -jnp.take_along_axis(logits, labels[:, None], axis=1).mean()

  loss, grads = eqx.filter_value_and_grad(loss_fn)(net)
  updates, state = adam.update(grads, state)
  return eqx.apply_updates(net, updates), state, loss


rng = np.random.default_rng(0)
images = rng.standard_normal((16, 3, 32, 32), dtype=np.float32)
classes = rng.integers(0, 10, 16)
net = Net(jax.random.key(0))
state = adam.init(eqx.filter(net, eqx.is_array))
for _ in range(3):
  x, labels = jnp.asarray(images), jnp.asarray(classes)
  net, state, loss = train_step(net, state, x, labels)
  print("loss", float(loss))
leaves = jax.tree.leaves(eqx.filter(net, eqx.is_array))
print(hashlib.sha256(b"".join(np.asarray(p) for p in leaves)).hexdigest())
