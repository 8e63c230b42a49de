"""Where each value of a flat jaxpr is made and read."""

from jax.extend import core

from jaxmem.jaxpr import Atom, memory


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

  def last_reader(self, var: core.Var) -> int:
    """Returns the last equation that reads a value; -1 if none does."""
    return self.readers.get(var, (-1,))[-1]

  def is_returned(self, var: core.Var) -> bool:
    """Whether a value is a result of the jaxpr."""
    return self.last_reader(var) == len(self.jaxpr.eqns)

  def is_live_at(self, atom: Atom, index: int) -> bool:
    """Whether an equation could read an atom without keeping it longer."""
    if not isinstance(atom, core.Var) or atom not in self.definers:
      return True
    return self.last_reader(atom) >= index


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
