"""What runs when a planned step is called."""

from jaxmem.runtime.host_state import on_host, to_host

__all__ = ["on_host", "to_host"]
