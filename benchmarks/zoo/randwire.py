"""A randomly wired convolutional network."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from benchmarks.zoo import layers, training, vision

# Per node, the nodes it reads, all of them earlier.
Wiring = tuple[tuple[int, ...], ...]


def watts_strogatz(
  num_nodes: int, degree: int, rewiring: float, seed: int
) -> Wiring:
  """Returns a small-world graph, each edge turned toward its later node.

  Args:
    num_nodes: Nodes, on a ring at first.
    degree: Even; the neighbours of a node on the ring.
    rewiring: The probability that an edge gets another random end.
    seed: Seeds numpy's generator; the same graph each time.

  Returns:
    The graph, of `num_nodes * degree / 2` edges; a node that reads none is an
    input.
  """
  generator = np.random.default_rng(seed)
  neighbours = [set[int]() for _ in range(num_nodes)]

  def connect(first: int, second: int) -> None:
    neighbours[first].add(second)
    neighbours[second].add(first)

  ring = [
    (node, (node + step) % num_nodes)
    for step in range(1, degree // 2 + 1)
    for node in range(num_nodes)
  ]
  for edge in ring:
    connect(*edge)
  for node, neighbour in ring:
    free = sorted(set(range(num_nodes)) - neighbours[node] - {node})
    if free and generator.random() < rewiring:
      neighbours[node].remove(neighbour)
      neighbours[neighbour].remove(node)
      connect(node, int(generator.choice(free)))
  return tuple(
    tuple(sorted(other for other in neighbours[node] if other < node))
    for node in range(num_nodes)
  )


class Node(nn.Module):
  """A gated sum, activation, separable convolution, normalization."""

  channels: int
  stride: int

  @nn.compact
  def __call__(self, inputs: Sequence[jax.Array]) -> jax.Array:
    x = inputs[0]
    if len(inputs) > 1:
      zeros = nn.initializers.zeros
      gates = nn.sigmoid(self.param("gates", zeros, (len(inputs),)))
      gated = [gates[i] * value for i, value in enumerate(inputs)]
      x = functools.reduce(jnp.add, gated)
    x = nn.Conv(
      x.shape[-1],
      (3, 3),
      strides=self.stride,
      padding=1,
      feature_group_count=x.shape[-1],
      use_bias=False,
    )(nn.relu(x))
    return layers.ConvNorm(self.channels, 1, activation=None)(x)


class RandWire(nn.Module):
  """A network of random graphs, in the paper's small regime.

  Every node that reads no other reads the stage's input, at stride 2; the mean
  of the nodes that no other reads is the stage's output.

  Xie et al., Exploring Randomly Wired Neural Networks for Image Recognition,
  2019.

  Attributes:
    wirings: One graph per stage; each stage doubles the channels.
    width: Channels of the first stage.
    head: Channels before the classifier.
    num_classes: Of the classifier.
  """

  wirings: tuple[Wiring, ...]
  width: int = 78
  head: int = 1280
  num_classes: int = 1000

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = layers.ConvNorm(self.width // 2, 3, 2)(x)
    x = layers.ConvNorm(self.width, 3, 2, activation=None)(x)
    for stage, wiring in enumerate(self.wirings):
      x = self._run(wiring, x, self.width * 2**stage)
    x = layers.ConvNorm(self.head, 1)(nn.relu(x))
    return nn.Dense(self.num_classes)(x.mean((1, 2)))

  def _run(self, wiring: Wiring, x: jax.Array, channels: int) -> jax.Array:
    values = []
    for sources in wiring:
      node = Node(channels, 1 if sources else 2)
      values.append(node([values[i] for i in sources] if sources else [x]))
    read = {source for sources in wiring for source in sources}
    outputs = [value for i, value in enumerate(values) if i not in read]
    return jnp.stack(outputs).mean(0)


def _wirings(num_nodes: int, num_stages: int) -> tuple[Wiring, ...]:
  return tuple(
    watts_strogatz(num_nodes, 4, 0.75, seed) for seed in range(num_stages)
  )


_MODULES = {
  "full": (RandWire(_wirings(32, 3)), 224),
  "small": (RandWire(_wirings(8, 2), 64, 256, 100), 112),
  "tiny": (RandWire(_wirings(5, 1), 4, 16, 10), 16),
}


def randwire(batch: int, size: str) -> training.Step:
  """Builds RandWire-WS(4, 0.75), 32 nodes a stage, on 224 by 224 images."""
  module, side = _MODULES[size]
  return training.make_step(
    "randwire",
    module,
    vision.image_batch(batch, side),
    num_classes=module.num_classes,
    optimizer=training.momentum(),
  )
