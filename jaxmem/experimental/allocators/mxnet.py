"""MXNet's memory plan: simulate the step once, count readers, allocate maxima.

"Squeeze the Memory Consumption of Deep Learning", MXNet's design notes, 2016.
Every storage is a separate piece of device memory that several values take in
turn, of the size of the largest.
"""

from __future__ import annotations

import dataclasses

from jaxmem.experimental.allocators import bit_sets
from jaxmem.experimental.allocators.in_place import chains, hand_overs
from jaxmem.experimental.allocators.parallel import (
  Relation,
  Safety,
  groups_after,
  relation,
  with_sharing_edges,
)
from jaxmem.experimental.allocators.trace import (
  Placement,
  Result,
  Segment,
  Trace,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mxnet:
  """The heuristic of the note: counters and a box of free storages.

  Attributes:
    in_place: Whether a node that is the only one left to read an operand may
      write its output over it, if the operation allows that.
    sharing: Whether storages of which all readers have run go into a box, from
      which later values are served.
    match_range: The box gives away storages of at least 1 / match_range and at
      most match_range times the size that is needed: the smallest that is
      large enough, else the largest, which then grows. If None, the last one
      that was put in, whatever its size.
    safety: What may share when nodes run in parallel; see
      `jaxmem.experimental.allocators.parallel`.
    num_paths: With "paths", how many to look for; all if None.
  """

  in_place: bool = True
  sharing: bool = True
  match_range: float | None = 16.0
  safety: Safety = "serial"
  num_paths: int | None = None

  def __post_init__(self):
    if self.match_range is not None and self.match_range < 1:
      raise ValueError(
        f"match_range must be at least 1, got {self.match_range}."
      )

  @property
  def name(self) -> str:
    """For example "mxnet in-place + sharing, ancestors"."""
    used = [("in-place", self.in_place), ("sharing", self.sharing)]
    what = " + ".join(n for n, on in used if on) or "no sharing"
    near = ", any size" if self.sharing and self.match_range is None else ""
    safe = "" if self.safety == "serial" else f", {self.safety}"
    return f"mxnet {what}{near}{safe}"

  def run(self, trace: Trace) -> Result:
    """Serves a trace; see `Allocator`."""
    related = relation(trace, self.safety, self.num_paths)
    result = _Simulation(self, trace, related).run()
    if self.safety == "edges":
      return with_sharing_edges(trace, result)
    return result


class _Simulation:
  """Storages of which only the sizes are kept: nothing is allocated."""

  def __init__(self, settings: Mxnet, trace: Trace, related: Relation):
    self._settings = settings
    self._trace = trace
    self._related = related
    self._sizes: list[int] = []
    # The box holds free storages, with the buffer that left them last.
    self._box: list[tuple[int, int]] = []
    self._storage_of: dict[int, int] = {}

  def run(self) -> Result:
    over: dict[int, int] = {}
    if self._settings.in_place:
      over = hand_overs(self._trace, self._may_overwrite)
    given = set(over.values())
    for event in self._trace.events:
      buffer = event.buffer
      if event.kind == "free":
        if self._settings.sharing and buffer not in given:
          self._box.append((self._storage_of[buffer], buffer))
      elif buffer in over:
        self._storage_of[buffer] = self._storage_of[over[buffer]]
      else:
        self._storage_of[buffer] = self._take(buffer, event.size_bytes)
    return storages_result(
      self._trace, self._settings.name, self._storage_of, self._sizes
    )

  def _may_overwrite(self, operand: int, output: int) -> bool:
    definer = self._trace.buffers[output].definer
    assert definer is not None
    return self._related.allows(operand, definer)

  def _take(self, buffer: int, size_bytes: int) -> int:
    definer = self._trace.buffers[buffer].definer
    found = None if definer is None else self._search(definer, size_bytes)
    if found is None:
      self._sizes.append(size_bytes)
      return len(self._sizes) - 1
    storage, _ = self._box.pop(found)
    self._sizes[storage] = max(self._sizes[storage], size_bytes)
    return storage

  def _search(self, node: int, size_bytes: int) -> int | None:
    """Returns an index into the box."""
    allowed = self._related.followed(node)
    usable = [i for i, (_, last) in enumerate(self._box) if allowed[last]]
    ratio = self._settings.match_range
    if ratio is None:
      return usable[-1] if usable else None
    sizes = {index: self._sizes[self._box[index][0]] for index in usable}
    large = [i for i in usable if size_bytes <= sizes[i] <= size_bytes * ratio]
    if large:
      return min(large, key=lambda i: (sizes[i], i))
    small = [i for i in usable if size_bytes / ratio <= sizes[i] < size_bytes]
    return max(small, key=lambda i: (sizes[i], -i)) if small else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MxnetColoring:
  """The note's other way: color the graph of conflicts.

  Values are nodes of that graph, those needed at the same time are neighbours,
  and each color is a storage. Colored greedily, large values first, so that the
  first color without a neighbour costs nothing more.

  Attributes:
    in_place: See `Mxnet`. Values that overwrite one another are one node.
    safety: See `Mxnet`. Values conflict if neither is done with, in the sense
      chosen, when the other is written.
    num_paths: See `Mxnet`.
  """

  in_place: bool = True
  safety: Safety = "serial"
  num_paths: int | None = None

  @property
  def name(self) -> str:
    """For example "mxnet coloring, in-place"."""
    in_place = ", in-place" if self.in_place else ""
    safe = "" if self.safety == "serial" else f", {self.safety}"
    return f"mxnet coloring{in_place}{safe}"

  def run(self, trace: Trace) -> Result:
    """Serves a trace; see `Allocator`."""
    related = relation(trace, self.safety, self.num_paths)

    def may_overwrite(operand: int, output: int) -> bool:
      definer = trace.buffers[output].definer
      return definer is not None and related.allows(operand, definer)

    over = hand_overs(trace, may_overwrite) if self.in_place else {}
    # Large ones first; equal ones in the order of their allocations.
    groups = sorted(
      chains(trace, over), key=lambda g: -trace.buffers[g[0]].size_bytes
    )
    after = groups_after(trace, related, groups)
    before = bit_sets.transposed(after, len(groups))
    colors: list[int] = []
    sizes: list[int] = []
    storage_of: dict[int, int] = {}
    for number, group in enumerate(groups):
      conflicts = ~(after[number] | before[number])
      color = next(
        (c for c, members in enumerate(colors) if not members & conflicts),
        len(colors),
      )
      if color == len(colors):
        colors.append(0)
        sizes.append(trace.buffers[group[0]].size_bytes)
      colors[color] |= 1 << number
      storage_of |= dict.fromkeys(group, color)
    result = storages_result(trace, self.name, storage_of, sizes)
    if self.safety == "edges":
      return with_sharing_edges(trace, result)
    return result


def storages_result(
  trace: Trace, name: str, storage_of: dict[int, int], sizes: list[int]
) -> Result:
  """Returns the result of values in storages, each held for the whole step."""
  return Result(
    allocator=name,
    placements=tuple(
      Placement(storage_of[b], 0) if b in storage_of else None
      for b in range(len(trace.buffers))
    ),
    segments=tuple(Segment(size, 0, len(trace.events)) for size in sizes),
    peak_bytes=sum(sizes),
  )
