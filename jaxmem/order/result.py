"""What every orderer returns."""

import dataclasses
from typing import Literal

Status = Literal["optimal", "feasible"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OrderResult:
  """An order, its peak, and how good it is known to be.

  Attributes:
    order: A topological order, as indices into `graph.nodes`.
    peak_bytes: Its peak, in bytes, without subtracting `graph.base_bytes`.
    lower_bound_bytes: No order has a lower peak.
    status: "optimal" iff the peak equals the lower bound.
    method: What found the order and what proved the bound.
    num_passes: How many passes of the search were made.
    candidates: Distinct orders, best first, that were found on the way; the
      last is the initial order. For callers that can price an order better
      than by its peak.
  """

  order: tuple[int, ...]
  peak_bytes: int
  lower_bound_bytes: int
  status: Status
  method: str
  num_passes: int
  candidates: tuple[tuple[int, ...], ...]

  def __post_init__(self):
    if self.lower_bound_bytes > self.peak_bytes:
      raise ValueError(
        f"lower_bound_bytes must not exceed peak_bytes, got"
        f" {self.lower_bound_bytes} and {self.peak_bytes}."
      )
    expected = self.lower_bound_bytes == self.peak_bytes
    if (self.status == "optimal") != expected:
      raise ValueError(
        f"status must be 'optimal' iff the peak equals the bound, got"
        f" {self.status!r} with {self.peak_bytes} and"
        f" {self.lower_bound_bytes}."
      )
