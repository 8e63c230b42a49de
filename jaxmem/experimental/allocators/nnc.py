"""NNC's tensor allocation: tuples of tensors into a graph of reuse.

"The NNC Tensor Allocation Algorithm", libnnc's documentation. Two graphs. In
the interference graph, tensors that must not share bytes are neighbours. The
allocation graph leads from the region's free bytes (the source) over tensors
back to free bytes (the sink); an edge of weight w says that its end takes w
bytes of its begin. Tensors are inserted into it until all are there.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from jaxmem.experimental.allocators import bit_sets
from jaxmem.experimental.allocators.in_place import chains, hand_overs
from jaxmem.experimental.allocators.parallel import (
  Relation,
  Safety,
  groups_after,
  relation,
  with_sharing_edges,
)
from jaxmem.experimental.allocators.trace import Result, Trace, arena_result

_SOURCE = -1
_SINK = -2
# So few edges are looked at one by one, more of them together.
_FEW_EDGES = 32


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
    self.after = groups_after(trace, related, self.chains)
    count = len(self.chains)
    self.before = bit_sets.transposed(self.after, count)
    self.num_edges = [
      count - 1 - self.apart(t).bit_count() for t in range(count)
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


class _Candidate(NamedTuple):
  """A tuple of tensors to insert together; the least comes first.

  Attributes:
    falling_size: Minus the bytes of the largest.
    falling_edges: Minus with how many they interfere, added up.
    tensors: In the order of their first accesses.
  """

  falling_size: int
  falling_edges: int
  tensors: tuple[int, ...]


class _Edges:
  """Edges by number; they never change, but one is replaced by others."""

  def __init__(self):
    self.edges: list[_Edge | None] = []
    # Start, end and weight per edge; what is gone has weight -1.
    self._rows = np.zeros((256, 3), np.int64)

  def add(self, edge: _Edge) -> None:
    """Adds an edge under the next number."""
    number = len(self.edges)
    if number == len(self._rows):
      self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
    self._rows[number] = edge.start, edge.end, edge.weight
    self.edges.append(edge)

  def pop(self, number: int) -> _Edge:
    """Removes an edge."""
    edge = self.edges[number]
    assert edge is not None
    self.edges[number] = None
    self._rows[number, 2] = -1
    return edge

  def first(
    self, begin: int, size: int, starts: np.ndarray, ends: np.ndarray
  ) -> int | None:
    """Returns the first edge, of those from a number on, that will do.

    Args:
      begin: The first number to look at.
      size: The least weight.
      starts: Where an edge may start, as flags of the tensors; the source and
        the sink count from the end.
      ends: Where it may end, likewise.
    """
    rows = self._rows[begin : len(self.edges)]
    wide = np.flatnonzero(rows[:, 2] >= size)
    suits = starts[rows[wide, 0]] & ends[rows[wide, 1]]
    return begin + int(wide[suits.argmax()]) if suits.any() else None


class _Insertion:
  """The allocation graph as it grows; edges know which bytes they mean."""

  def __init__(self, settings: Nnc, tensors: Tensors):
    self._settings = settings
    self._tensors = tensors
    self._left = (1 << len(tensors.sizes)) - 1
    self._offsets = [0] * len(tensors.sizes)
    self._height = 0
    self._edges = _Edges()
    # Edges below this number do not suit a tuple.
    self._searched: dict[tuple[int, ...], int] = {}

  def run(self) -> list[int]:
    """Returns the offset of each tensor, in bytes."""
    num_edges = self._tensors.num_edges
    falling = sorted(range(len(num_edges)), key=lambda t: -num_edges[t])
    for _, alike in itertools.groupby(falling, num_edges.__getitem__):
      self._insert_alike([t for t in alike if self._left >> t & 1])
    return self._offsets

  def _insert_alike(self, alike: list[int]) -> None:
    """Inserts tensors that interfere with equally many, and tuples of them."""
    candidates = {tensor: self._candidates(tensor) for tensor in alike}
    while candidates:
      inserted = self._insert_first(
        sorted(itertools.chain.from_iterable(candidates.values()))
      )
      for tensor, found in [*candidates.items()]:
        if tensor in inserted:
          del candidates[tensor]
        elif not inserted.isdisjoint(found[-1].tensors):
          candidates[tensor] = self._candidates(tensor)

  def _insert_first(self, candidates: list[_Candidate]) -> set[int]:
    """Inserts the first that finds an edge, else the first; returns which."""
    for candidate in candidates:
      found = self._find_edge(candidate)
      if found is not None:
        self._insert(candidate.tensors, self._edges.pop(found))
        return {*candidate.tensors}
    first = candidates[0]
    self._insert(first.tensors, self._new_edge(-first.falling_size))
    return {*first.tensors}

  def _candidates(self, tensor: int) -> list[_Candidate]:
    """Returns a tensor alone, and what `_with_larger` adds to it."""
    sizes, num_edges = self._tensors.sizes, self._tensors.num_edges
    return [
      _Candidate(
        falling_size=-max(sizes[t] for t in tensors),
        falling_edges=-sum(num_edges[t] for t in tensors),
        tensors=tensors,
      )
      for tensors in ((tensor,), *self._with_larger(tensor))
    ]

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

  def _find_edge(self, candidate: _Candidate) -> int | None:
    """Returns the first edge that is wide enough and in the right place."""
    tensors = candidate.tensors
    begin, end = self._searched.get(tensors, 0), len(self._edges.edges)
    if end - begin < _FEW_EDGES:
      numbers = range(begin, end)
      found = next((n for n in numbers if self._suits(candidate, n)), None)
    else:
      found = self._edges.first(
        begin,
        -candidate.falling_size,
        self._ends(self._tensors.before[tensors[0]], _SOURCE),
        self._ends(self._tensors.after[tensors[-1]], _SINK),
      )
    if found is None:
      self._searched[tensors] = end
    return found

  def _suits(self, candidate: _Candidate, number: int) -> bool:
    edge = self._edges.edges[number]
    if edge is None or edge.weight < -candidate.falling_size:
      return False
    is_open, tensors = self._settings.open_edges, candidate.tensors
    if edge.start == _SOURCE:
      starts = is_open
    else:
      starts = bool(self._tensors.after[edge.start] >> tensors[0] & 1)
    if not starts or edge.end == _SINK:
      return starts and is_open
    return bool(self._tensors.before[edge.end] >> tensors[-1] & 1)

  def _ends(self, tensors: int, outside: int) -> np.ndarray:
    """Returns where edges may lead from or to, as `_Edges.first` takes it."""
    count = len(self._tensors.sizes)
    found = bit_sets.flags(tensors, count + 2)
    # Source and sink are numbered -1 and -2: the last two flags.
    found[outside] = self._settings.open_edges
    return found

  def _new_edge(self, size: int) -> _Edge:
    self._height += size
    return _Edge(_SOURCE, _SINK, self._height - size, size)

  def _insert(self, tensors: tuple[int, ...], edge: _Edge) -> None:
    """Leads the edge's first bytes through the tensors, one after another."""
    sizes = self._tensors.sizes
    # The edge's bytes are held by these, as (holder, end) with ascending ends.
    holders = [(edge.start, edge.weight)]
    for tensor in tensors:
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
        self._edges.add(_Edge(holder, end, offset + low, weight))
      low = high
