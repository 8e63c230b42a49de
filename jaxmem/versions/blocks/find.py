"""Finds the forward passes of a train step and the blocks they consist of.

Differentiation traces a forward pass to its end, and only then the backward
pass, whose equations say that they were transposed. So each stretch of others
that a backward pass follows is a forward pass.

A model repeats its blocks. In the sequence of equations, known by primitive and
types, that is a stretch which equals itself some way on. The way is the length
of a block; where a block begins is a matter of choice: where few bytes are read
across and the fewest products have to run again. What lies around repeated
blocks makes blocks of its own, but for what follows the last: the backward pass
begins with it, so that nothing is gained by making it again.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from jax.extend import core

from jaxmem.versions.blocks.recipe import (
  Block,
  Recipe,
  make_groups,
  make_recipe,
)
from jaxmem.versions.bodies import num_runs
from jaxmem.versions.equation_cost import product_flops
from jaxmem.versions.values import Values, num_bytes, operands, results

# A repetition, and each block, holds at least this share of the residuals of
# its forward pass, in bytes.
_MIN_RESIDUAL_SHARE = 0.02
# A cut is as good as the narrowest if at most so many times its bytes cross.
_MAX_CROSSING_RATIO = 1.02
# Among repetitions, the one with the shortest block is taken of those that hold
# at least this share of the residual bytes that any of them holds.
_MIN_SHARE_OF_LONGEST = 0.9


def find_blocks(values: Values) -> tuple[Block, ...]:
  """Finds the blocks of all forward passes; none where nothing repeats."""
  found = []
  for start, end in _forward_passes(values):
    cuts = _Forward(values, start, end).cuts()
    found += [Block(a, b, end) for a, b in itertools.pairwise(cuts)]
  return tuple(found)


def _forward_passes(values: Values) -> Iterator[tuple[int, int]]:
  """Yields the stretches that a backward pass follows."""
  start = 0
  for is_backward, group in itertools.groupby(values.is_backward):
    end = start + len([*group])
    if not is_backward and end < len(values.eqns):
      yield start, end
    start = end


class _Forward:
  """One forward pass."""

  def __init__(self, values: Values, start: int, end: int):
    self._values = values
    self._start = start
    self._end = end
    held, change = np.zeros((2, len(values.eqns) + 1), dtype=np.int64)
    for index, var in self._activations():
      if values.last_reader(var) >= end:
        held[index + 1] += num_bytes(var)
      inner = [r for r in values.readers.get(var, ()) if r < end]
      if inner:
        change[index + 1] += num_bytes(var)
        change[inner[-1] + 1] -= num_bytes(var)
    # Bytes made before each equation that are read after the pass.
    self._residual_bytes = np.cumsum(held)
    # Bytes that equations read across each position.
    self._crossing = np.cumsum(change)
    numbers: dict[object, int] = {}
    # A number for each equation, the same for those that are alike.
    self._kinds = np.zeros(end, dtype=np.int64)
    for index in range(start, end):
      eqn = values.eqns[index]
      types = [str(atom.aval) for atom in (*eqn.invars, *eqn.outvars)]
      key = eqn.primitive.name, *types
      self._kinds[index] = numbers.setdefault(key, len(numbers))

  def cuts(self) -> list[int]:
    """Returns where blocks begin and end; empty if nothing repeats."""
    least = _MIN_RESIDUAL_SHARE * self._held(self._start, self._end)
    runs = sorted(self._repetitions(self._start, self._end, least))
    if not runs:
      return []
    cuts = {self._start}
    for run in runs:
      cuts.update(run)
    return self._without_small(sorted(cuts), least)

  def _without_small(self, cuts: Sequence[int], least: float) -> list[int]:
    """Joins what holds few residuals with what follows."""
    kept = [cuts[-1]]
    for cut in reversed(cuts[:-1]):
      if self._held(cut, kept[-1]) >= least or len(kept) == 1:
        kept.append(cut)
    start, first, stop = cuts[0], kept[-1], kept[-2]
    if start < first and not self._makes_much_on_the_way(start, first, stop):
      kept[-1] = start
    return kept[::-1]

  def _makes_much_on_the_way(self, start: int, first: int, stop: int) -> bool:
    """Whether what lies before the first block had better not run again.

    It makes something larger than what the block reads of it, as where rows are
    looked up in a table that is converted first.
    """
    recipe, values = self._recipe(start, stop), self._values
    if recipe is None:
      return False
    again = [i for i in recipe.eqns if i < first]
    made = [v for i in again for v in results(values.eqns[i])]
    # Nor does a loop make a table anew that is converted before it; but with
    # one more reader, XLA does not fuse that into the look-up any more.
    made += [
      v for v in recipe.operands if v in values.hoisted and v in values.definers
    ]
    activations = {v for i, v in self._activations() if i < first}
    read_bytes = most_bytes = 0
    for var in made:
      if not any(first <= r < stop for r in values.readers.get(var, ())):
        most_bytes = max(most_bytes, num_bytes(var))
      elif var in activations:
        read_bytes += num_bytes(var)
    return most_bytes > read_bytes > 0

  def _repetitions(
    self, start: int, end: int, least: float
  ) -> Iterator[tuple[int, ...]]:
    """Yields the cuts of repetitions between two equations."""
    best = self._best_repetition(start, end)
    if best is None or self._held(best[1], best[2]) <= least:
      return
    cuts = self._placed(*best)
    if len(cuts) > 1:
      yield cuts
    yield from self._repetitions(start, best[1], least)
    yield from self._repetitions(best[2], end, least)

  def _best_repetition(
    self, start: int, end: int
  ) -> tuple[int, int, int] | None:
    """Returns length, start and end of the repetition that holds most."""
    found = []
    kinds = self._kinds[start:end]
    for length in range(1, len(kinds) // 2 + 1):
      for first, last in _stretches(kinds[length:] == kinds[:-length]):
        if last - first >= length:
          a, b = start + first, start + last + length
          found.append((self._held(a, b), length, a, b))
    if not found:
      return None
    most = max(held for held, *_ in found)
    nearly = [f for f in found if f[0] >= _MIN_SHARE_OF_LONGEST * most]
    _, length, a, b = min(nearly, key=lambda f: (f[1], -f[0], f[2]))
    return length, a, b

  def _placed(self, length: int, start: int, end: int) -> tuple[int, ...]:
    """Returns the cuts of a repetition."""

    def crossing(offset: int) -> int:
      return int(np.max(self._crossing[start + offset : end : length]))

    least = min(crossing(offset) for offset in range(length))
    most = _MAX_CROSSING_RATIO * least
    narrow = [o for o in range(length) if crossing(o) <= most]

    def cost(offset: int) -> tuple[float, int, int]:
      first = end - length - (end - start - offset) % length
      flops = self._recomputed_flops(first, first + length)
      return flops, crossing(offset), offset

    # The end may be where the narrow cut is as well.
    return tuple(range(start + min(narrow, key=cost), end + 1, length))

  def _recomputed_flops(self, start: int, stop: int) -> float:
    """Returns the flops of products that recomputing a block takes."""
    recipe = self._recipe(start, stop)
    eqns = recipe.eqns if recipe else ()
    return sum(_flops(self._values.eqns[index]) for index in eqns)

  def _recipe(self, start: int, stop: int) -> Recipe | None:
    """Says how a block is recomputed that keeps nothing."""
    (group,) = make_groups(self._values, [Block(start, stop, self._end)], 1)
    return make_recipe(group, ())

  def _held(self, start: int, end: int) -> int:
    return int(self._residual_bytes[end] - self._residual_bytes[start])

  def _activations(self) -> Iterator[tuple[int, core.Var]]:
    """Yields what equations make, but for what depends on weights alone."""
    weights = self._weights()
    for index in range(self._start, self._end):
      eqn = self._values.eqns[index]
      if operands(eqn) and all(v in weights for v in operands(eqn)):
        weights.update(results(eqn))
        continue
      for var in results(eqn):
        yield index, var

  def _weights(self) -> set[core.Var]:
    """Returns what is there before the pass and does not come from a batch."""
    weights = {*self._values.weights}
    for eqn in self._values.eqns[: self._start]:
      weights.update(results(eqn))
    return weights


def _flops(eqn: core.JaxprEqn) -> float:
  """Returns the flops of products in an equation, loops included."""
  bodies = core.jaxprs_in_params(eqn.params)
  inner = sum(_flops(e) for body in bodies for e in body.eqns)
  return product_flops(eqn) + num_runs(eqn) * inner


def _stretches(flags: np.ndarray) -> Iterator[tuple[int, int]]:
  """Yields where stretches of true values begin and end."""
  padded = np.concatenate([[0], flags.astype(np.int8), [0]])
  changes = np.flatnonzero(np.diff(padded))
  yield from zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True)
