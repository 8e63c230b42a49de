"""LoRA: a frozen residual network, trained through matrices of low rank."""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTH, RANK, NUM_BLOCKS = 64, 4, 6
adam = optax.adam(1e-2)


def forward(base, adapters, x):
  """Returns logits for rows `[batch, WIDTH]`."""
  for weights, (down, up) in zip(base["blocks"], adapters, strict=True):
    x = x + jax.nn.gelu(x @ weights + (x @ down) @ up)
  return x @ base["head"]


@functools.partial(jax.jit, donate_argnums=(1, 2))
def train_step(base, adapters, opt_state, x, labels):
  """Takes one step of Adam on the adapters; the network stays as it is."""

  def loss_fn(adapters):
    logits = forward(base, adapters, x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()

  loss, grads = jax.value_and_grad(loss_fn)(adapters)
  updates, opt_state = adam.update(grads, opt_state)
  return optax.apply_updates(adapters, updates), opt_state, loss


def normal(rng, *shape):
  """Returns a random matrix whose products keep the size of what they take."""
  return jnp.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), "float32")


rng = np.random.default_rng(0)
base = {
  "blocks": [normal(rng, WIDTH, WIDTH) for _ in range(NUM_BLOCKS)],
  "head": normal(rng, WIDTH, 10),
}
adapters = [
  (normal(rng, WIDTH, RANK), jnp.zeros((RANK, WIDTH)))
  for _ in range(NUM_BLOCKS)
]
opt_state = adam.init(adapters)
x, labels = normal(rng, 4096, WIDTH), jnp.asarray(rng.integers(0, 10, 4096))
for _ in range(3):
  adapters, opt_state, loss = train_step(base, adapters, opt_state, x, labels)
  print("loss", float(loss))
leaves = jax.tree.leaves(adapters)
print(hashlib.sha256(b"".join(np.asarray(p) for p in leaves)).hexdigest())
