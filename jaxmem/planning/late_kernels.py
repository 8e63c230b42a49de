"""Kernels that run later, while a transfer would be waited for.

A walk from the first kernel to the last finds nothing to run beside the last
transfers: what could have run there ran before. Where memory allows it, such
kernels move behind the start of the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem.cost import Link
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
  free_at: dict[Link, float] = {}
  done_at: dict[int, float] = {}
  found: dict[int, float] = {}
  for node in order:
    number = program.of_node.get(node)
    if number is not None:
      each = program.transfers[number]
      if node == each.start:
        begin = max(now, free_at.get(each.link, 0.0))
        done_at[number] = free_at[each.link] = begin + each.seconds
      elif done_at[number] > now:
        found[node] = done_at[number] - now
        now = done_at[number]
    now += program.seconds[node]
  return found


def _fill(
  program: Program, order: list[int], done: int, wait_s: float, limit: int
) -> list[int]:
  """Moves kernels from before a transfer's start to before its done."""
  at = {node: step for step, node in enumerate(order)}
  start = program.transfers[program.of_node[done]].start
  num_tried = 0
  for node in reversed(order[: at[start]]):
    if wait_s <= 0 or num_tried >= _TUNING.num_looked_at:
      break
    if node in program.of_node or not program.seconds[node]:
      continue
    users = program.graph.successors[node]
    if any(at[user] < at[done] for user in users):
      continue
    num_tried += 1
    changed = [n for n in order if n != node]
    changed.insert(changed.index(done), node)
    if liveness.peak_bytes(program.graph, changed) <= limit:
      order = changed
      at = {node: step for step, node in enumerate(order)}
      wait_s -= program.seconds[node]
  return order
