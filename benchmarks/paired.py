"""Steps that run by turns in one process, and statistics of what they took."""

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Runner:
  """A compiled train step, its state, and what each of its runs took.

  Attributes:
    compiled: The step; its first two results are its first two arguments.
    args: Its arguments, of the next run.

  Args:
    compiled: The step.
    args: Arguments of the first run; they are copied.
  """

  def __init__(self, compiled: Callable[..., Any], args: Any):
    self.compiled: Any = compiled
    self.args = jax.tree.map(jnp.array, args)
    self._taken: list[tuple[float, ...]] = []

  def run(self) -> None:
    """Runs one step, to its end."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    result = jax.block_until_ready(self.compiled(*self.args))
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    user_s = after.ru_utime - before.ru_utime
    system_s = after.ru_stime - before.ru_stime
    num_faults = after.ru_minflt - before.ru_minflt
    self._taken.append((wall_s, user_s, system_s, num_faults))
    self.args = (*result[:2], *self.args[2:])

  def taken(self, num_warm_up: int) -> np.ndarray:
    """Returns what the runs after the first few took.

    Shape [runs, 4]: wall, user and system seconds, and page faults.
    """
    return np.array(self._taken[num_warm_up:])


def cpu_seconds(taken: np.ndarray) -> np.ndarray:
  """Returns user and system seconds of each run; see `Runner.taken`."""
  return taken[:, 1:3].sum(1)


def medians(taken: np.ndarray) -> dict[str, float]:
  """Returns the medians of what runs took, named; see `Runner.taken`."""
  wall_s, user_s, system_s, num_faults = np.median(taken, axis=0)
  return {
    "wall_s": float(wall_s),
    "user_s": float(user_s),
    "system_s": float(system_s),
    "num_page_faults": int(num_faults),
  }


def run_round(runners: Sequence[Runner], index: int) -> None:
  """Runs each once; drift of the machine's speed hits all alike.

  Args:
    runners: Who runs.
    index: Number of the round; every other one goes backward.
  """
  for runner in runners if index % 2 else reversed(runners):
    runner.run()


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


def ratios(own: np.ndarray, other: np.ndarray) -> dict[str, Any]:
  """Compares what two took, run by run.

  Args:
    own: Seconds of each run of the one; shape [runs].
    other: Seconds of the other's runs, each beside the one in the same place.
  """
  pairs = list(own / other)
  fast = [float(np.percentile(seconds, 20)) for seconds in (own, other)]
  return {
    "ratio_of_medians": float(np.median(own) / np.median(other)),
    "median_of_ratios": float(np.median(pairs)),
    "median_of_ratios_interval": median_interval(pairs),
    # Disturbances only ever add time: the fast runs tell the most.
    "ratio_of_fast": fast[0] / fast[1],
  }
