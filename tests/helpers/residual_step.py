"""A deep residual network, whose activations are most of its memory."""

import functools

import jax
import jax.numpy as jnp
import record_modules
from jaxmem_hlo.module import Module

_NUM_LAYERS = 12


def _step(params, x):
  def loss(params):
    hidden = x
    for up, down in params:
      centred = hidden - hidden.mean(-1, keepdims=True)
      scale = jax.lax.rsqrt(hidden.var(-1, keepdims=True) + 1e-5)
      hidden = hidden + jax.nn.gelu(centred * scale @ up) @ down
    return jnp.mean(hidden**2)

  value, grads = jax.value_and_grad(loss)(params)
  return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


@functools.cache
def module() -> Module:
  """Returns what XLA schedules it to, on a CPU."""
  shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
  params = [(shape((64, 256)), shape((256, 64)))] * _NUM_LAYERS
  captured = record_modules.capture(
    _step, (params, shape((1024, 64))), donate_argnums=0
  )
  return captured.module
