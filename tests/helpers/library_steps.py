"""The same residual network as a train step of four libraries.

Each function returns (step, args, jit_kwargs), as `jaxmem.plan` takes them.
Nothing is donated but where a step does that itself.
"""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import nnx

_WIDTH, _INNER, _BATCH, _BLOCKS = 32, 128, 256, 3
_X = jnp.zeros((_BATCH, _WIDTH))
_LABELS = jnp.zeros((_BATCH,), jnp.int32)
_ADAM = optax.adam(1e-3)


def _loss(logits):
  return optax.softmax_cross_entropy_with_integer_labels(logits, _LABELS).mean()


def _functional(init, apply):
  params = jax.eval_shape(init, jax.random.key(0), _X)

  def step(params, opt_state, x):
    grads = jax.grad(lambda p: _loss(apply(p, x)))(params)
    updates, opt_state = _ADAM.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state

  return step, (params, jax.eval_shape(_ADAM.init, params), _X), {}


def linen():
  class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
      return x + nn.Dense(_WIDTH)(nn.gelu(nn.Dense(_INNER)(x)))

  class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
      for _ in range(_BLOCKS):
        x = Block()(x)
      return nn.Dense(10, name="head")(x)

  net = Net()
  return _functional(net.init, net.apply)


def haiku():
  def forward(x):
    for _ in range(_BLOCKS):
      x = x + hk.nets.MLP([_INNER, _WIDTH], activation=jax.nn.gelu)(x)
    return hk.Linear(10, name="head")(x)

  net = hk.without_apply_rng(hk.transform(forward))
  return _functional(net.init, net.apply)


def flax_nnx():
  class Block(nnx.Module):
    def __init__(self, rngs):
      self.up = nnx.Linear(_WIDTH, _INNER, rngs=rngs)
      self.down = nnx.Linear(_INNER, _WIDTH, rngs=rngs)

    def __call__(self, x):
      return x + self.down(nnx.gelu(self.up(x)))

  class Net(nnx.Module):
    def __init__(self, rngs):
      self.blocks = nnx.List(Block(rngs) for _ in range(_BLOCKS))
      self.head = nnx.Linear(_WIDTH, 10, rngs=rngs)

    def __call__(self, x):
      for block in self.blocks:
        x = block(x)
      return self.head(x)

  net = Net(nnx.Rngs(0))

  @nnx.jit
  def step(net, optimizer, x):
    grads = nnx.grad(lambda net: _loss(net(x)))(net)
    optimizer.update(net, grads)

  return step, (net, nnx.Optimizer(net, _ADAM, wrt=nnx.Param), _X), {}


def equinox():
  class Block(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __call__(self, x):
      return x + self.down(jax.nn.gelu(self.up(x)))

  class Net(eqx.Module):
    blocks: list[Block]
    head: eqx.nn.Linear

    def __call__(self, x):
      for block in self.blocks:
        x = block(x)
      return self.head(x)

  keys = iter(jax.random.split(jax.random.key(0), 2 * _BLOCKS + 1))
  blocks = [
    Block(
      eqx.nn.Linear(_WIDTH, _INNER, key=next(keys)),
      eqx.nn.Linear(_INNER, _WIDTH, key=next(keys)),
    )
    for _ in range(_BLOCKS)
  ]
  net = Net(blocks, eqx.nn.Linear(_WIDTH, 10, key=next(keys)))

  @eqx.filter_jit
  def step(net, opt_state, x):
    grads = eqx.filter_grad(lambda net: _loss(jax.vmap(net)(x)))(net)
    updates, opt_state = _ADAM.update(grads, opt_state)
    return eqx.apply_updates(net, updates), opt_state

  return step, (net, _ADAM.init(eqx.filter(net, eqx.is_array)), _X), {}


STEPS = {
  "linen": linen,
  "haiku": haiku,
  "nnx": flax_nnx,
  "equinox": equinox,
}
# What each calls the modules of the first layers of its blocks.
FIRST_LAYERS = {
  "linen": [("Net", f"Block_{i}", "Dense_0") for i in range(_BLOCKS)],
  "haiku": [(m, "linear_0") for m in ("mlp", "mlp_1", "mlp_2")],
  "nnx": [("blocks", str(i), "up") for i in range(_BLOCKS)],
  "equinox": [("blocks", str(i), "up") for i in range(_BLOCKS)],
}
# Bytes of the parameters, of which Adam keeps two copies and a counter.
PARAMETER_BYTES = 4 * (
  _BLOCKS * (2 * _WIDTH * _INNER + _WIDTH + _INNER) + 10 * _WIDTH + 10
)
# Of what the first layer of one block returns.
INNER_BYTES = 4 * _BATCH * _INNER
INPUT_BYTES = 4 * _BATCH * _WIDTH
