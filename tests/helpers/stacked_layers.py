"""A step of stacked layers, and what its loops could update."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend import core

from jaxmem.compiler import TracedStep
from jaxmem.jaxpr import internals
from jaxmem.versions import scan

LENGTH, WIDTH = 6, 24


def weights(seed: int = 0, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
  keys = jax.random.split(jax.random.key(seed), 2)
  normal = functools.partial(jax.random.normal, dtype=dtype)
  return {
    "inner": normal(keys[0], (LENGTH, WIDTH, WIDTH)) / WIDTH,
    "scale": 1.0 + normal(keys[1], (LENGTH, WIDTH)) / WIDTH,
  }


def loss(params: Any, x: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
  def layer(x, p):
    inner = jnp.tanh(x @ p["inner"].astype(dtype))
    return x + inner * p["scale"].astype(dtype), None

  x, _ = jax.lax.scan(layer, x.astype(dtype), params)
  return jnp.mean(jnp.square(x.astype(jnp.float32)))


def train_step(optimizer: optax.GradientTransformation, dtype: Any) -> Any:
  def step(params, state, x):
    value, gradients = jax.value_and_grad(loss)(params, x, dtype)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value

  return step


def case(
  optimizer: optax.GradientTransformation, dtype: Any = jnp.float32
) -> tuple[Any, tuple[Any, ...]]:
  params = weights()
  x = jax.random.normal(jax.random.key(9), (5, WIDTH))
  return train_step(optimizer, dtype), (params, optimizer.init(params), x)


def updated(
  step: Any, args: Any, donated: Any = (), save_bytes: float = float("inf")
) -> tuple[TracedStep, scan.Updated]:
  """Returns a traced step, and what its loops could update."""
  traced = TracedStep(jax.jit(step, donate_argnums=donated).trace(*args))
  found = scan.update_in_loops(traced.jaxpr, traced.donated, save_bytes)
  return traced, found


def stacks(jaxpr: core.Jaxpr) -> list[Any]:
  """Returns the types of what the last loop of a jaxpr stacks."""
  loop = [e for e in jaxpr.eqns if e.primitive.name == "scan"][-1]
  _, num_carry = internals.scan_counts(loop)
  return [v.aval for v in loop.outvars[num_carry:]]


def run(step: TracedStep, args: Any, times: int = 3) -> Any:
  compiled = step.compile({})
  params, state, x = jax.tree.map(jnp.copy, args)
  value = None
  for _ in range(times):
    params, state, value = compiled(params, state, x)
  return params, state, value


OPTIMIZERS = {
  "sgd": optax.sgd(1e-2),
  "momentum": optax.sgd(1e-2, momentum=0.9, nesterov=True),
  "adamw": optax.adamw(1e-3, weight_decay=0.1),
  "lion": optax.lion(1e-3),
  "rmsprop": optax.rmsprop(1e-3, momentum=0.9),
  "scheduled": optax.adam(optax.cosine_decay_schedule(1e-2, 100)),
}
