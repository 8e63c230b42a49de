"""Compiled XLA:CPU executables: their arenas, placed anew or kept.

`compiled_function` takes a compiled JAX function apart. `executable` reads the
bytes of its executable and puts temporaries elsewhere (`load_placed`), with
`arena_items` saying what may be moved and `placement` checking where to.
`arena_argument` makes the arena an argument (`load_with_arena`). Whatever is
not understood raises `UnsupportedExecutableError`.
"""

from jaxmem_hlo.cpu_executable.arena_argument import load_with_arena
from jaxmem_hlo.cpu_executable.errors import UnsupportedExecutableError
from jaxmem_hlo.cpu_executable.executable import load_placed
from jaxmem_hlo.cpu_executable.placement import ALIGNMENT_BYTES, PlacementItem

__all__ = [
  "ALIGNMENT_BYTES",
  "PlacementItem",
  "UnsupportedExecutableError",
  "load_placed",
  "load_with_arena",
]
