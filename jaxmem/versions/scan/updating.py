"""Finds what is done to the stacks of a loop that the loop could do itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import jax.numpy as jnp
from jax.extend import core

from jaxmem.jaxpr import Atom, internals, is_elementwise, memory
from jaxmem.versions.values import Values, operands, results, variables, walk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Updates:
  """What a loop could do itself to what it stacks.

  Attributes:
    index: The loop's equation.
    eqns: Equations that it could run on slices, ascending.
    late: Equations that have to come after the loop.
    gone: Which of its results are stacks that need not be there then.
    made: What it stacks in their place, since others read it.
    in_place: Of what others read, what it writes over inputs: each result, and
      the input.
    saved_bytes: What that saves.
  """

  index: int
  eqns: tuple[int, ...]
  late: frozenset[int]
  gone: tuple[int, ...]
  made: tuple[core.Var, ...]
  in_place: Mapping[core.Var, core.Var]
  saved_bytes: int


def find_updates(
  values: Values,
  index: int,
  overwritten: Mapping[core.Var, core.Var],
  save_bytes: float,
  keep_bits: bool,
) -> Updates | None:
  """Finds the updates of a loop's stacks.

  Args:
    values: The program, flat.
    index: The loop's equation, a `scan`.
    overwritten: Which donated input each result of the program has the memory
      of.
    save_bytes: What they are to save; they take as few as that needs.
    keep_bits: Whether to leave out what XLA might round otherwise.

  Returns:
    The updates; None if none are worth it.
  """
  if values.eqns[index].params["length"] <= 1:
    return None
  finder = _Finder(values, index, overwritten, keep_bits)
  found = [f for f in map(finder.updates, finder.groups()) if f.saved_bytes > 0]
  chosen = _enough(found, save_bytes)
  if not chosen:
    return None
  return finder.updates({number for each in chosen for number in each.eqns})


def _enough(found: Sequence[Updates], save_bytes: float) -> list[Updates]:
  """Returns updates that save enough together, none of which is needless.

  The largest that are not too large come first, then the smallest that will do.
  """
  chosen, left = [], []
  missing_bytes = save_bytes
  for each in sorted(found, key=lambda updates: -updates.saved_bytes):
    if each.saved_bytes <= missing_bytes:
      chosen.append(each)
      missing_bytes -= each.saved_bytes
    else:
      left.append(each)
  if missing_bytes > 0 and left:
    missing_bytes -= left[-1].saved_bytes
    for each in [*chosen]:
      if each.saved_bytes <= -missing_bytes:
        chosen.remove(each)
        missing_bytes += each.saved_bytes
    chosen.append(left[-1])
  return chosen


class _Finder:
  """Looks at what follows one loop; see `find_updates`."""

  def __init__(
    self,
    values: Values,
    index: int,
    overwritten: Mapping[core.Var, core.Var],
    keep_bits: bool,
  ):
    self._values = values
    self._keep_bits = keep_bits
    self._index = index
    self._overwritten = overwritten
    self._length = values.eqns[index].params["length"]
    _, num_carry = internals.scan_counts(values.eqns[index])
    self._stacks = {
      stack: position
      for position, stack in enumerate(values.eqns[index].outvars)
      if position >= num_carry and not isinstance(stack, core.DropVar)
    }
    self._late = self._followers()
    self._ancestors = self._leading_here()

  def groups(self) -> list[set[int]]:
    """Returns the equations that act on slices, in groups that share none."""
    group_of: dict[core.Var, set[int]] = {v: set() for v in self._stacks}
    for number in sorted(self._late):
      eqn = self._values.eqns[number]
      inside = [v for v in operands(eqn) if v in group_of]
      if not inside or not self._is_slicewise(eqn, group_of):
        continue
      joined = {number}.union(*(group_of[v] for v in inside))
      members = {*inside, *results(eqn)}
      members |= {v for v, g in group_of.items() if not g.isdisjoint(joined)}
      group_of |= dict.fromkeys(members, joined)
    groups = {id(group): group for group in group_of.values()}
    return [self._needed(group) for group in groups.values()]

  def _needed(self, numbers: set[int]) -> set[int]:
    """Leaves out what may as well come after the loop.

    Such as what is summed up of the new weights: those are there then.
    """
    values, needed = self._values, {*numbers}
    for number in sorted(numbers, reverse=True):
      eqn = values.eqns[number]
      (var,) = eqn.outvars
      readers = values.readers.get(var, ())
      is_result = var in values.jaxpr.outvars
      reads_stack = any(v in self._stacks for v in operands(eqn))
      if is_result or reads_stack or not needed.isdisjoint(readers):
        continue
      needed.discard(number)
      exposed = [
        v
        for v in operands(eqn)
        if values.definers.get(v) in needed
        and needed.union((number,)).issuperset(values.readers[v])
      ]
      if _bytes(exposed) > _bytes([var]):
        needed.add(number)
    return needed

  def updates(self, numbers: Iterable[int]) -> Updates:
    """Returns the updates with these of the equations that act on slices."""
    values, numbers = self._values, {*numbers}
    numbers |= self._preparing(numbers)
    gone = [
      stack
      for stack in self._stacks
      if numbers.issuperset(values.readers.get(stack, (-1,)))
    ]
    made = [
      var
      for number in sorted(numbers)
      for var in results(values.eqns[number])
      if not numbers.issuperset(values.readers.get(var, ()))
    ]
    in_place = {
      var: self._overwritten[var]
      for var in made
      if var in self._overwritten
      and self._may_overwrite(self._overwritten[var], numbers)
    }
    # A result that has memory of its own may have it from a stack that is read
    # for it: XLA gives it to both.
    stacked = tuple(v for v in made if v not in in_place)
    return Updates(
      index=self._index,
      eqns=tuple(sorted(numbers)),
      late=frozenset(self._late - numbers),
      gone=tuple(self._stacks[stack] for stack in gone),
      made=stacked,
      in_place=in_place,
      saved_bytes=_bytes(gone) - _bytes(stacked),
    )

  def _followers(self) -> set[int]:
    """Returns the equations that need the loop, or have effects after it."""
    late: set[core.Var] = {*results(self._values.eqns[self._index])}
    found = set()
    for number in range(self._index + 1, len(self._values.eqns)):
      eqn = self._values.eqns[number]
      if eqn.effects or not late.isdisjoint(operands(eqn)):
        found.add(number)
        late.update(results(eqn))
    return found

  def _leading_here(self) -> set[int]:
    """Returns the equations whose results the loop needs."""
    values = self._values

    def further(var: core.Var) -> list[core.Var]:
      definer = values.definers.get(var)
      return [] if definer is None else operands(values.eqns[definer])

    needed = walk(operands(values.eqns[self._index]), further)
    return {values.definers[v] for v in needed if v in values.definers}

  def _is_early(self, atom: Atom) -> bool:
    """Whether a value can be there before the loop runs."""
    if not isinstance(atom, core.Var):
      return True
    definer = self._values.definers.get(atom)
    return definer is None or (
      definer != self._index and definer not in self._late
    )

  def _is_slicewise(
    self, eqn: core.JaxprEqn, inside: Mapping[core.Var, object]
  ) -> bool:
    """Whether an equation does to each slice what it does to the whole."""
    # What says how all of it is spread does not say it of slices.
    spread = eqn.params.get("sharding")
    is_spread = spread is not None and not spread.mesh.empty
    if eqn.effects or is_spread or len(eqn.outvars) != 1:
      return False
    if self._keep_bits and any(map(_is_narrow, (*eqn.invars, *eqn.outvars))):
      return False
    shape = memory.shape(eqn.outvars[0].aval)
    given = [memory.shape(atom.aval) for atom in eqn.invars]
    if shape[:1] != (self._length,):
      return False
    if eqn.primitive.name == "broadcast_in_dim":
      return given == [()] and self._is_early(eqn.invars[0])
    return (
      is_elementwise(eqn)
      and all(each in (shape, ()) for each in given)
      and all(self._is_early(a) or a in inside for a in eqn.invars)
    )

  def _preparing(self, numbers: set[int]) -> set[int]:
    """Returns what only these read, and acts on slices of what is there before.

    Such as what decays the weights.
    """
    found: set[int] = set()
    for number in range(len(self._values.eqns) - 1, -1, -1):
      eqn = self._values.eqns[number]
      if number in self._late or number == self._index:
        continue
      readers = [
        r for v in results(eqn) for r in self._values.readers.get(v, ())
      ]
      is_theirs = readers and (numbers | found).issuperset(readers)
      if is_theirs and self._is_slicewise(eqn, {}):
        found.add(number)
    return found

  def _may_overwrite(self, given: core.Var, numbers: set[int]) -> bool:
    """Whether iterations may write over the slices of an input.

    Whatever else reads it must have done so before the loop begins: what the
    loop needs has.
    """
    eqn = self._values.eqns[self._index]
    num_kept = sum(internals.scan_counts(eqn))
    return given not in variables(eqn.invars[:num_kept]) and all(
      reader in numbers or reader in self._ancestors or reader == self._index
      for reader in self._values.readers.get(given, ())
    )


def _is_narrow(atom: Atom) -> bool:
  """Whether XLA computes a type in float32, and may leave the rounding out."""
  dtype = internals.shape_of(atom.aval).dtype
  return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def _bytes(stacks: Iterable[core.Var]) -> int:
  return sum(memory.size_bytes(stack.aval) for stack in stacks)
