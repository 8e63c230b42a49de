"""What a walk through a computation has to know: kernels, transfers, memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxmem.cost import Link
from jaxmem.graph import Graph, liveness
from jaxmem.planning.tuning import TUNING

_TUNING = TUNING.overlap


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
  """What goes on beside kernels.

  Attributes:
    start: The node that starts it.
    done: The node that waits for it.
    link: What it uses alone.
    seconds: On an idle link.
  """

  start: int
  done: int
  link: Link
  seconds: float


class Program:
  """What all walks through one computation share.

  Args:
    graph: The computation; its nodes are listed in an order that needs few
      bytes, where each done follows its start as soon as may be.
    seconds: Of each node.
    transfers: What goes on beside kernels.

  Attributes:
    graph: The graph.
    seconds: Of each node.
    transfers: The transfers, what is needed first at the front.
    of_link: For each link, the numbers of its transfers.
    of_node: The number of the transfer that a node starts or ends.
    live: Bytes live at each step of the order that is given.
    before: Bytes live before each step.
    needed_at: For each transfer, the first kernel that cannot run before it.
    takes_memory: For each, whether more bytes are live once it is done.
    begin_by: For each, when it has to begin so that none waits, if kernels run
      as given and links do nothing else.
  """

  def __init__(
    self,
    graph: Graph,
    seconds: Sequence[float],
    transfers: Sequence[Transfer],
  ):
    self.graph = graph
    self.seconds = seconds
    order = range(graph.num_nodes)
    self.live = liveness.live_bytes(graph, order)
    memory, self.before = Memory(graph), list[int]()
    for node in order:
      self.before.append(memory.live_bytes)
      memory.run(node)
    # When each node begins if nothing is waited for; then the end.
    self._elapsed_s = np.concatenate([[0.0], np.cumsum(seconds)])
    self._rest_s = self._seconds_after()
    successors, end = graph.successors, graph.num_nodes
    users = {t: min(successors[t.done], default=end) for t in transfers}
    takes = {t: self._takes_memory(t) for t in transfers}
    needed_s = {t: self._needed_by(t, users[t], takes[t]) for t in transfers}
    self.transfers = sorted(transfers, key=lambda t: (needed_s[t], t.start))
    self.needed_at = [users[t] for t in self.transfers]
    self.takes_memory = [takes[t] for t in self.transfers]
    self.of_link: dict[Link, list[int]] = {}
    self.of_node: dict[int, int] = {}
    for number, each in enumerate(self.transfers):
      self.of_link.setdefault(each.link, []).append(number)
      self.of_node |= {each.start: number, each.done: number}
    self.begin_by = self._latest_starts([needed_s[t] for t in self.transfers])

  @property
  def peak_bytes(self) -> int:
    """Most bytes live in the order that is given."""
    return int(self.live.max(initial=0))

  def _seconds_after(self) -> list[float]:
    """Returns the longest chain of nodes from each one on, itself included."""
    longest = [0.0] * self.graph.num_nodes
    for node in reversed(range(self.graph.num_nodes)):
      after = (longest[s] for s in self.graph.successors[node])
      longest[node] = self.seconds[node] + max(after, default=0.0)
    return longest

  def _needed_by(self, transfer: Transfer, user: int, takes: bool) -> float:
    """Returns when a transfer is needed, if its user waits where it can.

    What makes memory free need not be over soon: a user on which little
    depends, as the update of a parameter, may run as much later as it takes.
    """
    needed_s = float(self._elapsed_s[user])
    if takes:
      return needed_s
    later_s = _TUNING.lead * transfer.seconds
    if user == self.graph.num_nodes:
      # Nobody waits for it: it goes when it can.
      return float(self._elapsed_s[transfer.done]) + later_s
    slack_s = float(self._elapsed_s[-1]) - needed_s - self._rest_s[user]
    return needed_s + later_s if slack_s >= later_s else needed_s

  def _latest_starts(self, needed_s: Sequence[float]) -> list[float]:
    """Walks back from the end: each link ends one before it begins the next."""
    latest = [0.0] * len(self.transfers)
    free_until: dict[Link, float] = {}
    for number in reversed(range(len(self.transfers))):
      each = self.transfers[number]
      end_s = min(needed_s[number], free_until.get(each.link, float("inf")))
      begin_s = end_s - each.seconds * _TUNING.lead
      free_until[each.link] = begin_s
      latest[number] = begin_s
    return latest

  def _takes_memory(self, transfer: Transfer) -> bool:
    """Whether more bytes are live once a transfer is done."""
    buffers = self.graph.buffers
    start, done = transfer.start, transfer.done
    made = sum(b.size_bytes for b in buffers if b.definer in (start, done))
    freed = sum(
      buffers[b].size_bytes
      for node in (start, done)
      for b in self.graph.buffers_of_node[node]
      if buffers[b].touchers[-1] in (start, done) and not buffers[b].live_at_end
    )
    return made > freed


class Memory:
  """What is live, node by node."""

  def __init__(self, graph: Graph):
    self._graph = graph
    self._sizes = [b.size_bytes for b in graph.buffers]
    self._remaining = [len(b.touchers) + b.live_at_end for b in graph.buffers]
    self._defined: list[list[int]] = [[] for _ in graph.nodes]
    for number, buffer in enumerate(graph.buffers):
      if buffer.definer is not None:
        self._defined[buffer.definer].append(number)
    self.live_bytes = sum(
      b.size_bytes
      for b in graph.buffers
      if b.live_at_start and (b.touchers or b.live_at_end)
    )

  def needed_bytes(self, node: int) -> int:
    """Returns what would be live while a node runs."""
    total = self.live_bytes + self._graph.nodes[node].extra_bytes
    total += sum(self._sizes[b] for b in self._defined[node])
    used: set[int] = set()
    for operand, output in self._graph.nodes[node].shares:
      if self._remaining[operand] == 1 and not {operand, output} & used:
        used |= {operand, output}
        total -= min(self._sizes[operand], self._sizes[output])
    return total

  def added_bytes(self, node: int) -> int:
    """Returns what more is live once a node ran; it may be negative."""
    added = sum(self._sizes[b] for b in self._defined[node])
    return added - sum(
      self._sizes[b]
      for b in self._graph.buffers_of_node[node]
      if self._remaining[b] == 1
    )

  def run(self, node: int) -> None:
    """Runs a node."""
    self.live_bytes += self.added_bytes(node)
    for buffer in self._graph.buffers_of_node[node]:
      self._remaining[buffer] -= 1
