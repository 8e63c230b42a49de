"""Which carries of a loop can stay where they are, and after how many rounds.

NNC's question, asked of a jaxpr: can the new value of a carry be written where
the old one is? Not if the old value is still needed then: because another
carry takes it over, or because it is read elsewhere than where it is written.
In a body that runs several rounds, the values in between lie in temporaries,
and the last value of a carry may well find the first one dead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from jax.extend import core

from jaxmem.experimental.jaxpr_order import in_place
from jaxmem.jaxpr import Atom, flatten, internals, is_elementwise, memory

Reading = Literal["pointwise", "elsewhere"]

# Compilers fuse these into whoever reads their results.
_FUSIBLE = frozenset(
  """
  broadcast_in_dim concatenate dynamic_slice expand_dims gather iota pad
  reshape rev select_and_gather_add slice split squeeze transpose
  """.split()
)
# A compiler gives these equations memory of their own: what reads their results
# does not read their operands.
_UPDATES = frozenset({"dynamic_update_slice", "scatter"})


class Move(NamedTuple):
  """A carry's new value is the old one of a carry, maybe of another."""

  carry: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Carries:
  """The carries of a loop's body.

  Attributes:
    jaxpr: The body, flat: constants, then carries, then what is scanned.
    first: Position of the first carry among its inputs.
    sizes: Per carry, its bytes.
    moves: Per carry, whose old value becomes its new one; None if the new value
      is computed.
    readings: Per carry whose new value is computed, the carries that are read
      when it is written, fused operations included, and how.
    reads: Per output of the body, carries or not, the carries that have to be
      there until it is: the same without fusion.
    is_read: Per carry, whether anything reads it but moves.
    is_emitted: Per carry, whether its old value is an output that is no carry.
    needs: Per output, the carries from whose new values it is computed.
    twins: Per output, the first carry with the same new value, or itself.
    makers: Per output, which of the body's equations computes it; None if it is
      passed on.
  """

  jaxpr: core.Jaxpr
  first: int
  sizes: tuple[int, ...]
  moves: tuple[Move | None, ...]
  readings: tuple[dict[int, Reading], ...]
  reads: tuple[frozenset[int], ...]
  is_read: tuple[bool, ...]
  is_emitted: tuple[bool, ...]
  needs: tuple[frozenset[int], ...]
  twins: tuple[int, ...]
  makers: tuple[int | None, ...]

  @property
  def num_carries(self) -> int:
    """How many there are."""
    return len(self.sizes)

  @property
  def invars(self) -> list[core.Var]:
    """The carries as the body receives them."""
    return [*self.jaxpr.invars[self.first : self.first + self.num_carries]]


def analyze(jaxpr: core.Jaxpr, num_consts: int, num_carry: int) -> Carries:
  """Finds out how the carries of a loop's body depend on one another.

  Args:
    jaxpr: The body: its inputs are constants, carries, and others; its outputs
      carries, and others.
    num_consts: How many constants.
    num_carry: How many carries.
  """
  flat = flatten(jaxpr)
  invars = flat.invars[num_consts : num_consts + num_carry]
  position = {var: index for index, var in enumerate(invars)}
  moves = tuple(
    Move(position[atom])
    if isinstance(atom, core.Var) and atom in position
    else None
    for atom in flat.outvars
  )
  computed = [
    atom if isinstance(atom, core.Var) and move is None else None
    for atom, move in zip(flat.outvars, moves, strict=True)
  ]
  results = {
    var: index
    for index, var in reversed([*enumerate(computed[:num_carry])])
    if var is not None
  }
  maker = {var: n for n, eqn in enumerate(flat.eqns) for var in eqn.outvars}
  walk = _Walk(flat, position, results)
  emitted = {move.carry for move in moves[num_carry:] if move is not None}
  return Carries(
    jaxpr=flat,
    first=num_consts,
    sizes=tuple(memory.size_bytes(var.aval) for var in invars),
    moves=moves[:num_carry],
    readings=tuple(walk.readings(var) for var in computed[:num_carry]),
    reads=tuple(walk.reads(var) for var in computed),
    is_read=tuple(var in walk.read for var in invars),
    is_emitted=tuple(c in emitted for c in range(num_carry)),
    needs=tuple(walk.needs(var) for var in computed),
    twins=tuple(
      index if var is None else results.get(var, index)
      for index, var in enumerate(computed)
    ),
    makers=tuple(None if v is None else maker.get(v) for v in computed),
  )


