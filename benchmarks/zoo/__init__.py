"""Real train steps, to plan and to measure.

    step = build("resnet50", batch=32)
    lowered = jax.jit(step.function, **step.jit_kwargs).lower(*step.args)

Sizes: `full` is the published model; `small` takes a fraction of a second a
step on a CPU; `tiny` compiles in a few seconds, for unit tests.
"""

from collections.abc import Callable

from benchmarks.zoo import (
  encoder,
  experts,
  googlenet,
  language,
  layers,
  lora,
  mobile,
  randwire,
  training,
  unet,
  video,
  vision,
)
from benchmarks.zoo.training import Step, concrete, cross_entropy

__all__ = [
  "MODELS",
  "PUBLISHED_PARAMS",
  "SIZES",
  "Step",
  "build",
  "concrete",
  "cross_entropy",
  "encoder",
  "googlenet",
  "language",
  "layers",
  "lora",
  "mobile",
  "training",
  "unet",
  "video",
  "vision",
]

SIZES = ("full", "small", "tiny")

# A builder takes the batch size and one of `SIZES`.
MODELS: dict[str, Callable[[int, str], Step]] = {
  "alexnet": vision.alexnet,
  "efficientnet_b0": mobile.efficientnet_b0,
  "googlenet": googlenet.googlenet,
  "gpt2_small": language.gpt2_small,
  "llama_lora": lora.llama_lora,
  "mnasnet1_0": mobile.mnasnet1_0,
  "mobilenet_v2": mobile.mobilenet_v2,
  "moe_transformer": experts.moe_transformer,
  "randwire": randwire.randwire,
  "resnet3d_18": video.resnet3d_18,
  "resnet50": vision.resnet50,
  "scan_transformer": language.scan_transformer,
  "unet": unet.unet,
  "vgg16": vision.vgg16,
  "vit_b16": vision.vit_b16,
  "wmt_transformer": language.wmt_transformer,
  "xlm_r_base": encoder.xlm_r_base,
}

PUBLISHED_PARAMS: dict[str, int] = {
  # torchvision.models, `num_params` of the IMAGENET1K_V1 weights, and of
  # `r3d_18`'s KINETICS400_V1 weights.
  "alexnet": 61_100_840,
  "efficientnet_b0": 5_288_548,
  "googlenet": 6_624_904,
  "mnasnet1_0": 4_383_312,
  "mobilenet_v2": 3_504_872,
  "resnet3d_18": 33_371_472,
  "resnet50": 25_557_032,
  "vgg16": 138_357_544,
  "vit_b16": 86_567_656,
  # The released checkpoint "gpt2" (124M), its output tied to its embedding.
  "gpt2_small": 124_439_808,
  "scan_transformer": 124_439_808,
  # Vaswani et al., 2017, table 3, rounds it to 65 million. By term: the shared
  # embedding, 6 encoder and 6 decoder layers, with biases.
  "wmt_transformer": 37_000 * 512 + 6 * 3_152_384 + 6 * 4_204_032,
  # Conneau et al., 2020, rounds it to 270 million. By term, from the released
  # configuration: tokens, positions, a normalization, 12 layers; the output is
  # tied to the tokens.
  "xlm_r_base": 250_002 * 768 + 514 * 768 + 2 * 768 + 12 * 7_087_872,
  # By term: tokens, positions, 4 dense blocks, 4 blocks of 8 experts and a
  # router, the last normalization. Fedus et al., 2021, has none of this size.
  "moe_transformer": (
    32_128 * 512 + 1024 * 512 + 4 * 3_152_384 + 4 * 17_833_984 + 2 * 512
  ),
  # By term: 22 layers, each with adapters of rank 16 of the query, key, value,
  # gate, inner and outer matrices; the frozen rest has 1.26 billion.
  "llama_lora": 22 * 16 * (3 * (2048 + 2048) + 3 * (2048 + 5632)),
  # Xie et al., 2019, table 2, rounds it to 5.6 million; the exact number
  # depends on the random graphs, and tests/benchmarks/zoo_test.py derives it
  # from them.
  "randwire": 5_639_054,
  # Ronneberger et al., 2015, gives none; 31.0 million is the usual figure, and
  # tests/benchmarks/zoo_test.py derives it for one channel in, two classes out.
  "unet": 31_030_658,
}


def build(name: str, batch: int, *, size: str = "full") -> Step:
  """Builds the train step of a model.

  Args:
    name: A key of `MODELS`.
    batch: Examples per step, positive.
    size: One of `SIZES`.

  Returns:
    The step. Nothing is compiled and no parameter is allocated.

  Raises:
    ValueError: If the name, the batch or the size is not one of these.
  """
  if name not in MODELS:
    raise ValueError(f"name must be one of {sorted(MODELS)}, got {name!r}.")
  if size not in SIZES:
    raise ValueError(f"size must be one of {SIZES}, got {size!r}.")
  if batch < 1:
    raise ValueError(f"batch must be positive, got {batch}.")
  step = MODELS[name](batch, size)
  if size == "full":
    assert step.num_params == PUBLISHED_PARAMS[name], (name, step.num_params)
  return step
