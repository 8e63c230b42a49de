"""A graph in the paper's terms: edges with one source and any number of sinks.

Steps are numbered from 0. What the paper's edges cannot say is said with more
edges: precedences without data are edges of size 0, and the extra bytes of a
node are an edge without sinks, which exists only while the node runs.
"""

import dataclasses
import functools
import math

from jaxmem.graph import Graph, topological_order
from jaxmem.order import reachability

# CP-SAT wants room in 64 bits for the sums and products that it makes.
_MAX_UNITS = 1 << 53


def check_total(total_bytes: int, unit_bytes: int) -> None:
  """Refuses sizes that leave the solver no room to add them up.

  Args:
    total_bytes: No value of the program is above.
    unit_bytes: What all sizes are divided by.

  Raises:
    ValueError: If there are 2**53 units or more.
  """
  if total_bytes // unit_bytes >= _MAX_UNITS:
    raise ValueError(
      f"All sizes together must be less than 2**53 times {unit_bytes} bytes,"
      f" their greatest common divisor, got {total_bytes} bytes. Round the"
      " sizes up to a larger unit."
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
  """A tensor of the paper.

  Attributes:
    name: What to call it in messages.
    size_bytes: Its size.
    source: The node that creates it; None if it is live at the start.
    sinks: The other nodes that touch it, ascending.
    live_at_end: Whether it is preserved through the last step.
    buffer: The buffer that it stands for; None for extra bytes and controls.
    is_extra: Whether it stands for the extra bytes of its source.
  """

  name: str
  size_bytes: int
  source: int | None
  sinks: tuple[int, ...]
  live_at_end: bool = False
  buffer: int | None = None
  is_extra: bool = False

  @property
  def last_touchers(self) -> tuple[int, ...]:
    """The nodes one of which is the last that needs it."""
    if self.sinks or self.source is None:
      return self.sinks
    return (self.source,)

  @property
  def is_control(self) -> bool:
    """Whether it only says what precedes what."""
    return self.buffer is None and not self.is_extra


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """What the order program and the joint program are about.

  Attributes:
    graph: The program. No node shares, and every buffer's definer precedes its
      other touchers.
  """

  graph: Graph

  def __post_init__(self):
    for node in self.graph.nodes:
      if node.shares:
        raise ValueError(
          f"OLLA's edges cannot share bytes, but node {node.name!r} has"
          " shares. Pass without_shares(graph), whose peaks are not lower, or"
          " contract the graph first."
        )
    for buffer in self.graph.buffers:
      for toucher in buffer.touchers:
        if buffer.definer not in (None, toucher):
          self._check_precedes(buffer.name, buffer.definer, toucher)
    check_total(self.total_bytes, self.unit_bytes)

  def _check_precedes(self, name: str, definer: int, toucher: int):
    if not self.ancestors[toucher] >> definer & 1:
      nodes = self.graph.nodes
      raise ValueError(
        f"Buffer {name!r}: its definer {nodes[definer].name!r} must precede"
        f" all other touchers, but does not precede {nodes[toucher].name!r}."
        " Add it to the predecessors."
      )

  @property
  def num_nodes(self) -> int:
    """How many steps there are."""
    return self.graph.num_nodes

  @functools.cached_property
  def ancestors(self) -> list[int]:
    """Function 2: for each node those that precede it, bit v for node v."""
    return reachability.closure(self.graph)[0]

  @functools.cached_property
  def edges(self) -> tuple[Edge, ...]:
    """Buffers that are ever live, then extra bytes, then controls."""
    return (*self._buffer_edges(), *self._extra_edges(), *self._controls())

  @functools.cached_property
  def placed(self) -> tuple[int, ...]:
    """Indices of the edges that need an address: all but the controls."""
    return tuple(e for e, x in enumerate(self.edges) if not x.is_control)

  @functools.cached_property
  def fan_in(self) -> tuple[tuple[int, ...], ...]:
    """For each node, fi(v): the edges that it is a sink of."""
    edges: list[list[int]] = [[] for _ in self.graph.nodes]
    for e, edge in enumerate(self.edges):
      for sink in edge.sinks:
        edges[sink].append(e)
    return tuple(map(tuple, edges))

  @functools.cached_property
  def fan_out(self) -> tuple[tuple[int, ...], ...]:
    """For each node, fo(v): the edges that it creates; at least one."""
    edges: list[list[int]] = [[] for _ in self.graph.nodes]
    for e, edge in enumerate(self.edges):
      if edge.source is not None:
        edges[edge.source].append(e)
    return tuple(map(tuple, edges))

  @functools.cached_property
  def unit_bytes(self) -> int:
    """Divides all sizes, so that the solver has small numbers to add."""
    return max(math.gcd(*(e.size_bytes for e in self.edges)), 1)

  @property
  def total_bytes(self) -> int:
    """The paper's M: no peak and no address is above."""
    return sum(edge.size_bytes for edge in self.edges)

  def _buffer_edges(self) -> tuple[Edge, ...]:
    return tuple(
      Edge(
        name=buffer.name,
        size_bytes=buffer.size_bytes,
        source=buffer.definer,
        sinks=tuple(t for t in buffer.touchers if t != buffer.definer),
        live_at_end=buffer.live_at_end,
        buffer=index,
      )
      for index, buffer in enumerate(self.graph.buffers)
      if buffer.touchers or buffer.live_at_end
    )

  def _extra_edges(self) -> tuple[Edge, ...]:
    return tuple(
      Edge(
        name=f"extra bytes of {node.name}",
        size_bytes=node.extra_bytes,
        source=index,
        sinks=(),
        is_extra=True,
      )
      for index, node in enumerate(self.graph.nodes)
      if node.extra_bytes
    )

  def _controls(self) -> tuple[Edge, ...]:
    """Edges of size 0, for the precedences that no data edge implies."""
    fed: list[set[int]] = [set() for _ in self.graph.nodes]
    has_edge = [bool(node.extra_bytes) for node in self.graph.nodes]
    for buffer in self.graph.buffers:
      if buffer.definer is not None:
        fed[buffer.definer].update(buffer.touchers)
        has_edge[buffer.definer] = True
    controls = []
    for v, successors in enumerate(self.graph.successors):
      sinks = tuple(sorted(set(successors) - fed[v]))
      if sinks or not has_edge[v]:
        name = f"control of {self.graph.nodes[v].name}"
        controls.append(Edge(name=name, size_bytes=0, source=v, sinks=sinks))
    return tuple(controls)


def without_shares(graph: Graph) -> Graph:
  """Returns the graph with every output apart from every operand.

  Its peaks are those of the graph or higher, by what would have been shared.
  """
  nodes = tuple(dataclasses.replace(n, shares=()) for n in graph.nodes)
  return dataclasses.replace(graph, nodes=nodes)


def default_order(graph: Graph) -> tuple[int, ...]:
  """Returns the compiler's order or, if it is none, some topological order."""
  before = [node.predecessors for node in graph.nodes]
  if all(p < v for v, earlier in enumerate(before) for p in earlier):
    return tuple(range(graph.num_nodes))
  return tuple(topological_order(before))
