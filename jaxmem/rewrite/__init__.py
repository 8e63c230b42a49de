"""What can be changed in a scheduled module besides its order."""

from jaxmem.rewrite.copies import Copies, RemovableCopy, find_copies
from jaxmem.rewrite.fetch_arguments import fetch_arguments
from jaxmem.rewrite.recompute import apply_edits
from jaxmem.rewrite.recompute_rules import (
  RecomputeError,
  RecomputeRules,
  recomputable,
)

__all__ = [
  "Copies",
  "RecomputeError",
  "RecomputeRules",
  "RemovableCopy",
  "apply_edits",
  "fetch_arguments",
  "find_copies",
  "recomputable",
]
