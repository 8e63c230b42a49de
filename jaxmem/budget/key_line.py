"""The number line on which steps, second runs and copies of a plan lie.

A run of a unit before step s has key s * pitch + rank + 2, step s itself
s * pitch + num_units + 2, where pitch is num_units + 3: before all runs,
s * pitch is the end of copies to the host, and s * pitch + 1 the start or end
of copies back. What is there at the start has key -1, what stays to the end has
key num_steps * pitch.
"""

from __future__ import annotations

from jaxmem.budget.problem import BudgetProblem


class KeyLine:
  """Keys of everything that can happen in a problem's plans.

  Args:
    problem: The problem.

  Attributes:
    pitch: Keys per step.
    end: The key after the last step.
    made_at: For each value, the key of its first producer, or -1.
  """

  def __init__(self, problem: BudgetProblem):
    self._problem = problem
    self._rank = problem.rank
    self.pitch = len(problem.units) + 3
    self.end = problem.num_steps * self.pitch
    self.made_at = [
      -1 if v.producer is None else self.step_key(v.producer)
      for v in problem.values
    ]

  def step_key(self, step: int) -> int:
    """Returns the key of a step."""
    return step * self.pitch + self.pitch - 1

  def run_key(self, unit: int, before: int) -> int:
    """Returns the key of a run."""
    return before * self.pitch + self._rank[unit] + 2

  def store_key(self, before: int) -> int:
    """Returns the key at which copies to the host end before a step."""
    return before * self.pitch

  def fetch_key(self, before: int) -> int:
    """Returns the key at which copies back begin and end before a step."""
    return before * self.pitch + 1

  def step_at(self, key: int) -> int:
    """Returns the step of a key: itself, or what the run comes before."""
    return key // self.pitch

  def pairs_at(self, key: int) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of values that may share memory at a key."""
    step, slot = divmod(key, self.pitch)
    if slot == self.pitch - 1:
      return self._problem.steps[step].shares
    if slot < 2:
      return ()
    return self._problem.units[self._problem.run_order[slot - 2]].shares
