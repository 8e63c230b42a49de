"""Where tensors are: equations 7 and 8, for given or for searched lifetimes."""

from collections.abc import Sequence

from ortools.sat.python import cp_model


class Locations:
  """A[i] for each tensor, in units, and the peak above all of them.

  Args:
    model: What to add to.
    sizes: The size of each tensor, in units.
    max_height: No peak and no address is above.
    min_height: No peak is below.
  """

  def __init__(
    self,
    model: cp_model.CpModel,
    sizes: Sequence[int],
    min_height: int,
    max_height: int,
  ):
    self._model = model
    self._sizes = sizes
    self.peak = model.new_int_var(min_height, max_height, "peak")
    self.addresses = [
      model.new_int_var(0, max(max_height - size, 0), f"address_{i}")
      for i, size in enumerate(sizes)
    ]
    self._sides: dict[
      tuple[int, int], tuple[cp_model.IntVar, cp_model.IntVar]
    ] = {}
    self._add_peak()

  def _add_peak(self) -> None:
    """Equation 8: every tensor ends below the peak."""
    for address, size in zip(self.addresses, self._sizes, strict=True):
      self._model.add(address + size <= self.peak)

  def add_pair(self, i: int, j: int) -> tuple[cp_model.IntVar, cp_model.IntVar]:
    """Equations 7a and 7b, and a + b <= 1 of equation 6.

    The constraints are enforced by literals. The paper's big M says the same.

    Returns:
      a, which puts i below j, and b, which puts i above j.
    """
    below = self._model.new_bool_var(f"below_{i}_{j}")
    above = self._model.new_bool_var(f"above_{i}_{j}")
    self._sides[i, j] = below, above
    self._model.add_at_most_one(below, above)
    first, second = self.addresses[i], self.addresses[j]
    self._model.add(first + self._sizes[i] <= second).only_enforce_if(below)
    self._model.add(second + self._sizes[j] <= first).only_enforce_if(above)
    return below, above

  def add_hint(self, addresses: Sequence[int]) -> None:
    """Suggests addresses, in units, and who is above whom."""
    for variable, address in zip(self.addresses, addresses, strict=True):
      self._model.add_hint(variable, address)
    for (i, j), (below, above) in self._sides.items():
      is_below = addresses[i] + self._sizes[i] <= addresses[j]
      self._model.add_hint(below, is_below)
      is_above = addresses[j] + self._sizes[j] <= addresses[i]
      self._model.add_hint(above, is_above and not is_below)

  def add_rectangles(
    self, times: Sequence[cp_model.IntervalVar], owners: Sequence[int]
  ) -> None:
    """Equations 6 and 7 in one: rectangles in time and space stay apart.

    Args:
      times: When each is live.
      owners: Which tensor it is.
    """
    spaces = [
      self._model.new_fixed_size_interval_var(
        self.addresses[i], self._sizes[i], f"space_{i}"
      )
      for i in owners
    ]
    self._model.add_no_overlap_2d(times, spaces)

  def convert_to_addresses(self, solver: cp_model.CpSolver) -> tuple[int, ...]:
    """Returns the address of each tensor, in units."""
    return tuple(solver.value(address) for address in self.addresses)
