"""Where each value of a flat jaxpr is made and read."""

import functools

from jax.extend import core

from jaxmem.jaxpr import memory


class Values:
  """The values of a flat jaxpr.

  Attributes:
    jaxpr: The jaxpr.
    definers: The equation that makes each value; inputs and constants have
      none.
    readers: The equations that read each value, ascending. Results of the
      jaxpr are read once more, by an equation past the last.
  """

  def __init__(self, jaxpr: core.Jaxpr):
    self.jaxpr = jaxpr
    self.definers: dict[core.Var, int] = {}
    self.readers: dict[core.Var, list[int]] = {}
    for position, eqn in enumerate(jaxpr.eqns):
      for var in operands(eqn):
        self.readers.setdefault(var, []).append(position)
      for var in results(eqn):
        self.definers[var] = position
    for atom in jaxpr.outvars:
      if isinstance(atom, core.Var):
        self.readers.setdefault(atom, []).append(len(jaxpr.eqns))

  @functools.cached_property
  def is_result(self) -> frozenset[core.Var]:
    """Values that the jaxpr returns."""
    return frozenset(v for v in self.jaxpr.outvars if isinstance(v, core.Var))


def operands(eqn: core.JaxprEqn) -> list[core.Var]:
  """Returns the variables that an equation reads, each once."""
  found = dict.fromkeys(v for v in eqn.invars if isinstance(v, core.Var))
  return [*found]


def results(eqn: core.JaxprEqn) -> list[core.Var]:
  """Returns the variables that an equation makes."""
  return [v for v in eqn.outvars if not isinstance(v, core.DropVar)]


def num_bytes(var: core.Var) -> int:
  """Returns the bytes of a value; 0 if it is no array."""
  try:
    return memory.size_bytes(var.aval)
  except ValueError:
    return 0