class _Walk:
  """What lies between the inputs and the new values of a body.

  Attributes:
    read: The variables that are read, other than to pass them on.
  """

  def __init__(
    self,
    jaxpr: core.Jaxpr,
    carries: dict[core.Var, int],
    results: dict[core.Var, int],
  ):
    self._carries = carries
    self._results = results
    self._definer = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    self.read = {var for eqn in jaxpr.eqns for var in variables(eqn.invars)}

  def readings(self, result: core.Var | None) -> dict[int, Reading]:
    """Returns the carries that are read when a new value is written."""
    found: dict[int, Reading] = {}
    seen: set[tuple[core.Var, bool]] = set()
    stack = [] if result is None else [(result, True)]
    while stack:
      var, is_pointwise = stack.pop()
      if var in self._carries:
        carry = self._carries[var]
        if not is_pointwise:
          found[carry] = "elsewhere"
        else:
          found.setdefault(carry, "pointwise")
        continue
      eqn = self._definer.get(var)
      if eqn is None or (var is not result and not is_fusible(eqn)):
        continue
      for step in _operands(eqn, var, is_pointwise):
        if step not in seen:
          seen.add(step)
          stack.append(step)
    return found

  def reads(self, result: core.Var | None) -> frozenset[int]:
    """Returns the carries that an output is computed from."""
    seen = self._behind(result)
    return frozenset(self._carries[v] for v in seen if v in self._carries)

  def needs(self, result: core.Var | None) -> frozenset[int]:
    """Returns the carries whose new values an output is computed from."""
    seen = self._behind(result)
    return frozenset(self._results[v] for v in seen if v in self._results)

  def _behind(self, result: core.Var | None) -> set[core.Var]:
    """Returns what an output is computed from, up to new values of carries."""
    seen: set[core.Var] = set()
    stack = [] if result is None else [result]
    while stack:
      var = stack.pop()
      eqn = self._definer.get(var)
      if eqn is None or (var is not result and var in self._results):
        continue
      found = set(variables(eqn.invars)) - seen
      seen |= found
      stack += found
    return seen - {result}


def variables(atoms: Iterable[Atom]) -> Iterator[core.Var]:
  """Yields those that are variables."""
  return (atom for atom in atoms if isinstance(atom, core.Var))


def is_fusible(eqn: core.JaxprEqn) -> bool:
  """Whether a compiler may compute it where its result is read."""
  if eqn.effects:
    return False
  name = eqn.primitive.name
  if name in _UPDATES or name in ("sort", "scan", "while"):
    return False
  return (
    name in _FUSIBLE or memory.renamed(eqn, views=True) or is_elementwise(eqn)
  )


def _operands(
  eqn: core.JaxprEqn, result: core.Var, is_pointwise: bool
) -> Iterable[tuple[core.Var, bool]]:
  """Yields operands, and whether each is read only where a result is written.

  Of several results, only one is written over an operand: a loop within the
  body leaves what it carries where that was.
  """
  same = {
    operand
    for operand, output in in_place(eqn)
    if eqn.outvars[output] is result
  }
  if memory.renamed(eqn, views=True):
    same = set(range(len(eqn.outvars)))
  for position, operand in enumerate(eqn.invars):
    if isinstance(operand, core.Var):
      yield operand, is_pointwise and position in same


class Prediction(NamedTuple):
  """What a body of several rounds would copy.

  Attributes:
    copied: Carries that cannot stay where they are.
    before: Pairs of carries: the new value of the first has to be there before
      that of the second is written, since it is computed from what is
      overwritten.
  """

  copied: frozenset[int]
  before: frozenset[tuple[int, int]]

  def copied_bytes(self, carries: Carries) -> int:
    """Returns the bytes that are copied each time the body has run."""
    return sum(carries.sizes[c] for c in self.copied)


def predict(carries: Carries, num_rounds: int) -> Prediction:
  """Says what a body of some rounds would copy, if compiled round by round.

  Args:
    carries: The body of one round.
    num_rounds: Rounds in a body, at least one.
  """
  copied: set[int] = set()
  before: set[tuple[int, int]] = set()
  held = _Held(carries, num_rounds)
  by_size = sorted(
    range(carries.num_carries), key=lambda c: (-carries.sizes[c], c)
  )
  for carry in by_size:
    edges = held.place(carry)
    if edges is None or not _orders(carries, before | edges):
      copied.add(carry)
    else:
      before |= edges
  return Prediction(frozenset(copied), frozenset(before))


