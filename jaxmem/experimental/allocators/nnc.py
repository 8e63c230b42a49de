"""NNC's tensor allocation: tuples of tensors into a graph of reuse.

"The NNC Tensor Allocation Algorithm", libnnc's documentation. Two graphs. In
the interference graph, tensors that must not share bytes are neighbours. The
allocation graph leads from the region's free bytes (the source) over tensors
back to free bytes (the sink); an edge of weight w says that its end takes w
bytes of its begin. Tensors are inserted into it until all are there.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from jaxmem.experimental.allocators.in_place import chains, hand_overs
from jaxmem.experimental.allocators.parallel import (
  Relation,
  Safety,
  relation,
  with_sharing_edges,
)
from jaxmem.experimental.allocators.trace import Result, Trace, arena_result

_SOURCE = -1
_SINK = -2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nnc:
  """NNC's allocator.

  Attributes:
    max_tuple: How many tensors are inserted together, at most 3.
    open_edges: Whether a tensor may also be inserted into an edge of which one
      end is the source or the sink. The document's words exclude these; but
      then a chain of equal tensors, in which none has a larger one to pair up
      with, reuses nothing.
    in_place: Whether outputs may be written over operands; the document has
      them apart.
    safety: "ancestors" is the document's: tensors interfere unless the graph
      orders them. See `jaxmem.experimental.allocators.parallel`.
  """

  max_tuple: int = 3
  open_edges: bool = True
  in_place: bool = False
  safety: Safety = "serial"

  def __post_init__(self):
    if self.max_tuple not in (1, 2, 3):
      raise ValueError(f"max_tuple must be 1, 2 or 3, got {self.max_tuple}.")

  @property
  def name(self) -> str:
    """For example "nnc, ancestors"."""
    parts = ["nnc"]
    if self.max_tuple < 3:
      parts.append(f"tuples of {self.max_tuple}")
    if not self.open_edges:
      parts.append("inner edges only")
    if self.in_place:
      parts.append("in-place")
    if self.safety != "serial":
      parts.append(self.safety)
    return ", ".join(parts)

  def run(self, trace: Trace) -> Result:
    """Serves a trace; see `Allocator`."""
    related = relation(trace, self.safety)

    def may_overwrite(operand: int, output: int) -> bool:
      definer = trace.buffers[output].definer
      return definer is not None and related.allows(operand, definer)

    over = hand_overs(trace, may_overwrite) if self.in_place else {}
    tensors = Tensors(trace, related, chains(trace, over))
    offsets = _Insertion(self, tensors).run()
    placed = {
      buffer: offsets[number]
      for number, chain in enumerate(tensors.chains)
      for buffer in chain
    }
    result = arena_result(trace, self.name, placed)
    if self.safety == "edges":
      return with_sharing_edges(trace, result)
    return result


class Tensors:
  """What is to be placed, and the interference graph.

  Tensors are numbered by falling size, then by their first allocation.

  Attributes:
    chains: Per tensor, the buffers that it holds, one over the other.
    sizes: Per tensor, its bytes.
    starts: Per tensor, the step at which it is first written.
    after: Per tensor, as bits those that begin when it is done with.
    before: The converse.
    num_edges: Per tensor, with how many it interferes.
  """

  def __init__(self, trace: Trace, related: Relation, groups: list[list[int]]):
    def size(group: list[int]) -> int:
      return trace.buffers[group[0]].size_bytes

    self.chains = sorted(groups, key=lambda g: -size(g))
    self.sizes = [size(group) for group in self.chains]
    self.starts = [int(trace.live_steps[g[0], 0]) for g in self.chains]
    ends = [int(trace.live_steps[g[-1], 1]) for g in self.chains]
    count = len(self.chains)
    self.after = [0] * count
    self.before = [0] * count
    for a, chain in enumerate(self.chains):
      last = chain[-1]
      if trace.buffers[last].live_at_end:
        continue
      for b, other in enumerate(self.chains):
        definer = trace.buffers[other[0]].definer
        if ends[a] > self.starts[b] or definer is None:
          continue
        if related.allows(last, definer):
          self.after[a] |= 1 << b
          self.before[b] |= 1 << a
    self.num_edges = [
      count - 1 - (self.after[t] | self.before[t]).bit_count()
      for t in range(count)
    ]

  def apart(self, tensor: int) -> int:
    """Returns as bits the tensors that one does not interfere with."""
    return self.after[tensor] | self.before[tensor]


class _Edge(NamedTuple):
  """Some bytes that pass from one tensor to another.

  Attributes:
    start: A tensor, or the source.
    end: A tensor, or the sink.
    offset: Where the bytes are.
    weight: How many they are.
  """

  start: int
  end: int
  offset: int
  weight: int


class _Insertion:
  """The allocation graph as it grows; edges know which bytes they mean."""

  def __init__(self, settings: Nnc, tensors: Tensors):
    self._settings = settings
    self._tensors = tensors
    self._left = (1 << len(tensors.sizes)) - 1
    self._offsets = [0] * len(tensors.sizes)
    self._height = 0
    # Edges never change, they are replaced; this finds them by number.
    self._edges: dict[int, _Edge] = {}
    self._num_edges = 0
    # Edges below this number do not suit a tuple.
    self._searched: dict[tuple[int, ...], int] = {}

  def run(self) -> list[int]:
    """Returns the offset of each tensor, in bytes."""
    while self._left:
      candidates = self._candidates()
      for candidate in candidates:
        found = self._find_edge(candidate)
        if found is not None:
          self._insert(candidate, self._edges.pop(found))
          break
      else:
        self._insert(candidates[0], self._new_edge(candidates[0]))
    return self._offsets

  def _candidates(self) -> list[tuple[int, ...]]:
    tensors = self._tensors
    left = [t for t in range(len(tensors.sizes)) if self._left >> t & 1]
    most = max(tensors.num_edges[t] for t in left)
    found = []
    for tensor in left:
      if tensors.num_edges[tensor] == most:
        found.append((tensor,))
        found += self._with_larger(tensor)
    # Both count descending; ties go by the numbers of the tensors.
    return sorted(
      found,
      key=lambda c: (
        -max(tensors.sizes[t] for t in c),
        -sum(tensors.num_edges[t] for t in c),
        c,
      ),
    )

  def _with_larger(self, tensor: int) -> list[tuple[int, ...]]:
    """Pairs and triples of a tensor with the largest that suit it."""
    sizes = self._tensors.sizes
    found = (tensor,)
    usable = self._left & self._tensors.apart(tensor)
    tuples = []
    while len(found) < self._settings.max_tuple and usable:
      largest = (usable & -usable).bit_length() - 1
      if sizes[largest] <= sizes[tensor]:
        break
      found = (*found, largest)
      tuples.append(tuple(sorted(found, key=self._access)))
      usable &= self._tensors.apart(largest)
    return tuples

  def _access(self, tensor: int) -> tuple[int, int]:
    return self._tensors.starts[tensor], tensor

  def _find_edge(self, candidate: tuple[int, ...]) -> int | None:
    """Returns the first edge that is wide enough and in the right place."""
    start = self._searched.get(candidate, 0)
    size = max(self._tensors.sizes[t] for t in candidate)
    for number in range(start, self._num_edges):
      edge = self._edges.get(number)
      if edge and edge.weight >= size and self._suits(candidate, edge):
        return number
    self._searched[candidate] = self._num_edges
    return None

  def _suits(self, candidate: tuple[int, ...], edge: _Edge) -> bool:
    is_inner = edge.start != _SOURCE and edge.end != _SINK
    if not is_inner and not self._settings.open_edges:
      return False
    starts = edge.start == _SOURCE or (
      self._tensors.after[edge.start] >> candidate[0] & 1
    )
    ends = edge.end == _SINK or (
      self._tensors.before[edge.end] >> candidate[-1] & 1
    )
    return bool(starts and ends)

  def _new_edge(self, candidate: tuple[int, ...]) -> _Edge:
    size = max(self._tensors.sizes[t] for t in candidate)
    self._height += size
    return _Edge(_SOURCE, _SINK, self._height - size, size)

  def _insert(self, candidate: tuple[int, ...], edge: _Edge) -> None:
    """Leads the edge's first bytes through the tensors, one after another."""
    sizes = self._tensors.sizes
    # The edge's bytes are held by these, as (holder, end) with ascending ends.
    holders = [(edge.start, edge.weight)]
    for tensor in candidate:
      self._left &= ~(1 << tensor)
      self._offsets[tensor] = edge.offset
      holders = self._take(tensor, sizes[tensor], holders, edge.offset)
    self._connect(edge.end, edge.weight, holders, edge.offset)

  def _take(
    self, tensor: int, size: int, holders: list[tuple[int, int]], offset: int
  ) -> list[tuple[int, int]]:
    self._connect(tensor, size, holders, offset)
    return [(tensor, size), *(h for h in holders if h[1] > size)]

  def _connect(
    self, end: int, size: int, holders: list[tuple[int, int]], offset: int
  ) -> None:
    """Adds an edge from each holder of the first bytes."""
    low = 0
    for holder, high in holders:
      if low >= size:
        break
      if holder != _SOURCE or end != _SINK:
        weight = min(high, size) - low
        self._edges[self._num_edges] = _Edge(holder, end, offset + low, weight)
        self._num_edges += 1
      low = high
