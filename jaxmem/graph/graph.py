"""The program to plan: nodes, the buffers they touch, and what precedes what.

Everything here is plain, frozen data that checks itself once, at construction.
Nothing in this file knows about XLA, a solver, or a chosen order.
"""

import dataclasses
import functools
import itertools

import numpy as np

from jaxmem.graph.topological import check_acyclic, successors_of

# Sums of sizes must fit signed 64-bit integers.
_INT64_LIMIT = 1 << 63


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
  """A region of memory that some nodes write or read.

  A buffer is live from the step of its first toucher (or from step 0) through
  the step of its last toucher (or the last step). Values that XLA aliases are
  one buffer.

  Attributes:
    name: What to call it in messages.
    size_bytes: Its size, aligned as the target aligns it.
    touchers: Indices of the nodes that define or use it, ascending, unique.
    definer: The node that writes it first; None iff it is live at the start.
    live_at_start: Whether it is live before the first step (a parameter).
    live_at_end: Whether it is live after the last step (an output).
    source: Where in the user's program it comes from.
  """

  name: str
  size_bytes: int
  touchers: tuple[int, ...]
  definer: int | None
  live_at_start: bool = False
  live_at_end: bool = False
  source: str = ""

  def __post_init__(self):
    if self.size_bytes < 0:
      raise ValueError(
        f"Buffer {self.name!r}: size_bytes must not be negative, got"
        f" {self.size_bytes}."
      )
    touchers = self.touchers
    if any(a >= b for a, b in itertools.pairwise(touchers)):
      raise ValueError(
        f"Buffer {self.name!r}: touchers must ascend without repetition, got"
        f" {touchers}. Pass tuple(sorted(set(touchers)))."
      )
    if (self.definer is None) != self.live_at_start:
      raise ValueError(
        f"Buffer {self.name!r}: a definer is expected iff the buffer is not"
        f" live at the start, got definer={self.definer} with"
        f" live_at_start={self.live_at_start}."
      )
    if self.definer is not None and self.definer not in touchers:
      raise ValueError(
        f"Buffer {self.name!r}: definer {self.definer} is not among its"
        f" touchers {touchers}. Add it to them."
      )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
  """One step of the program.

  Attributes:
    name: What to call it in messages.
    predecessors: Indices of nodes that must run before this one, for whatever
      reason: data, control or anti-dependency.
    extra_bytes: Transient bytes that are needed only while it runs.
    shares: Pairs (a, b) of buffer indices: an operand and an output that may be
      placed on top of it when this node is the last toucher of a. While the
      node runs, min(size of a, size of b) is then counted once.
    source: Where in the user's program it comes from.
  """

  name: str
  predecessors: tuple[int, ...]
  extra_bytes: int = 0
  shares: tuple[tuple[int, int], ...] = ()
  source: str = ""

  def __post_init__(self):
    if self.extra_bytes < 0:
      raise ValueError(
        f"Node {self.name!r}: extra_bytes must not be negative, got"
        f" {self.extra_bytes}."
      )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphArrays:
  """The graph's numbers as arrays, for code that works on all of them at once.

  Attributes:
    size_bytes: int64 `[num_buffers]`.
    extra_bytes: int64 `[num_nodes]`.
    live_at_start: bool `[num_buffers]`.
    live_at_end: bool `[num_buffers]`.
    touched: Buffers with at least one toucher, int64 `[num_touched]`.
    touchers: The touchers of `touched`, concatenated.
    toucher_starts: Where in `touchers` each of `touched` begins.
    shares: int64 `[num_shares, 3]`: node, operand buffer, output buffer, in the
      order in which they are to be used; none that saves zero bytes.
  """

  size_bytes: np.ndarray
  extra_bytes: np.ndarray
  live_at_start: np.ndarray
  live_at_end: np.ndarray
  touched: np.ndarray
  touchers: np.ndarray
  toucher_starts: np.ndarray
  shares: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
  """A program whose nodes are listed in the compiler's own order.

  Attributes:
    nodes: The steps; `range(num_nodes)` is the compiler's order.
    buffers: The memory they touch.
    base_bytes: Bytes to subtract from a peak to obtain what XLA reports as
      temp: donated slots and output allocations. Peaks never subtract it.
  """

  nodes: tuple[Node, ...]
  buffers: tuple[Buffer, ...]
  base_bytes: int = 0

  def __post_init__(self):
    self._check_buffers()
    self._check_nodes()
    check_acyclic(
      [node.predecessors for node in self.nodes],
      [node.name for node in self.nodes],
    )

  def _check_buffers(self):
    total_bytes = sum(b.size_bytes for b in self.buffers)
    total_bytes += sum(n.extra_bytes for n in self.nodes)
    if total_bytes >= _INT64_LIMIT:
      raise ValueError(
        "All buffers and extra bytes together must be less than 2**63 bytes,"
        f" got {total_bytes}. Use a larger unit than bytes."
      )
    num_nodes = len(self.nodes)
    for buffer in self.buffers:
      touchers = buffer.touchers
      if touchers and (touchers[0] < 0 or touchers[-1] >= num_nodes):
        raise ValueError(
          f"Buffer {buffer.name!r}: touchers must be node indices below"
          f" {num_nodes}, got {touchers}."
        )

  def _check_nodes(self):
    num_nodes = len(self.nodes)
    for index, node in enumerate(self.nodes):
      for predecessor in node.predecessors:
        if not 0 <= predecessor < num_nodes:
          raise ValueError(
            f"Node {node.name!r}: predecessors must be node indices below"
            f" {num_nodes}, got {predecessor}."
          )
      for operand, output in node.shares:
        self._check_share(index, operand, output)

  def _check_share(self, index: int, operand: int, output: int):
    name = self.nodes[index].name
    for buffer in (operand, output):
      if not 0 <= buffer < len(self.buffers):
        raise ValueError(
          f"Node {name!r}: shares must name buffers below"
          f" {len(self.buffers)}, got {buffer}."
        )
    if operand == output or index not in self.buffers[operand].touchers:
      raise ValueError(
        f"Node {name!r}: the first buffer of a share must be another one that"
        f" the node touches, got {self.buffers[operand].name!r}."
      )
    if self.buffers[output].definer != index:
      raise ValueError(
        f"Node {name!r}: the second buffer of a share must be defined by the"
        f" node, got {self.buffers[output].name!r}."
      )

  @property
  def num_nodes(self) -> int:
    """How many steps an order has."""
    return len(self.nodes)

  @property
  def num_buffers(self) -> int:
    """How many buffers there are, untouched ones included."""
    return len(self.buffers)

  @functools.cached_property
  def successors(self) -> tuple[tuple[int, ...], ...]:
    """For each node, the nodes that list it as a predecessor, ascending."""
    successors = successors_of([node.predecessors for node in self.nodes])
    return tuple(map(tuple, successors))

  @functools.cached_property
  def buffers_of_node(self) -> tuple[tuple[int, ...], ...]:
    """For each node, the buffers that it touches, ascending."""
    buffers: list[list[int]] = [[] for _ in self.nodes]
    for index, buffer in enumerate(self.buffers):
      for toucher in buffer.touchers:
        buffers[toucher].append(index)
    return tuple(map(tuple, buffers))

  @functools.cached_property
  def arrays(self) -> GraphArrays:
    """The numbers of the graph as read-only arrays."""
    touched = [i for i, b in enumerate(self.buffers) if b.touchers]
    touchers = [t for i in touched for t in self.buffers[i].touchers]
    counts = [len(self.buffers[i].touchers) for i in touched]
    sizes = [b.size_bytes for b in self.buffers]
    shares = [
      (index, operand, output)
      for index, node in enumerate(self.nodes)
      for operand, output in node.shares
      if sizes[operand] and sizes[output]
    ]
    return GraphArrays(
      size_bytes=np.array(sizes, np.int64),
      extra_bytes=np.array([n.extra_bytes for n in self.nodes], np.int64),
      live_at_start=np.array([b.live_at_start for b in self.buffers], bool),
      live_at_end=np.array([b.live_at_end for b in self.buffers], bool),
      touched=np.array(touched, np.int64),
      touchers=np.array(touchers, np.int64),
      toucher_starts=np.cumsum([0, *counts[:-1]], dtype=np.int64),
      shares=np.array(shares, np.int64).reshape(-1, 3),
    )
