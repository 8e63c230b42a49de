"""From decisions back to a module that XLA runs."""

from jaxmem.rewrite.copies import Copies, RemovableCopy, find_copies
from jaxmem.rewrite.hlo import apply, without_copies

__all__ = [
  "Copies",
  "RemovableCopy",
  "apply",
  "find_copies",
  "without_copies",
]
