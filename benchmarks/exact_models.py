"""Train steps of growing depth, for benchmarks of exact methods."""

import random
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from benchmarks.zoo import layers, training, vision
from jaxmem.experimental import jaxpr_order
from jaxmem.graph import Graph, from_hlo


class Mlp(nn.Module):
  """Dense layers, wide and narrow by turns."""

  depth: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for layer in range(self.depth):
      x = nn.tanh(nn.Dense(256 if layer % 2 else 64)(x))
    return nn.Dense(10)(x)


class Wired(nn.Module):
  """Small layers of random widths, wired at random: two for each of depth."""

  depth: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    generator = random.Random(self.depth)
    values = [x]
    unread = {0}
    for _ in range(2 * self.depth):
      sources = sorted({generator.randrange(len(values)) for _ in range(2)})
      unread -= {*sources}
      unread.add(len(values))
      joined = jnp.concatenate([values[s] for s in sources], axis=-1)
      width = 16 * generator.randint(1, 16)
      values.append(nn.tanh(nn.Dense(width)(joined)))
    last = jnp.concatenate([values[s] for s in sorted(unread)], axis=-1)
    return nn.Dense(10)(last)


class Attention(nn.Module):
  """Transformer blocks."""

  depth: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for _ in range(self.depth):
      x = layers.Block(2, causal=True)(x)
    return nn.Dense(10)(x.mean(1))


class Convolutions(nn.Module):
  """Residual bottlenecks."""

  depth: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for _ in range(self.depth):
      x = vision.Bottleneck(8, 1)(x)
    return nn.Dense(10)(x.mean((1, 2)))


MODELS: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
  "mlp": (Mlp, (64, 32)),
  "wired": (Wired, (64, 32)),
  "attention": (Attention, (8, 16, 32)),
  "convolutions": (Convolutions, (8, 16, 16, 32)),
}


def build(model: str, depth: int) -> training.Step:
  """Builds a train step of so many layers."""
  module, shape = MODELS[model]
  return training.make_step(
    f"{model}_{depth}",
    module(depth),
    [
      jax.ShapeDtypeStruct(shape, jnp.float32),
      jax.ShapeDtypeStruct(shape[:1], jnp.int32),
    ],
    num_classes=10,
    optimizer=optax.sgd(0.1, momentum=0.9),
  )


def build_graph(step: training.Step, source: str) -> Graph:
  """Returns the graph of a step: of its jaxpr, or compiled for the CPU."""
  jit_kwargs = dict(step.jit_kwargs)
  if source in ("eager", "jaxpr"):
    memory: jaxpr_order.MemoryModel = "eager" if source == "eager" else "xla"
    return jaxpr_order.from_function(
      step.function, *step.args, jit_kwargs=jit_kwargs, model=memory
    ).graph
  lowered = jax.jit(step.function, **jit_kwargs).lower(*step.args)
  compiled = lowered.compile()
  executable = compiled.runtime_executable()
  assert executable is not None, "XLA:CPU keeps its modules."
  module = executable.hlo_modules()[0]
  parsed = Module.from_bytes(module.as_serialized_hlo_module_proto())
  model = AssignmentModel(parsed, "cpu")
  return from_hlo(model, parsed.entry).graph
