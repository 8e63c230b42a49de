"""Reads and edits XLA's scheduled HLO modules.

A leaf package: it needs protobuf and numpy, and neither jax nor a solver at
import time.
"""
