"""Kernels that run later, while a transfer would be waited for.

A walk from the first kernel to the last finds nothing to run beside the last
transfers: what could have run there ran before. Where memory allows it, such
kernels move behind the start of the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem.cost import LinkClock
from jaxmem.graph import liveness
from jaxmem.planning.overlapped_program import Program
from jaxmem.planning.tuning import TUNING

_TUNING = TUNING.overlap


def fill_waits(
  program: Program, nodes: Sequence[int], limit_bytes: int
) -> list[int]:
  """Returns an order in which less is waited for.

  Args:
    program: The computation.
    nodes: All nodes in execution order.
    limit_bytes: No more bytes are live, unless the order has more already.
  """
  order = list(nodes)
  limit = max(limit_bytes, liveness.peak_bytes(program.graph, order))
  tried: set[int] = set()
  for _ in range(_TUNING.num_filled):
    waits = _waits(program, order)
    left = {done: s for done, s in waits.items() if done not in tried}
    if not left:
      break
    done = max(left, key=lambda d: (left[d], -d))
    tried.add(done)
    order = _fill(program, order, done, left[done], limit)
  return order


def _waits(program: Program, order: Sequence[int]) -> dict[int, float]:
  """Returns how long the device waits at each done, where it does."""
  now = 0.0
  links = LinkClock()
  done_at: dict[int, float] = {}
  found: dict[int, float] = {}
  for node in order:
    number = program.of_node.get(node)
    if number is not None:
      each = program.transfers[number]
      if node == each.start:
        done_at[number] = links.begin(each.link, now, each.seconds)
      elif done_at[number] > now:
        found[node] = done_at[number] - now
        now = done_at[number]
    now += program.seconds[node]
  return found


def _fill(
  program: Program, order: list[int], done: int, wait_s: float, limit: int
) -> list[int]:
  """Moves kernels from before a transfer's start to before its done.

  The last ones that nothing before the done needs, and as many of them as the
  wait is long, or as the limit allows.
  """
  moved = _movable(program, order, done, wait_s)
  while moved:
    late = set(moved)
    changed = [node for node in order if node not in late]
    at = changed.index(done)
    changed[at:at] = reversed(moved)
    if liveness.peak_bytes(program.graph, changed) <= limit:
      return changed
    moved = moved[: len(moved) // 2]
  return order


def _movable(
  program: Program, order: Sequence[int], done: int, wait_s: float
) -> list[int]:
  """Returns kernels that could run later, the last one first."""
  at = {node: step for step, node in enumerate(order)}
  start = program.transfers[program.of_node[done]].start
  found: list[int] = []
  for node in reversed(order[: at[start]]):
    if wait_s <= 0:
      break
    users = program.graph.successors[node]
    is_kernel = node not in program.of_node and program.seconds[node] > 0
    if is_kernel and all(at[user] > at[done] for user in users):
      found.append(node)
      wait_s -= program.seconds[node]
  return found
