"""4.1 and 4.2: when tensors can be live, and which can never coexist."""

import dataclasses
import itertools

from jaxmem.experimental.olla import levels
from jaxmem.experimental.olla.problem import Edge, Problem
from jaxmem.experimental.olla.program_options import ProgramOptions
from jaxmem.order import reachability


@dataclasses.dataclass(frozen=True, slots=True)
class Windows:
  """The steps at which each node may run, and what follows for the edges.

  Attributes:
    num_steps: One for each node.
    earliest: ASAP of each node.
    latest: ALAP of each node.
  """

  num_steps: int
  earliest: tuple[int, ...]
  latest: tuple[int, ...]

  @classmethod
  def of(cls, problem: Problem, options: ProgramOptions) -> "Windows":
    """Computes the windows that the options allow.

    Where nodes may share a step, ASAP is the longest chain of predecessors;
    where each has its own, all of its ancestors come before it.
    """
    num_steps = problem.num_nodes
    if not options.bound_lifetimes:
      return cls(num_steps, (0,) * num_steps, (num_steps - 1,) * num_steps)
    if not options.one_node_per_step:
      earliest = tuple(levels.asap(problem.graph).tolist())
      latest = tuple(levels.alap(problem.graph).tolist())
      return cls(num_steps, earliest, latest)
    before, after = reachability.closure(problem.graph)
    return cls(
      num_steps,
      tuple(bits.bit_count() for bits in before),
      tuple(num_steps - 1 - bits.bit_count() for bits in after),
    )

  def span(self, node: int) -> range:
    """Equation 10: the steps at which a node may run."""
    return range(self.earliest[node], self.latest[node] + 1)

  def useful(self, edge: Edge) -> range:
    """Equation 11: the maximum useful lifetime, creation included."""
    first = 0 if edge.source is None else self.earliest[edge.source]
    if edge.live_at_end:
      return range(first, self.num_steps)
    return range(first, max(self.latest[v] for v in edge.last_touchers) + 1)

  def certain(self, edge: Edge) -> range:
    """Equation 12: the steps through which an edge is surely preserved."""
    first = 0 if edge.source is None else self.latest[edge.source] + 1
    if edge.live_at_end:
      return range(first, self.num_steps)
    last = max((self.earliest[v] for v in edge.sinks), default=-1)
    return range(first, last + 1)


def pairs(
  problem: Problem, windows: Windows, options: ProgramOptions
) -> list[tuple[int, int]]:
  """Returns the pairs of edges with bytes that addresses must keep apart.

  Args:
    problem: The edges.
    windows: Their useful lifetimes.
    options: `skip_disjoint_pairs` leaves out those that never coexist.

  Returns:
    Pairs of indices into `problem.edges`, the smaller index first.
  """
  sized = [e for e in problem.placed if problem.edges[e].size_bytes]
  found = itertools.combinations(sized, 2)
  if not options.skip_disjoint_pairs:
    return list(found)
  return [pair for pair in found if may_coexist(problem, windows, *pair)]


def may_coexist(problem: Problem, windows: Windows, i: int, j: int) -> bool:
  """Whether two edges can be live in one step, as far as 4.2 can tell.

  They cannot if their useful lifetimes are disjoint, or if all that needs one
  of them precedes the source of the other. A sink that is the source itself
  does not count: while it runs, both are live.
  """
  first, second = problem.edges[i], problem.edges[j]
  one, other = windows.useful(first), windows.useful(second)
  if max(one.start, other.start) >= min(one.stop, other.stop):
    return False
  return not (
    _precedes(problem, first, second) or _precedes(problem, second, first)
  )


def _precedes(problem: Problem, first: Edge, second: Edge) -> bool:
  if first.live_at_end or second.source is None:
    return False
  ancestors = problem.ancestors[second.source]
  return all(ancestors >> v & 1 for v in first.last_touchers)
