"""A jaxpr and the bodies of its loops and branches, each with its pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, flatten
from jaxmem.versions import bodies
from jaxmem.versions.joined import Joined, find_joined
from jaxmem.versions.scan.pairs import Pair, find_pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
  """A flat jaxpr.

  Attributes:
    jaxpr: The jaxpr, flat.
    pairs: Its pairs of loops.
    inner: Bodies in which there are pairs, by their equation and their place
      among its bodies; not those of the loops of a pair, which change.
    joined: Two bodies of `shard_map` that are one level: what they are, and the
      level.
    num_runs: How often the level runs in one step; `while` counts as once.
    num_shards: How many devices have values of their own for each of its.
  """

  jaxpr: core.Jaxpr
  pairs: tuple[Pair, ...]
  inner: Mapping[tuple[int, int], Level]
  joined: tuple[tuple[Joined, Level], ...]
  num_runs: int
  num_shards: int

  @property
  def names(self) -> set[str]:
    """The names of all that could be dropped."""
    return {
      each.name
      for pair, _ in self.walk()
      for each in (*pair.residuals, *pair.hoisted)
    }

  def walk(self) -> Iterator[tuple[Pair, Level]]:
    """Yields each pair with its level."""
    for pair in self.pairs:
      yield pair, self
    for level in (*self.inner.values(), *(level for _, level in self.joined)):
      yield from level.walk()


def make_level(
  jaxpr: core.Jaxpr, where: str = "", num_runs: int = 1, num_shards: int = 1
) -> Level:
  """Finds the pairs of a jaxpr, which is flattened, and of all bodies within.

  `where` is prefixed to all names; for the rest, see `Level`.
  """
  flat = flatten(jaxpr, keep=CUSTOM_DERIVATIVES)
  pairs = find_pairs(flat, where, is_mapped=num_shards > 1)
  paired = {index for pair in pairs for index in (pair.forward, pair.backward)}
  joined = []
  # Within another `shard_map`, jax would have to trace them in its context.
  for each in find_joined(flat) if num_shards == 1 else ():
    eqn = each.eqns[0]
    name = f"{where}{eqn.primitive.name}.{each.forward}-{each.backward}/"
    level = make_level(each.body, name, num_runs, bodies.num_shards(eqn))
    if level.pairs:
      joined.append((each, level))
      paired |= {each.forward, each.backward}
  inner = {}
  for index, eqn in enumerate(flat.eqns):
    if index in paired:
      continue
    name = f"{where}{eqn.primitive.name}.{index}"
    within, shards = bodies.bodies(eqn), num_shards * bodies.num_shards(eqn)
    for branch, body in enumerate(within):
      suffix = f".{branch}" if len(within) > 1 else ""
      runs = num_runs * bodies.num_runs(eqn)
      level = make_level(body, f"{name}{suffix}/", runs, shards)
      if level.pairs or level.inner:
        inner[index, branch] = level
  return Level(
    jaxpr=flat,
    pairs=pairs,
    inner=inner,
    joined=tuple(joined),
    num_runs=num_runs,
    num_shards=num_shards,
  )
