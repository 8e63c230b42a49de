"""Sharded train steps for described devices."""

from benchmarks.sharded.steps import (
  DecoderSize,
  ShardedStep,
  decoder,
  residual_mlp,
)

__all__ = ["DecoderSize", "ShardedStep", "decoder", "residual_mlp"]
