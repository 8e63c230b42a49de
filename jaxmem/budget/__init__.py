"""Recompute and offload: what to give up so that a step fits a byte limit."""
