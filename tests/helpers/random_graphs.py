"""Seeded graphs shared by the tests: small random ones and train steps."""

import dataclasses
import random
from collections.abc import Sequence

from benchmarks.random_programs.orders import all_orders
from jaxmem.graph import Buffer, Graph, Node

__all__ = [
  "all_orders",
  "build",
  "dataflow",
  "random_graph",
  "relabel",
  "sample_orders",
  "train_step",
]


def build(
  predecessors: Sequence[Sequence[int]],
  buffers: Sequence[Buffer],
  *,
  extra_bytes: Sequence[int] = (),
  shares: Sequence[Sequence[tuple[int, int]]] = (),
) -> Graph:
  """Builds a graph of nodes n0, n1, ... from parallel lists."""
  nodes = [
    Node(
      name=f"n{index}",
      predecessors=tuple(before),
      extra_bytes=extra_bytes[index] if extra_bytes else 0,
      shares=tuple(shares[index]) if shares else (),
    )
    for index, before in enumerate(predecessors)
  ]
  return Graph(nodes=tuple(nodes), buffers=tuple(buffers))


def dataflow(
  edges: Sequence[tuple[str, int, Sequence[str]]],
  controls: Sequence[tuple[str, str]] = (),
) -> Graph:
  """Builds a graph in which each node makes one value.

  Args:
    edges: Per node, in a topological order: its name, the size of its value in
      bytes, and the names of the nodes whose values it reads.
    controls: Further precedences, as names of the earlier and the later node.
  """
  index = {name: i for i, (name, _, _) in enumerate(edges)}
  before = {name: [*reads] for name, _, reads in edges}
  for earlier, later in controls:
    before[later].append(earlier)
  nodes = [
    Node(name=name, predecessors=tuple(index[p] for p in before[name]))
    for name, _, _ in edges
  ]
  buffers = []
  for definer, (name, size_bytes, _) in enumerate(edges):
    users = [index[other] for other, _, reads in edges if name in reads]
    buffers.append(
      Buffer(
        name=name,
        size_bytes=size_bytes,
        touchers=tuple(sorted({definer, *users})),
        definer=definer,
      )
    )
  return Graph(nodes=tuple(nodes), buffers=tuple(buffers))


def random_graph(seed: int, num_nodes: int) -> Graph:
  """A random program with every feature of the model, in a random numbering."""
  rng = random.Random(seed)
  density = rng.choice((0.15, 0.3, 0.5))
  before: list[set[int]] = [
    {p for p in range(v) if rng.random() < density / 2}
    for v in range(num_nodes)
  ]
  buffers: list[Buffer] = []
  for definer in range(num_nodes):
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
      later = range(definer + 1, num_nodes)
      users = [v for v in later if rng.random() < density]
      for user in users:
        before[user].add(definer)
      buffers.append(_random_buffer(rng, len(buffers), definer, users))
  for _ in range(rng.choice((0, 1, 2))):
    users = [v for v in range(num_nodes) if rng.random() < density]
    buffers.append(_random_buffer(rng, len(buffers), None, users))
  extra = [rng.choice((0, 0, 0, rng.randint(1, 12))) for _ in before]
  shares = _random_shares(rng, num_nodes, buffers)
  graph = build(
    [sorted(p) for p in before], buffers, extra_bytes=extra, shares=shares
  )
  return relabel(graph, rng.sample(range(num_nodes), num_nodes))


def _random_buffer(
  rng: random.Random, index: int, definer: int | None, users: Sequence[int]
) -> Buffer:
  touchers = {*users} if definer is None else {definer, *users}
  return Buffer(
    name=f"b{index}",
    size_bytes=rng.choice((0, 1, 2, 3, 5, 8, 13, rng.randint(1, 20))),
    touchers=tuple(sorted(touchers)),
    definer=definer,
    live_at_start=definer is None,
    live_at_end=rng.random() < 0.2,
  )


def _random_shares(
  rng: random.Random, num_nodes: int, buffers: Sequence[Buffer]
) -> list[list[tuple[int, int]]]:
  shares: list[list[tuple[int, int]]] = [[] for _ in range(num_nodes)]
  for output, buffer in enumerate(buffers):
    if buffer.definer is None:
      continue
    for operand, other in enumerate(buffers):
      reads = buffer.definer in other.touchers and operand != output
      if reads and other.definer != buffer.definer and rng.random() < 0.5:
        shares[buffer.definer].append((operand, output))
  return shares


