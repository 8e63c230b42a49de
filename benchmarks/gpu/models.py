"""The campaign's train steps: the zoo's, and a stack of Llama's layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from flax import linen as nn

from benchmarks import zoo
from benchmarks.gpu import llama
from benchmarks.policies import policy_named
from benchmarks.zoo import language, layers, unet, vision

# Examples of a step of the zoo's "tiny" size, and of its "small" size.
_TINY_BATCH = 2
_SMALL_BATCH = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
  """A step measured at its published size.

  Attributes:
    build: Takes the batch, one of `zoo.SIZES` and, as `block`, what to use in
      place of the model's own.
    batch: Examples per step on a card.
    block: What `jax.checkpoint` may be put around, a class or a method.
    static_argnums: Arguments of it that are no arrays, of a method.
  """

  build: Callable[..., zoo.Step]
  batch: int
  block: Callable[..., Any]
  static_argnums: tuple[int, ...] = ()


MODELS: Mapping[str, Model] = {
  "gpt2_small": Model(build=language.gpt2_small, batch=8, block=layers.Block),
  "resnet50": Model(build=vision.resnet50, batch=64, block=vision.Bottleneck),
  "unet": Model(
    build=unet.unet,
    batch=8,
    block=unet.CONVOLVE,
    static_argnums=(2,),  # The channels.
  ),
  "llama_stack": Model(build=llama.llama_stack, batch=4, block=llama.Block),
}
ALL_STEPS = (*MODELS, *(name for name in zoo.MODELS if name not in MODELS))


def build(
  name: str, *, is_rehearsal: bool, policy: str | None = None
) -> zoo.Step:
  """Builds a step to be measured; a tiny one for a rehearsal.

  Each is a new function, so that jax does not reuse what it compiled before.

  Args:
    name: A key of `MODELS`.
    is_rehearsal: Whether it has to be tiny.
    policy: One of `POLICIES`, for `jax.checkpoint` around each block.
  """
  batch = batch_of(name, is_rehearsal=is_rehearsal)
  size = "tiny" if is_rehearsal else "full"
  return MODELS[name].build(batch, size, **_checkpointed(name, policy))


def _checkpointed(name: str, policy: str | None) -> Mapping[str, Any]:
  """Returns what puts `jax.checkpoint` around each block, if a policy does."""
  if policy is None:
    return {}
  model = MODELS[name]
  block = nn.remat(
    cast(Any, model.block),
    policy=policy_named(policy),
    static_argnums=model.static_argnums,
  )
  return {"block": block}


def batch_of(name: str, *, is_rehearsal: bool) -> int:
  """Returns the examples of what `build` builds."""
  return _TINY_BATCH if is_rehearsal else MODELS[name].batch


def build_small(
  name: str, *, is_rehearsal: bool, policy: str | None = None
) -> zoo.Step:
  """Builds a step to be compared with itself: small, or tiny to rehearse.

  Args:
    name: One of `ALL_STEPS`.
    is_rehearsal: Whether it has to be tiny.
    policy: See `build`; only for the keys of `MODELS`.
  """
  builder = MODELS[name].build if name in MODELS else zoo.MODELS[name]
  size = (_TINY_BATCH, "tiny") if is_rehearsal else (_SMALL_BATCH, "small")
  return builder(*size, **_checkpointed(name, policy))
