"""Train steps that jaxmem was never tuned on, to be measured and left alone.

    step = STEPS["gpt"](policy="dots_saveable")
    compiled = jax.jit(step.function, **step.jit_kwargs)

They were written down before the first of them was planned. Whoever changes
jaxmem for the sake of one must write another in its place.
"""

import inspect
from collections.abc import Callable

from benchmarks.held_out import (
  equinox_steps,
  keras_steps,
  later_steps,
  latest_steps,
  linen_steps,
  new_steps,
  plain_steps,
  scanned_steps,
)
from benchmarks.held_out.step import (
  Step,
  cross_entropy,
  floats,
  integers,
  make_train_step,
)
from benchmarks.policies import POLICIES

__all__ = [
  "POLICIES",
  "STEPS",
  "Step",
  "cross_entropy",
  "floats",
  "integers",
  "make_train_step",
  "takes_policy",
]

# A builder of a model whose blocks repeat takes the name of a policy.
STEPS: dict[str, Callable[..., Step]] = {
  "burgers": later_steps.burgers,
  "conv_autoencoder": equinox_steps.conv_autoencoder,
  "convnext": later_steps.convnext,
  "coupling_flow": new_steps.coupling_flow,
  "dilated_convolutions": latest_steps.dilated_convolutions,
  "diffusion_unet": linen_steps.diffusion_unet,
  "gpt": linen_steps.gpt,
  "graph_network": later_steps.graph_network,
  "inner_updates": new_steps.inner_updates,
  "lora": plain_steps.lora,
  "lstm_seq2seq": linen_steps.lstm_seq2seq,
  "mlp_mixer": equinox_steps.mlp_mixer,
  "mnist_cnn": linen_steps.mnist_cnn,
  "mobilenet_v3": keras_steps.mobilenet_v3,
  "moe": plain_steps.moe,
  "perceiver": later_steps.perceiver,
  "sam_mlp": plain_steps.sam_mlp,
  "scanned_decoder": scanned_steps.scanned_decoder,
  "scanned_sets": scanned_steps.scanned_sets,
  "scanned_transformer": plain_steps.scanned_transformer,
  "shifted_windows": latest_steps.shifted_windows,
  "state_space": later_steps.state_space,
  "time_mixing": new_steps.time_mixing,
  "translation": later_steps.translation,
}


def takes_policy(build: Callable[..., Step]) -> bool:
  """Whether the blocks of a step can be recomputed under a policy."""
  return "policy" in inspect.signature(build).parameters