def relabel(graph: Graph, new_index: Sequence[int]) -> Graph:
  """The same graph with node i renamed to `new_index[i]`."""
  nodes: list[Node] = list(graph.nodes)
  for index, node in enumerate(graph.nodes):
    before = tuple(sorted(new_index[p] for p in node.predecessors))
    nodes[new_index[index]] = dataclasses.replace(node, predecessors=before)
  buffers = [
    dataclasses.replace(
      buffer,
      touchers=tuple(sorted(new_index[t] for t in buffer.touchers)),
      definer=None if buffer.definer is None else new_index[buffer.definer],
    )
    for buffer in graph.buffers
  ]
  return Graph(nodes=tuple(nodes), buffers=tuple(buffers))


def sample_orders(
  graph: Graph, num_orders: int, seed: int
) -> list[tuple[int, ...]]:
  """Returns random topological orders."""
  rng = random.Random(seed)
  orders = []
  for _ in range(num_orders):
    waiting = [len(node.predecessors) for node in graph.nodes]
    ready = [index for index, count in enumerate(waiting) if not count]
    order = []
    while ready:
      order.append(ready.pop(rng.randrange(len(ready))))
      for successor in graph.successors[order[-1]]:
        waiting[successor] -= 1
        if not waiting[successor]:
          ready.append(successor)
    orders.append(tuple(order))
  return orders


def train_step(
  num_layers: int,
  *,
  seed: int = 0,
  num_branches: int = 1,
  late_updates: bool = True,
) -> Graph:
  """A step like a framework's: forward, backward, then all the updates.

  Args:
    num_layers: The number of layers; three nodes each forward and four
      backward.
    seed: For the sizes.
    num_branches: Parallel chains that join at the loss.
    late_updates: Whether the compiler's order leaves the updates to the end,
      which keeps every gradient alive.
  """
  return _TrainStep(random.Random(seed), late_updates).graph(
    num_layers, num_branches
  )


class _TrainStep:
  """Collects nodes and the values they define."""

  def __init__(self, rng: random.Random, late_updates: bool):
    self._rng = rng
    self._late_updates = late_updates
    self._reads: list[tuple[int, ...]] = []
    self._names: list[str] = []
    self._sizes: list[int] = []
    self._outputs: set[int] = set()
    self._updates: list[tuple[int, int]] = []

  def graph(self, num_layers: int, num_branches: int) -> Graph:
    branches = [self._forward(num_layers) for _ in range(num_branches)]
    loss = self._add("loss", 1, *(saved[-1][0] for saved in branches))
    for saved in branches:
      gradient = loss
      for layer in reversed(range(num_layers)):
        gradient = self._backward(layer, saved[layer], gradient)
    for gradient, layer in self._updates:
      self._outputs.add(self._add(f"update{layer}", 1, gradient))
    return self._finish()

  def _forward(self, num_layers: int) -> list[tuple[int, int, int]]:
    value = self._add("input", self._rng.randint(1, 8))
    saved = []
    for layer in range(num_layers):
      size_bytes = self._rng.randint(4, 40)
      linear = self._add(f"linear{layer}", size_bytes, value)
      mask = self._add(f"mask{layer}", size_bytes // 4, linear)
      value = self._add(f"act{layer}", size_bytes, linear, mask)
      saved.append((value, mask, linear))
    return saved

  def _backward(
    self, layer: int, saved: tuple[int, int, int], gradient: int
  ) -> int:
    value, mask, linear = saved
    size_bytes = self._sizes[linear]
    masked = self._add(f"dact{layer}", size_bytes, gradient, mask)
    weight = self._add(f"dw{layer}", self._rng.randint(20, 120), masked, value)
    scaled = self._add(f"scale{layer}", self._sizes[weight], weight)
    if self._late_updates:
      self._updates.append((scaled, layer))
    else:
      self._outputs.add(self._add(f"update{layer}", 1, scaled))
    return self._add(f"dx{layer}", size_bytes, masked, linear)

  def _add(self, name: str, size_bytes: int, *reads: int) -> int:
    self._names.append(name)
    self._sizes.append(size_bytes)
    self._reads.append(reads)
    return len(self._names) - 1

  def _finish(self) -> Graph:
    touchers: list[list[int]] = [[index] for index in range(len(self._names))]
    for index, reads in enumerate(self._reads):
      for read in reads:
        touchers[read].append(index)
    nodes = [
      Node(name=name, predecessors=reads)
      for name, reads in zip(self._names, self._reads, strict=True)
    ]
    buffers = [
      Buffer(
        name=self._names[index],
        size_bytes=self._sizes[index],
        touchers=tuple(sorted(set(touchers[index]))),
        definer=index,
        live_at_end=index in self._outputs,
      )
      for index in range(len(nodes))
    ]
    return Graph(nodes=tuple(nodes), buffers=tuple(buffers))
