"""XLA's compiler from outside: marked functions, captured modules, dumps."""

from jaxmem.compiler.capture import Capture

__all__ = ["Capture"]
