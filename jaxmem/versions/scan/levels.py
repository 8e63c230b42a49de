"""A jaxpr and the bodies of its loops and branches, each with its pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, flatten
from jaxmem.versions.scan.pairs import Pair, find_pairs


class Inner(NamedTuple):
  """A body within an equation.

  Attributes:
    equation: The equation's position.
    parameter: Which of its parameters holds the body.
    branch: Where in the parameter, if that is a tuple.
    level: The body.
  """

  equation: int
  parameter: str
  branch: int | None
  level: Level


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
  """A flat jaxpr.

  Attributes:
    jaxpr: The jaxpr, flat.
    pairs: Its pairs of loops.
    inner: Bodies in which there are pairs; not those of the loops of a pair,
      which change.
    num_runs: How often the level runs in one step; `while` counts as once.
  """

  jaxpr: core.Jaxpr
  pairs: tuple[Pair, ...]
  inner: tuple[Inner, ...]
  num_runs: int

  def walk(self) -> Iterator[tuple[Pair, int]]:
    """Yields each pair with the number of times it runs in one step."""
    for pair in self.pairs:
      yield pair, self.num_runs
    for inner in self.inner:
      yield from inner.level.walk()


def make_level(jaxpr: core.Jaxpr, where: str = "", num_runs: int = 1) -> Level:
  """Finds the pairs of a jaxpr and of all bodies within.

  Args:
    jaxpr: Any; it is flattened.
    where: Prefixed to all names.
    num_runs: How often it runs in one step.
  """
  flat = flatten(jaxpr, keep=CUSTOM_DERIVATIVES)
  pairs = find_pairs(flat, where)
  paired = {index for pair in pairs for index in (pair.forward, pair.backward)}
  inner = []
  for index, eqn in enumerate(flat.eqns):
    if index in paired:
      continue
    is_scan = eqn.primitive.name == "scan"
    for parameter, branch, body in _iter_bodies(eqn):
      suffix = "" if branch is None else f".{branch}"
      level = make_level(
        body,
        f"{where}{eqn.primitive.name}.{index}{suffix}/",
        num_runs * (eqn.params["length"] if is_scan else 1),
      )
      if level.pairs or level.inner:
        inner.append(Inner(index, parameter, branch, level))
  return Level(jaxpr=flat, pairs=pairs, inner=tuple(inner), num_runs=num_runs)


def _iter_bodies(
  eqn: core.JaxprEqn,
) -> Iterator[tuple[str, int | None, core.Jaxpr]]:
  """Yields the bodies of an equation that may hold pairs of their own.

  Yields:
    The parameter, the position in it if it is a tuple, and the body.
  """
  name = eqn.primitive.name
  if name == "cond":
    for number, branch in enumerate(eqn.params["branches"]):
      yield "branches", number, branch
  elif name == "while":
    yield "body_jaxpr", None, eqn.params["body_jaxpr"]
  elif name in ("scan", "shard_map", "jit", "pjit"):
    yield "jaxpr", None, eqn.params["jaxpr"]
