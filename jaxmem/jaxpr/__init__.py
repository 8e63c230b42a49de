"""Jaxprs: read, flattened, written anew; what touches jax's internals."""

from jaxmem.jaxpr import internals, memory
from jaxmem.jaxpr.elementwise import is_elementwise
from jaxmem.jaxpr.flatten import CUSTOM_DERIVATIVES, Atom, Inliner, flatten

__all__ = [
  "CUSTOM_DERIVATIVES",
  "Atom",
  "Inliner",
  "flatten",
  "internals",
  "is_elementwise",
  "memory",
]
