"""Steps of several models: one that acts, two that compete, one that teaches.

They were written down, with those of `unusual_steps`, before the first of them
was planned.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks.held_out.step import (
  Step,
  checkpointed,
  floats,
  integers,
  layers_and_ends,
  make_step,
  standardize,
  with_optimizer,
)

Params = Any


def _act(params: Params, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the logarithms of what is likely, and what is expected."""
  layers, end = params
  for layer in layers:
    hidden = jnp.tanh(standardize(seen) @ layer["inner"])
    seen = seen + hidden @ layer["outer"]
  value = (seen @ end["value"])[..., 0]
  return jax.nn.log_softmax(seen @ end["actions"]), value


def _advantages(values: jax.Array, rewards: jax.Array) -> jax.Array:
  """Returns by how much rewards exceed what was expected, discounted."""

  def step(after: Any, now: Any) -> tuple[Any, jax.Array]:
    advantage, next_value = after
    value, reward = now
    surprise = reward + 0.99 * next_value - value
    advantage = surprise + 0.95 * 0.99 * advantage
    return (advantage, value), advantage

  first = jnp.zeros_like(values[0]), values[-1]
  return jax.lax.scan(step, first, (values, rewards), reverse=True)[1]


def _policy_loss(params: Params, part: Any) -> jax.Array:
  """Returns what is lost on a minibatch."""
  seen, actions, before, gained, returns = part
  all_now, values = _act(params, seen)
  now = jnp.take_along_axis(all_now, actions[:, None], 1)[:, 0]
  ratio = jnp.exp(now - before)
  gained = (gained - gained.mean()) / (gained.std() + 1e-8)
  clipped = jnp.clip(ratio, 0.8, 1.2) * gained
  entropy = -(jnp.exp(all_now) * all_now).sum(-1).mean()
  least = jnp.minimum(ratio * gained, clipped).mean()
  return jnp.square(values - returns).mean() - least - 0.01 * entropy


