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


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, opt_state, x, y):
  """Takes one step of Adam; each device keeps an eighth of everything."""

  def loss_fn(params):
    hidden = x
    for weights in params[:-1]:
      hidden = jax.nn.gelu(hidden @ weights)
      hidden = jax.lax.with_sharding_constraint(hidden, divided)
    return jnp.mean((hidden @ params[-1] - y) ** 2)

  loss, grads = jax.value_and_grad(loss_fn)(params)
  grads = jax.lax.with_sharding_constraint(grads, divided)
  updates, opt_state = adam.update(grads, opt_state)
  return optax.apply_updates(params, updates), opt_state, loss


rng = np.random.default_rng(0)
sizes = [64, *[128] * 6, 1]
params = [
  jax.device_put(
    rng.standard_normal((a, b), dtype=np.float32) / np.sqrt(a), divided
  )
  for a, b in itertools.pairwise(sizes)
]
opt_state = adam.init(params)
data = rng.standard_normal((8192, 65), dtype=np.float32)
x, y = (jax.device_put(part, divided) for part in (data[:, 1:], data[:, :1]))
for _ in range(3):
  params, opt_state, loss = train_step(params, opt_state, x, y)
  print("loss", float(loss))
print(hashlib.sha256(b"".join(np.asarray(p) for p in params)).hexdigest())