class _Held:
  """Where the first and the last values of a body of some rounds are."""

  def __init__(self, carries: Carries, num_rounds: int):
    self._carries = carries
    self._num_rounds = num_rounds
    # holders[t][c] are the carries that hold the first value of c when round t
    # begins; after the last round, those that return it.
    self._holders: list[list[set[int]]] = [
      [{c} for c in range(carries.num_carries)]
    ]
    for _ in range(num_rounds):
      moved: list[set[int]] = [set() for _ in range(carries.num_carries)]
      for first, holders in enumerate(self._holders[-1]):
        moved[first] = {
          carry
          for carry, move in enumerate(carries.moves)
          if move is not None and move.carry in holders
        }
      self._holders.append(moved)
    self._taken: set[tuple[int, int]] = set()

  def place(self, carry: int) -> set[tuple[int, int]] | None:
    """Writes a carry's last value over its first.

    Returns:
      Pairs that must be in this order within a round; None if that cannot be.
    """
    last = self._holders[-1][carry]
    if last == {carry}:
      # The value is passed on, all the way.
      return set()
    if last:
      return None
    made = self._made(carry)
    if made is None or made in self._taken:
      return None
    when, result = made
    for later, holders in enumerate(self._holders[:-1]):
      for holder in holders[carry]:
        # Outputs of a round are kept until the last one has run.
        is_read = later > when and self._carries.is_read[holder]
        if is_read or self._carries.is_emitted[holder]:
          return None
    edges = self._edges(self._holders[when][carry], result)
    if edges is not None:
      self._taken.add(made)
    return edges

  def _made(self, carry: int) -> tuple[int, int] | None:
    """Returns the round and the carry as which a last value was computed."""
    for when in reversed(range(self._num_rounds)):
      move = self._carries.moves[carry]
      if move is None:
        return when, self._carries.twins[carry]
      carry = move.carry
    # It is another carry's first value.
    return None

  def _edges(
    self, holders: set[int], result: int
  ) -> set[tuple[int, int]] | None:
    readings, makers = self._carries.readings[result], self._carries.makers
    if any(readings.get(holder) == "elsewhere" for holder in holders):
      return None
    return {
      (self._carries.twins[other], result)
      for other, found in enumerate(self._carries.reads)
      if self._carries.twins[other] != result
      # What one equation computes is there at once: nothing waits.
      and (makers[other] is None or makers[other] != makers[result])
      and not holders.isdisjoint(found)
    }


def _orders(carries: Carries, before: set[tuple[int, int]]) -> bool:
  """Whether new values can be computed in an order that obeys some pairs."""
  waits = [set(needs) for needs in carries.needs]
  for first, second in before:
    waits[second].add(first)
  ready: set[int] = set()
  while len(ready) < len(waits):
    more = {c for c, needed in enumerate(waits) if needed <= ready} - ready
    if not more:
      return False
    ready |= more
  return True


def choose_rounds(
  carries: Carries, length: int | None, *, max_rounds: int, min_bytes: int
) -> tuple[int, Prediction]:
  """Returns how many rounds a body should have so that the least is copied.

  Args:
    carries: The body of one round.
    length: How many rounds the loop has; None if that is not known.
    max_rounds: The most rounds in a body. There are always two bodies or more.
    min_bytes: Fewer bytes copied by a body are not worth a longer one.

  Returns:
    The fewest rounds of those that copy the fewest bytes per round.
  """
  if length is not None:
    max_rounds = min(max_rounds, max(length // 2, 1))
  best, best_bytes = (1, predict(carries, 1)), 0.0
  best_bytes = float(best[1].copied_bytes(carries))
  for num_rounds in range(2, max_rounds + 1):
    if best_bytes * best[0] < min_bytes:
      break
    prediction = predict(carries, num_rounds)
    copied_bytes = prediction.copied_bytes(carries) / num_rounds
    if copied_bytes < best_bytes:
      best, best_bytes = (num_rounds, prediction), copied_bytes
  return best


def scan_carries(eqn: core.JaxprEqn) -> Carries:
  """Analyzes the body of a scan."""
  num_consts, num_carry = internals.scan_counts(eqn)
  return analyze(eqn.params["jaxpr"], num_consts, num_carry)


def while_carries(eqn: core.JaxprEqn) -> Carries:
  """Analyzes the body of a while loop."""
  body = eqn.params["body_jaxpr"]
  return analyze(body, eqn.params["body_nconsts"], len(eqn.outvars))
