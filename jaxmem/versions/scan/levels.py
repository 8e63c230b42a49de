"""A jaxpr and the bodies of its loops and branches, each with its pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, flatten
from jaxmem.versions.bodies import bodies
from jaxmem.versions.bodies import num_runs as num_runs_of
from jaxmem.versions.scan.pairs import Pair, find_pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
  """A flat jaxpr.

  Attributes:
    jaxpr: The jaxpr, flat.
    pairs: Its pairs of loops.
    inner: Bodies in which there are pairs, by their equation and their place
      among its bodies; not those of the loops of a pair, which change.
    num_runs: How often the level runs in one step; `while` counts as once.
  """

  jaxpr: core.Jaxpr
  pairs: tuple[Pair, ...]
  inner: Mapping[tuple[int, int], Level]
  num_runs: int

  def walk(self) -> Iterator[tuple[Pair, int]]:
    """Yields each pair with the number of times it runs in one step."""
    for pair in self.pairs:
      yield pair, self.num_runs
    for level in self.inner.values():
      yield from level.walk()


def make_level(jaxpr: core.Jaxpr, where: str = "", num_runs: int = 1) -> Level:
  """Finds the pairs of a jaxpr, which is flattened, and of all bodies within.

  `where` is prefixed to all names; `num_runs` is how often it runs in one step.
  """
  flat = flatten(jaxpr, keep=CUSTOM_DERIVATIVES)
  pairs = find_pairs(flat, where)
  paired = {index for pair in pairs for index in (pair.forward, pair.backward)}
  inner = {}
  for index, eqn in enumerate(flat.eqns):
    if index in paired:
      continue
    name = f"{where}{eqn.primitive.name}.{index}"
    within, runs = bodies(eqn), num_runs * num_runs_of(eqn)
    for branch, body in enumerate(within):
      suffix = f".{branch}" if len(within) > 1 else ""
      level = make_level(body, f"{name}{suffix}/", runs)
      if level.pairs or level.inner:
        inner[index, branch] = level
  return Level(jaxpr=flat, pairs=pairs, inner=inner, num_runs=num_runs)
