"""Where each value of a flat jaxpr is made and read."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from jax.extend import core

from jaxmem.jaxpr import Atom, internals, is_elementwise, memory
from jaxmem.versions.equation_cost import TRANSCENDENTAL

# Other orders and types of the same elements.
VIEWS = frozenset("convert_element_type reshape squeeze transpose".split())
# What else makes each element of a result of one of each operand.
_SPREADS = VIEWS | frozenset("broadcast_in_dim complex imag real".split())


class Values:
  """The values of a flat jaxpr.

  Args:
    jaxpr: The jaxpr.
    num_constants: How many of its first inputs are the same at each run, where
      a loop runs it.

  Attributes:
    jaxpr: The jaxpr.
    eqns: Its equations.
    definers: The equation that makes each value; inputs and constants have
      none.
    readers: The equations that read each value, ascending. Results of the
      jaxpr are read once more, by an equation past the last.
  """

  def __init__(self, jaxpr: core.Jaxpr, num_constants: int = 0):
    self.jaxpr = jaxpr
    self.eqns = jaxpr.eqns
    self._num_constants = num_constants
    self.definers: dict[core.Var, int] = {}
    self.readers: dict[core.Var, list[int]] = {}
    for position, eqn in enumerate(jaxpr.eqns):
      for var in operands(eqn):
        self.readers.setdefault(var, []).append(position)
      for var in results(eqn):
        self.definers[var] = position
    for var in variables(jaxpr.outvars):
      self.readers.setdefault(var, []).append(len(jaxpr.eqns))

  @functools.cached_property
  def hoisted(self) -> frozenset[core.Var]:
    """What is the same at each run of a loop, as weights in another type are.

    XLA may make it once, before the loop; but not what takes more bytes than
    what it is made of, as masks do.
    """
    found = {*self.jaxpr.invars[: self._num_constants]}
    for eqn in self.eqns if found else ():
      read, made = operands(eqn), results(eqn)
      may_leave = read and not eqn.effects and found.issuperset(read)
      if may_leave and sum(map(num_bytes, made)) <= sum(map(num_bytes, read)):
        found.update(made)
    return frozenset(found)

  @functools.cached_property
  def weights(self) -> frozenset[core.Var]:
    """Inputs of the types that are returned, as new weights or gradients."""
    returned = {str(atom.aval) for atom in self.jaxpr.outvars}
    given = (v for v in self.jaxpr.invars if str(v.aval) in returned)
    return frozenset((*given, *self.jaxpr.constvars))

  @functools.cached_property
  def of_weights(self) -> frozenset[core.Var]:
    """Elementwise functions of weights alone, transcendental ones among them.

    XLA may fuse them into what reads them, and so take them for each of its
    elements.
    """
    made, found = {*self.weights}, set[core.Var]()
    for eqn in self.eqns:
      read = operands(eqn)
      if not (read and made.issuperset(read)):
        continue
      name = eqn.primitive.name
      if not (is_elementwise(eqn) or name in _SPREADS):
        continue
      made.update(results(eqn))
      if name in TRANSCENDENTAL or not found.isdisjoint(read):
        found.update(results(eqn))
    return frozenset(found)

  @functools.cached_property
  def is_backward(self) -> tuple[bool, ...]:
    """Whether each equation is part of a backward pass.

    Where a function that is differentiated takes gradients itself, all that it
    does is its forward pass: only the outermost derivative that is transposed
    counts.
    """
    return tuple(_is_backward([*map(internals.derivatives, self.eqns)]))

  def is_of_backward_pass(self, var: core.Var) -> bool | None:
    """Whether the backward pass makes a value; None of what no pass makes."""
    definer = self.definers.get(var)
    return None if definer is None else self.is_backward[definer]

  def last_reader(self, var: core.Var) -> int:
    """Returns the last equation that reads a value; -1 if none does."""
    return self.readers.get(var, (-1,))[-1]

  def remake(
    self, wanted: Iterable[core.Var], is_there: Callable[[core.Var], bool]
  ) -> tuple[tuple[int, ...], list[core.Var]]:
    """Says how to make values again.

    Args:
      wanted: The values.
      is_there: Whether a value need not be made again.

    Returns:
      The equations, ascending; and what is there, inputs and constants
      included, of all that they read or that is wanted.
    """
    eqns: set[int] = set()
    read: dict[core.Var, None] = {}
    pending = [*wanted]
    while pending:
      var = pending.pop()
      index = self.definers.get(var)
      if index is None or is_there(var):
        read[var] = None
      elif index not in eqns:
        eqns.add(index)
        pending += operands(self.eqns[index])
    return tuple(sorted(eqns)), [*read]


def _is_backward(derivatives: Sequence[Sequence[bool]]) -> Iterator[bool]:
  """Yields whether equations belong to a backward pass.

  Args:
    derivatives: Whether those that each equation is part of are transposed,
      the outermost first.
  """
  groups = [
    (is_backward, [*group])
    for is_backward, group in itertools.groupby(
      derivatives, key=lambda chain: bool(chain) and chain[0]
    )
  ]
  for place, (is_backward, group) in enumerate(groups):
    # What no backward pass of this derivative follows may hold some of others.
    if is_backward or place + 1 < len(groups) or not any(map(any, group)):
      yield from [is_backward] * len(group)
    else:
      yield from _is_backward([chain[1:] for chain in group])


def walk(
  start: Iterable[core.Var],
  further: Callable[[core.Var], Iterable[core.Var]],
) -> Iterator[core.Var]:
  """Yields values and all that `further` leads to from them, each once."""
  pending = [*start]
  seen = {*pending}
  while pending:
    var = pending.pop()
    yield var
    for other in further(var):
      if other not in seen:
        seen.add(other)
        pending.append(other)


def variables(atoms: Iterable[Atom]) -> list[core.Var]:
  """Returns the atoms that are no literals, each once."""
  return [*dict.fromkeys(a for a in atoms if isinstance(a, core.Var))]


def operands(eqn: core.JaxprEqn) -> list[core.Var]:
  """Returns the variables that an equation reads, each once."""
  return variables(eqn.invars)


def reading(
  eqn: core.JaxprEqn, instead: Mapping[core.Var, Atom]
) -> core.JaxprEqn:
  """Returns an equation that reads other values in place of some."""
  return eqn.replace(
    invars=[
      instead.get(atom, atom) if isinstance(atom, core.Var) else atom
      for atom in eqn.invars
    ]
  )


def results(eqn: core.JaxprEqn) -> list[core.Var]:
  """Returns the variables that an equation makes."""
  return [v for v in eqn.outvars if not isinstance(v, core.DropVar)]


def num_bytes(var: core.Var) -> int:
  """Returns the bytes of a value; 0 if it is no array."""
  try:
    return memory.size_bytes(var.aval)
  except ValueError:
    return 0
