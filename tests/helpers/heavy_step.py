"""A step of products so large that moving a value costs less than making it."""

import jax
import jax.numpy as jnp

_WIDTH, _ROWS, _NUM_LAYERS = 32768, 4096, 6


def _loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
  for number, weights in enumerate(params):
    with jax.named_scope(f"layer_{number}"):
      x = jnp.tanh(x @ weights)
  return jnp.mean(x.astype(jnp.float32) ** 2)


def step(
  params: list[jax.Array], x: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
  """Takes one step of gradient descent; returns parameters and the loss."""
  loss, grads = jax.value_and_grad(_loss)(params, x)
  new = [p - 0.01 * g for p, g in zip(params, grads, strict=True)]
  return new, loss


def arguments() -> tuple[list[jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
  """Returns the shapes of the step's arguments."""
  weights = jax.ShapeDtypeStruct((_WIDTH, _WIDTH), jnp.bfloat16)
  return [weights] * _NUM_LAYERS, jax.ShapeDtypeStruct(
    (_ROWS, _WIDTH), jnp.bfloat16
  )
