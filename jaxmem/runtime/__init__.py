"""What runs when a planned step is called."""

from jaxmem.runtime import kept_arena
from jaxmem.runtime.arena_keeping_jit import ArenaKeepingJit
from jaxmem.runtime.host_state import on_host, to_host

__all__ = ["ArenaKeepingJit", "kept_arena", "on_host", "to_host"]
