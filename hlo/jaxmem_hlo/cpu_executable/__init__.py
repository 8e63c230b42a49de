"""Compiled XLA:CPU executables: their arenas, placed anew or kept."""

from jaxmem_hlo.cpu_executable.arena import ALIGNMENT_BYTES, PlacementItem

__all__ = ["ALIGNMENT_BYTES", "PlacementItem"]
