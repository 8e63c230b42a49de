"""A multi-layer perceptron over four host devices, with jax.shard_map."""

import functools
import hashlib
import itertools
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("batch",))


def loss_fn(params, x, y):
  """Returns the mean squared error of this device's share of the batch."""
  for weights in params[:-1]:
    x = jax.nn.gelu(x @ weights)
  return jnp.mean((x @ params[-1] - y) ** 2)


@functools.partial(jax.jit, donate_argnums=0)
@functools.partial(
  jax.shard_map,
  mesh=mesh,
  in_specs=(P(), P("batch"), P("batch")),
  out_specs=(P(), P()),
)
def train_step(params, x, y):
  """Takes one step down the mean gradient of all devices."""

  def mean_loss(params):
    return jax.lax.pmean(loss_fn(params, x, y), "batch")

  loss, grads = jax.value_and_grad(mean_loss)(params)
  return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], loss


def put(array, spec):
  """Puts an array on the mesh."""
  return jax.device_put(array, NamedSharding(mesh, spec))


rng = np.random.default_rng(0)
sizes = [64, *[128] * 6, 1]
params = [
  put(rng.standard_normal((a, b), dtype=np.float32) / np.sqrt(a), P())
  for a, b in itertools.pairwise(sizes)
]
data = rng.standard_normal((8192, 65), dtype=np.float32)
x, y = put(data[:, 1:], P("batch")), put(data[:, :1], P("batch"))
for _ in range(3):
  params, loss = train_step(params, x, y)
  print("loss", float(loss))
print(hashlib.sha256(b"".join(np.asarray(p) for p in params)).hexdigest())