def policy_epochs() -> Step:
  """Builds 4 epochs of 4 minibatches on one rollout, in two loops; Adam.

  Schulman et al., Proximal Policy Optimization Algorithms, 2017, with
  generalized advantages from a loop that runs backward.
  """
  num_steps, num_envs, size, num_actions = 64, 32, 128, 8
  optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))
  shapes = {"inner": (size, size), "outer": (size, size)}
  init = layers_and_ends(
    3, shapes, {"actions": (size, num_actions), "value": (size, 1)}
  )

  def train_step(
    params: Params,
    state: Any,
    seen: jax.Array,
    rewards: jax.Array,
    actions: jax.Array,
  ) -> Any:
    log_probabilities, values = _act(params, seen)
    before = jnp.take_along_axis(log_probabilities, actions[..., None], 2)
    gained = _advantages(values, rewards)
    rollout = (seen, actions, before[..., 0], gained, gained + values)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout)

    def minibatch(carry: Any, part: Any) -> tuple[Any, jax.Array]:
      params, state = carry
      value, gradients = jax.value_and_grad(_policy_loss)(params, part)
      updates, state = optimizer.update(gradients, state, params)
      return (optax.apply_updates(params, updates), state), value

    def epoch(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
      shuffled = jax.random.permutation(key, num_steps * num_envs)
      parts = jax.tree.map(
        lambda x: x[shuffled].reshape(4, -1, *x.shape[1:]), flat
      )
      return jax.lax.scan(minibatch, carry, parts)

    keys = jax.random.split(jax.random.key(1), 4)
    (params, state), values = jax.lax.scan(epoch, (params, state), keys)
    return params, state, values.mean()

  batch = [
    floats(num_steps, num_envs, size),
    floats(num_steps, num_envs),
    integers(num_steps, num_envs),
  ]
  init_both = with_optimizer(init, optimizer)
  return make_step(train_step, init_both, batch, num_classes=num_actions)


class Generator(nn.Module):
  """Makes images of 32 x 32 of noise."""

  @nn.compact
  def __call__(self, noise: jax.Array) -> jax.Array:
    x = nn.Dense(8 * 8 * 64)(noise).reshape(-1, 8, 8, 64)
    for features in (64, 32):
      x = nn.leaky_relu(nn.GroupNorm(8)(x), 0.2)
      x = nn.ConvTranspose(features, (4, 4), (2, 2))(x)
    return jnp.tanh(nn.Conv(3, (3, 3))(x))


class Critic(nn.Module):
  """Says how real images look."""

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    x = images
    for features in (32, 64, 128):
      x = nn.leaky_relu(nn.Conv(features, (4, 4), (2, 2))(x), 0.2)
    return nn.Dense(1)(x.reshape(len(x), -1))[:, 0]


def adversaries() -> Step:
  """Builds a generator and a critic that learn in one step; two Adams.

  Gulrajani et al., Improved Training of Wasserstein GANs, 2017: the critic is
  kept smooth by a penalty, the gradient of a gradient.
  """
  generator, critic = Generator(), Critic()
  optimizers = optax.adam(1e-4, 0.5), optax.adam(4e-4, 0.5)

  def penalty(params: Params, images: jax.Array) -> jax.Array:
    def total(images: jax.Array) -> jax.Array:
      return jnp.sum(critic.apply(params, images))  # pyright: ignore

    slopes = jax.grad(total)(images)
    norms = jnp.sqrt(jnp.square(slopes).sum((1, 2, 3)) + 1e-12)
    return jnp.square(norms - 1).mean()

  def critic_loss(
    params: Params, real: jax.Array, fake: jax.Array, share: jax.Array
  ) -> jax.Array:
    between = share * real + (1 - share) * fake
    gap: Any = critic.apply(params, fake)
    gap -= critic.apply(params, real)
    return gap.mean() + 10 * penalty(params, between)

  def generator_loss(
    params: Params, against: Params, noise: jax.Array
  ) -> jax.Array:
    scores: Any = critic.apply(against, generator.apply(params, noise))
    return -scores.mean()

  def train_step(
    params: Params, states: Any, noise: jax.Array, real: jax.Array
  ) -> Any:
    made, judged = params
    fake: Any = generator.apply(made, noise)
    share = jax.random.uniform(jax.random.key(2), (len(real), 1, 1, 1))
    lost, slopes = jax.value_and_grad(critic_loss)(judged, real, fake, share)
    updates, critic_state = optimizers[1].update(slopes, states[1], judged)
    judged = optax.apply_updates(judged, updates)
    slopes = jax.grad(generator_loss)(made, judged, noise)
    updates, state = optimizers[0].update(slopes, states[0], made)
    made = optax.apply_updates(made, updates)
    return (made, judged), (state, critic_state), lost

  def init(key: jax.Array) -> tuple[Params, Any]:
    first, second = jax.random.split(key)
    made = generator.init(first, jnp.zeros((1, 64)))
    judged = critic.init(second, jnp.zeros((1, 32, 32, 3)))
    return (made, judged), (
      optimizers[0].init(made),
      optimizers[1].init(judged),
    )

  batch = [floats(32, 64), floats(32, 32, 32, 3)]
  return make_step(train_step, init, batch, num_classes=1)


def _run_block(block: Params, x: jax.Array) -> jax.Array:
  """Attends with 4 heads to all patches, and looks at each."""
  mixed = (standardize(x) @ block["mix"]).reshape(*x.shape[:2], 3, 4, -1)
  y = jax.nn.dot_product_attention(*jnp.unstack(mixed, axis=2))
  x += y.reshape(x.shape) @ block["out"]
  return x + jax.nn.gelu(standardize(x) @ block["inner"]) @ block["outer"]


def self_distillation(policy: str | None = None) -> Step:
  """Builds a student of 4 blocks that follows its own average; LAMB.

  Caron et al., Emerging Properties in Self-Supervised Vision Transformers,
  2021: the teacher moves with the student, and so does the centre of what it
  says; two views of each image.
  """
  width, num_out = 128, 512
  shapes = {
    "mix": (width, 3 * width),
    "out": (width, width),
    "inner": (width, 4 * width),
    "outer": (4 * width, width),
  }
  init = layers_and_ends(
    4, shapes, {"patch": (192, width), "head": (width, num_out)}
  )
  optimizer = optax.lamb(1e-3)

  def look(params: Params, patches: jax.Array, policy: str | None) -> jax.Array:
    blocks, end = params
    run = checkpointed(_run_block, policy)
    x = patches @ end["patch"]
    for block in blocks:
      x = run(block, x)
    return standardize(x.mean(1)) @ end["head"]

  def train_step(
    params: Params, state: Any, one: jax.Array, other: jax.Array
  ) -> Any:
    opt_state, teacher, centre = state
    said = [look(teacher, view, None) for view in (one, other)]
    wanted = [jax.nn.softmax((each - centre) / 0.04) for each in said]

    def loss(params: Params) -> jax.Array:
      found = [
        jax.nn.log_softmax(look(params, view, policy) / 0.1)
        for view in (other, one)
      ]
      pairs = zip(wanted, found, strict=True)
      return -jnp.stack([(w * f).sum(-1) for w, f in pairs]).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    params = optax.apply_updates(params, updates)
    teacher = optax.incremental_update(params, teacher, 0.004)
    centre = 0.9 * centre + 0.1 * jnp.concatenate(said).mean(0)
    return params, (opt_state, teacher, centre), value

  def init_both(key: jax.Array) -> tuple[Params, Any]:
    params = init(key)
    teacher = jax.tree.map(jnp.copy, params)
    return params, (optimizer.init(params), teacher, jnp.zeros(num_out))

  batch = [floats(16, 64, 192), floats(16, 64, 192)]
  return make_step(train_step, init_both, batch, num_classes=1)
