"""What every orderer is given, and returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

from jaxmem.graph import Graph, liveness

Status = Literal["optimal", "feasible"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OrderResult:
  """An order, its peak, and how good it is known to be.

  Attributes:
    order: A topological order, as indices into `graph.nodes`.
    peak_bytes: Its peak, in bytes, without subtracting `graph.base_bytes`.
    lower_bound_bytes: No order has a lower peak.
    method: What found the order and what proved the bound.
    num_passes: How many passes of the search were made.
    candidates: Distinct orders, best first, that were found on the way; the
      last is the initial order. For callers that can price an order better
      than by its peak.
  """

  order: tuple[int, ...]
  peak_bytes: int
  lower_bound_bytes: int
  method: str
  num_passes: int
  candidates: tuple[tuple[int, ...], ...]

  def __post_init__(self):
    if self.lower_bound_bytes > self.peak_bytes:
      raise ValueError(
        f"lower_bound_bytes must not exceed peak_bytes, got"
        f" {self.lower_bound_bytes} and {self.peak_bytes}."
      )

  @property
  def status(self) -> Status:
    """Whether the order is known to be optimal: its peak is the bound."""
    is_met = self.peak_bytes == self.lower_bound_bytes
    return "optimal" if is_met else "feasible"

  def with_order(
    self, graph: Graph, order: Sequence[int], method: str
  ) -> OrderResult:
    """Returns what is known once another order was found by a method.

    An order whose peak is not lower is dropped.
    """
    peak_bytes = liveness.peak_bytes(graph, order)
    if peak_bytes >= self.peak_bytes:
      return self
    order = tuple(order)
    return dataclasses.replace(
      self,
      order=order,
      peak_bytes=peak_bytes,
      method=method,
      candidates=tuple(dict.fromkeys((order, *self.candidates))),
    )


class Orderer(Protocol):
  """Improves on what is known about the orders of a program."""

  def improve(self, graph: Graph, known: OrderResult) -> OrderResult:
    """Looks for a better order, or for a better bound.

    Deterministic: work is counted, and nothing depends on the clock.

    Args:
      graph: The program.
      known: The best order so far. Its first candidate is the order itself, its
        last one the initial order.

    Returns:
      A result whose peak is no higher and whose bound is no lower.
    """
    ...


def unchanged(
  graph: Graph, order: Sequence[int], lower_bound_bytes: int
) -> OrderResult:
  """Returns the result that keeps an order, given a bound of all orders."""
  return OrderResult(
    order=tuple(order),
    peak_bytes=liveness.peak_bytes(graph, order),
    lower_bound_bytes=lower_bound_bytes,
    method="min cut",
    num_passes=0,
    candidates=(tuple(order),),
  )
