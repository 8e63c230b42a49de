"""Statistics of paired measurements."""

from collections.abc import Sequence


def median_interval(values: Sequence[float]) -> tuple[float, float]:
  """Returns the 95 % confidence interval of the median.

  Of n values the number below the true median is binomial, whatever their
  distribution: half of n, give or take 0.98 of its square root.
  """
  ordered = sorted(values)
  half, spread = len(ordered) / 2, 0.98 * len(ordered) ** 0.5
  low = max(0, round(half - spread) - 1)
  high = min(len(ordered) - 1, round(half + spread))
  return ordered[low], ordered[high]
