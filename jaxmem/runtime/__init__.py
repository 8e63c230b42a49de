"""What runs when a planned step is called."""

from jaxmem.runtime.arena_keeping_jit import ArenaKeepingJit
from jaxmem.runtime.host_state import on_host, to_host

__all__ = ["ArenaKeepingJit", "on_host", "to_host"]
