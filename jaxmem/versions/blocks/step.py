"""Recomputes the blocks of a step in its backward pass: what to call."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.jaxpr import CUSTOM_DERIVATIVES, flatten
from jaxmem.versions.blocks.find import find_blocks
from jaxmem.versions.blocks.fused import fused_seconds
from jaxmem.versions.blocks.keep import again_seconds, choose_kept
from jaxmem.versions.blocks.recipe import (
  Recipe,
  crossing_bytes,
  make_groups,
  make_recipe,
)
from jaxmem.versions.blocks.rewrite import rewrite
from jaxmem.versions.bodies import (
  bodies,
  num_constants,
  num_runs,
  num_shards,
  with_body,
)
from jaxmem.versions.joined import Joined, find_joined
from jaxmem.versions.knapsack import Chooser
from jaxmem.versions.mapped import in_pieces
from jaxmem.versions.values import Values, num_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockChoice:
  """How the blocks of a step are recomputed.

  Attributes:
    num_groups: How many groups the blocks are divided into, at most one per
      block: each is recomputed at once, from what crosses into it.
    keep_bytes: Most bytes that the groups keep besides.
    reads_again: Whether what XLA makes of values for the forward pass, as
      another layout for a product, or of arguments that are divided between
      devices, as gathering them, is done again for the backward pass.
  """

  num_groups: int
  keep_bytes: int = 0
  reads_again: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blocks:
  """The blocks of a step.

  Attributes:
    number: How many there are; 0 where nothing repeats.
    crossing_bytes: What the next block reads of a block, on average.
  """

  number: int
  crossing_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recomputed:
  """A step that recomputes blocks.

  Attributes:
    num_dropped: How many values do not stay for the backward pass any more.
    dropped_bytes: Their bytes in the jaxpr, of one device if there are several.
      XLA would not have kept them all: it recomputes much by itself, where it
      fuses.
    kept_bytes: Of what groups keep besides.
    again_s: Estimated seconds of the products and other heavy equations that
      run again.
    fused_s: Estimated seconds of the kernels between them; see `blocks.fused`.
    answers: What was chosen to be kept, to be done again without choosing.
    rewrite: Returns the step, written anew; the same at each call.
  """

  num_dropped: int
  dropped_bytes: int
  kept_bytes: int
  again_s: float
  fused_s: float
  answers: tuple[tuple[int, ...], ...]
  rewrite: Callable[[], core.Jaxpr] = dataclasses.field(
    repr=False, compare=False
  )

  @functools.cached_property
  def closed_jaxpr(self) -> core.Jaxpr:
    """The step, written anew."""
    return self.rewrite()


class BlockStep:
  """A step and its blocks, which are found once.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.
    runs: How many times it runs; estimates of seconds are for all.
    num_devices: How many share its values; bytes and seconds are those of one,
      as if each had an even part of everything.
    is_mapped: Whether it is within a `shard_map`.
    num_constants: See `Values`.

  Attributes:
    blocks: The blocks of the step; if it has none, those of the body within
      that has most, such as that of a loop over parts of a batch.
  """

  def __init__(
    self,
    closed_jaxpr: core.Jaxpr,
    *,
    runs: int = 1,
    num_devices: int = 1,
    is_mapped: bool = False,
    num_constants: int = 0,
  ):
    self._given = closed_jaxpr
    self._runs = runs
    self._num_devices = num_devices
    self._is_mapped = is_mapped
    flat = flatten(closed_jaxpr, keep=CUSTOM_DERIVATIVES)
    self._values = Values(flat, num_constants)
    self._blocks = find_blocks(self._values)
    if self._blocks and not is_mapped:
      self._cut_into_pieces()
    # Pairs of `shard_map`, each with what both run.
    self._joined: list[tuple[Joined, BlockStep]] = []
    # What loops, branches and calls run: by equation, and place in it.
    self._inner: dict[tuple[int, int], BlockStep] = {}
    if not self._blocks:
      self._look_into_equations()
    self.blocks = self._describe()

  def _cut_into_pieces(self) -> None:
    """Lets blocks make parts of what a `shard_map` returns again."""
    pieces = in_pieces(self._values.jaxpr)
    if pieces is self._values.jaxpr:
      return
    values = Values(pieces)
    found = find_blocks(values)
    if found:
      self._values, self._blocks = values, found

  def _look_into_equations(self) -> None:
    """Makes steps of what equations run."""
    taken: set[int] = set()
    # Within another `shard_map`, jax would have to trace them in its context.
    for joined in () if self._is_mapped else find_joined(self._values.jaxpr):
      step = self._of_body(joined.body, joined.eqns[0])
      if step.blocks.number:
        self._joined.append((joined, step))
        taken |= {joined.forward, joined.backward}
    for index, eqn in enumerate(self._values.eqns):
      if index not in taken:
        for place, body in enumerate(bodies(eqn)):
          self._inner[index, place] = self._of_body(body, eqn)

  def _of_body(self, body: core.Jaxpr, eqn: core.JaxprEqn) -> "BlockStep":
    return BlockStep(
      body,
      runs=self._runs * num_runs(eqn),
      num_devices=max(1, self._num_devices // num_shards(eqn)),
      is_mapped=self._is_mapped or num_shards(eqn) > 1,
      num_constants=num_constants(eqn),
    )

  def _within(self) -> Iterator["BlockStep"]:
    """Yields the steps that equations run."""
    yield from (step for _, step in self._joined)
    yield from self._inner.values()

  def recompute(
    self,
    choice: BlockChoice,
    rates: Rates,
    known: Sequence[tuple[int, ...]] = (),
  ) -> Recomputed:
    """Lets the backward pass of the step recompute blocks of its forward pass.

    Args:
      choice: How.
      rates: Of the device that will run the step; they decide what is kept.
      known: The answers of another process, for the same step and rates.

    Returns:
      The step, with equal results; unchanged where it has no blocks.

    Raises:
      ValueError: If there are fewer groups than one.
    """
    if choice.num_groups < 1:
      raise ValueError(f"num_groups must be positive, got {choice.num_groups}.")
    chooser = Chooser(known)
    recipes: dict[BlockStep, list[Recipe]] = {}
    num_dropped, kept, dropped, again_s, fused_s = 0, 0, 0, 0.0, 0.0
    for step in self._with_blocks():
      parts = step._num_devices
      groups = make_groups(step._values, step._blocks, choice.num_groups)
      stays = choose_kept(groups, parts * choice.keep_bytes, rates, chooser)
      made = [r for group in groups if (r := make_recipe(group, stays))]
      recipes[step] = made
      lost = [var for recipe in made for var in recipe.dropped]
      num_dropped += len(lost)
      dropped += sum(num_bytes(v) for v in lost) // parts
      kept += sum(num_bytes(v) for v in stays) // parts
      share = step._runs / parts
      again_s += share * again_seconds(made, rates)
      fused_s += share * sum(fused_seconds(r, rates) for r in made)
    return Recomputed(
      num_dropped=num_dropped,
      dropped_bytes=dropped,
      kept_bytes=kept,
      again_s=again_s,
      fused_s=fused_s,
      answers=tuple(chooser.answers),
      rewrite=functools.cache(
        lambda: (
          self._rewritten(recipes, choice.reads_again)
          if num_dropped
          else self._given
        )
      ),
    )

  def _with_blocks(self) -> Iterator["BlockStep"]:
    """Yields this if it has blocks, or else the bodies within that do."""
    if self._blocks:
      yield self
    for inner in self._within():
      yield from inner._with_blocks()

  def _rewritten(
    self,
    recipes: Mapping["BlockStep", Collection[Recipe]],
    reads_again: bool,
  ) -> core.Jaxpr:
    """Returns the flat jaxpr that makes values again."""
    if self in recipes:
      return rewrite(
        self._values,
        recipes[self],
        reads_again=reads_again,
        num_devices=self._num_devices,
      )
    eqns = [*self._values.eqns]
    for (index, place), inner in self._inner.items():
      if inner.blocks.number:
        body = inner._rewritten(recipes, reads_again)
        eqns[index] = with_body(eqns[index], place, body)
    for joined, inner in self._joined:
      body = inner._rewritten(recipes, reads_again)
      eqns[joined.forward], eqns[joined.backward] = joined.apart(body)
    return self._values.jaxpr.replace(eqns=eqns)

  def _describe(self) -> Blocks:
    if self._blocks:
      number = len(self._blocks)
      groups = make_groups(self._values, self._blocks, number)
      total = sum(crossing_bytes(group) for group in groups)
      total //= self._num_devices
      return Blocks(number=number, crossing_bytes=total // number)
    none = Blocks(number=0, crossing_bytes=0)
    found = [inner.blocks for inner in self._within()]
    return max([none, *found], key=lambda blocks: blocks.number)
