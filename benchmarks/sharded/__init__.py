"""Sharded train steps for described devices."""

from benchmarks.sharded.mapped import experts, gathered
from benchmarks.sharded.rings import pipeline, ring_attention
from benchmarks.sharded.steps import (
  DecoderSize,
  ShardedStep,
  decoder,
  residual_mlp,
)

__all__ = [
  "DecoderSize",
  "ShardedStep",
  "decoder",
  "experts",
  "gathered",
  "pipeline",
  "residual_mlp",
  "ring_attention",
]
