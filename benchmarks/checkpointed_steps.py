"""Steps of the zoo and held-out ones, with and without `jax.checkpoint`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import jax
from flax import linen as nn

from benchmarks import held_out, zoo
from benchmarks.policies import policy_named
from benchmarks.zoo import language, layers, lora, vision

# How to build a step with other blocks, and its blocks.
_BUILDERS: Mapping[str, tuple[Callable[..., zoo.Step], type[nn.Module]]] = {
  "gpt2_small": (language.gpt2_small, layers.Block),
  "gpt2_4_layers": (language.gpt2_4_layers, layers.Block),
  "scan_transformer": (language.scan_transformer, layers.Block),
  "llama_lora": (lora.llama_lora, lora.Block),
  "vit_b16": (vision.vit_b16, layers.Block),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapedStep:
  """A step, not jitted, and the shapes of its arguments.

  Attributes:
    function: The step.
    args: One pytree of `jax.ShapeDtypeStruct` per argument.
    jit_kwargs: What to pass to `jax.jit`.
  """

  function: Callable[..., Any]
  args: tuple[Any, ...]
  jit_kwargs: Mapping[str, Any]


class Model(Protocol):
  """Makes the step of one model."""

  @property
  def takes_policy(self) -> bool:
    """Whether its blocks can be recomputed under a policy."""
    ...

  def step(self, policy: str | None = None) -> ShapedStep:
    """Returns the step.

    Args:
      policy: Of `jax.checkpoint` around each block.
    """
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZooModel:
  """One of the zoo, or one that only `_BUILDERS` has.

  Attributes:
    name: Of the model.
    batch: Examples per step.
    size: Of `zoo.SIZES`.
  """

  name: str
  batch: int
  size: str

  @property
  def takes_policy(self) -> bool:
    """See `Model`."""
    return self.name in _BUILDERS

  def step(self, policy: str | None = None) -> ShapedStep:
    """See `Model`."""
    made = self._plain() if policy is None else self._checkpointed(policy)
    return ShapedStep(
      function=made.function, args=made.args, jit_kwargs=made.jit_kwargs
    )

  def _plain(self) -> zoo.Step:
    if self.takes_policy and self.name not in zoo.MODELS:
      return _BUILDERS[self.name][0](self.batch, self.size)
    return zoo.build(self.name, self.batch, size=self.size)

  def _checkpointed(self, policy: str) -> zoo.Step:
    builder, block = _BUILDERS[self.name]
    # Inside a loop, nothing merges the two runs.
    prevent_cse = self.name != "scan_transformer"
    named = policy_named(policy)
    block = nn.remat(block, policy=named, prevent_cse=prevent_cse)
    return builder(self.batch, self.size, block=cast(Any, block))


@dataclasses.dataclass(frozen=True)
class HeldOutModel:
  """One of `held_out.STEPS`, at its own batch.

  Attributes:
    name: Of the step.
  """

  name: str

  @property
  def takes_policy(self) -> bool:
    """See `Model`."""
    return held_out.takes_policy(held_out.STEPS[self.name])

  def step(self, policy: str | None = None) -> ShapedStep:
    """See `Model`."""
    build = held_out.STEPS[self.name]
    made = build(policy) if policy else build()
    return ShapedStep(
      function=made.function,
      args=jax.eval_shape(made.make_args),
      jit_kwargs=made.jit_kwargs,
    )
