"""A multi-layer perceptron over eight host devices, all its state divided."""

import functools
import hashlib
import itertools
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
divided = NamedSharding(mesh, P("data", None))
adam = optax.adam(1e-3)
rng = np.random.default_rng(0)
params = [
  rng.standard_normal((rows, columns), dtype=np.float32) / np.sqrt(rows)
  for rows, columns in itertools.pairwise([64, *[128] * 6, 1])
]
state = (params, adam.init(params))
# Each device keeps an eighth of everything but Adam's count.
shardings = jax.tree.map(
  lambda leaf: divided if leaf.ndim else NamedSharding(mesh, P()), state
)


@functools.partial(
  jax.jit, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P()))
)
def train_step(state, x, y):
  """Takes one step of Adam; returns parameters with moments, and the loss."""
  params, opt_state = state

  def loss_fn(params):
    hidden = x
    for weights in params[:-1]:
      hidden = jax.nn.gelu(hidden @ weights)
      hidden = jax.lax.with_sharding_constraint(hidden, divided)
    return jnp.mean((hidden @ params[-1] - y) ** 2)

  loss, grads = jax.value_and_grad(loss_fn)(params)
  updates, opt_state = adam.update(grads, opt_state)
  return (optax.apply_updates(params, updates), opt_state), loss


state = jax.device_put(state, shardings)
data = rng.standard_normal((8192, 65), dtype=np.float32)
x, y = (jax.device_put(part, divided) for part in (data[:, 1:], data[:, :1]))
for _ in range(3):
  state, loss = train_step(state, x, y)
  print("loss", float(loss))
print(hashlib.sha256(b"".join(np.asarray(p) for p in state[0])).hexdigest())
