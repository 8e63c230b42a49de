"""Train steps that jaxmem was never tuned on, to be measured and left alone.

    step = STEPS["gpt"](policy="dots_saveable")
    compiled = jax.jit(step.function, **step.jit_kwargs)

They were written down before the first of them was planned. Whoever changes
jaxmem for the sake of one must write another in its place.
"""

import inspect
from collections.abc import Callable

from benchmarks.held_out import (
  application_steps,
  equinox_steps,
  field_steps,
  further_kinds,
  keras_steps,
  later_steps,
  latest_steps,
  library_steps,
  linen_steps,
  new_steps,
  own_gradients,
  plain_steps,
  scanned_steps,
  several_models,
  unusual_steps,
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
  "accumulated": unusual_steps.accumulated,
  "adversaries": several_models.adversaries,
  "blockwise_attention": further_kinds.blockwise_attention,
  "burgers": later_steps.burgers,
  "cellular_automaton": field_steps.cellular_automaton,
  "chunked_loss": own_gradients.chunked_loss,
  "conv_autoencoder": equinox_steps.conv_autoencoder,
  "convnext": later_steps.convnext,
  "coupling_flow": new_steps.coupling_flow,
  "densenet": library_steps.densenet,
  "detector": application_steps.detector,
  "differential_equation": unusual_steps.differential_equation,
  "diffusion_transformer": field_steps.diffusion_transformer,
  "diffusion_unet": linen_steps.diffusion_unet,
  "dilated_convolutions": latest_steps.dilated_convolutions,
  "fourier_operator": unusual_steps.fourier_operator,
  "gated_recurrence": field_steps.gated_recurrence,
  "gpt": linen_steps.gpt,
  "gradient_penalty": further_kinds.gradient_penalty,
  "graph_network": later_steps.graph_network,
  "hidden_words": library_steps.hidden_words,
  "image_and_text": application_steps.image_and_text,
  "inner_updates": new_steps.inner_updates,
  "linear_attention": own_gradients.linear_attention,
  "lora": plain_steps.lora,
  "lstm_seq2seq": linen_steps.lstm_seq2seq,
  "masked_images": field_steps.masked_images,
  "mlp_mixer": equinox_steps.mlp_mixer,
  "mnist_cnn": linen_steps.mnist_cnn,
  "mobilenet_v3": keras_steps.mobilenet_v3,
  "moe": plain_steps.moe,
  "natural_gradient": unusual_steps.natural_gradient,
  "near_and_far": field_steps.near_and_far,
  "orthogonal_updates": further_kinds.orthogonal_updates,
  "own_attention": own_gradients.own_attention,
  "pair_features": application_steps.pair_features,
  "perceiver": later_steps.perceiver,
  "point_clouds": application_steps.point_clouds,
  "policy_epochs": several_models.policy_epochs,
  "private_gradients": further_kinds.private_gradients,
  "quantized_codes": application_steps.quantized_codes,
  "radiance_field": field_steps.radiance_field,
  "recommender": application_steps.recommender,
  "sam_mlp": plain_steps.sam_mlp,
  "scanned_decoder": scanned_steps.scanned_decoder,
  "scanned_experts": own_gradients.scanned_experts,
  "scanned_sets": scanned_steps.scanned_sets,
  "scanned_transformer": plain_steps.scanned_transformer,
  "self_distillation": several_models.self_distillation,
  "shifted_windows": latest_steps.shifted_windows,
  "speech": unusual_steps.speech,
  "state_space": later_steps.state_space,
  "tagger": library_steps.tagger,
  "time_mixing": new_steps.time_mixing,
  "translation": later_steps.translation,
  "vision_transformer": library_steps.vision_transformer,
  "world_model": further_kinds.world_model,
}


def takes_policy(build: Callable[..., Step]) -> bool:
  """Whether the blocks of a step can be recomputed under a policy."""
  return "policy" in inspect.signature(build).parameters
