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

  Transfers that still run beside nothing then get a kernel, if that takes no
  longer: XLA makes such collectives synchronous.

  Args:
    program: The computation.
    nodes: All nodes in execution order.
    limit_bytes: No more bytes are live, unless the order has more already.
  """
  order = list(nodes)
  limit = max(limit_bytes, liveness.peak_bytes(program.graph, order))
  waits, alone = _waits(program, order)
  for only_alone in (False, True):
    tried: set[int] = set()
    for _ in range(_TUNING.num_filled):
      left = (alone if only_alone else waits.keys()) - tried
      if not left:
        break
      done = max(left, key=lambda d: (waits[d], -d))
      tried.add(done)
      changed = _fill(program, order, done, waits[done], limit)
      found = _waits(program, changed)
      is_slower = sum(found[0].values()) > sum(waits.values())
      if not only_alone or (len(found[1]) < len(alone) and not is_slower):
        order, (waits, alone) = changed, found
  return order


def _waits(
  program: Program, order: Sequence[int]
) -> tuple[dict[int, float], set[int]]:
  """Returns how long the device waits at each done, where it does.

  And those of these dones between which and their starts no kernel runs.
  """
  now, worked_s = 0.0, 0.0
  links = LinkClock()
  begun: dict[int, tuple[float, float]] = {}
  found: dict[int, float] = {}
  alone: set[int] = set()
  for node in order:
    number = program.of_node.get(node)
    if number is None:
      worked_s += program.seconds[node]
    elif node == program.transfers[number].start:
      each = program.transfers[number]
      begun[number] = links.begin(each.link, now, each.seconds), worked_s
    elif begun[number][0] > now:
      found[node] = begun[number][0] - now
      now = begun[number][0]
      if begun[number][1] == worked_s:
        alone.add(node)
    now += program.seconds[node]
  return found, alone


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
