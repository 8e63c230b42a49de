"""What can be changed in a scheduled module besides its order."""

from jaxmem.rewrite import edits, fusion_parts, recompute_rules
from jaxmem.rewrite.edit_schedule import apply_edits
from jaxmem.rewrite.edits import Edits
from jaxmem.rewrite.host_copies import fetch_arguments
from jaxmem.rewrite.latest_producers import SUFFIX
from jaxmem.rewrite.recompute_rules import (
  RecomputeError,
  RecomputeRules,
  recomputable,
)
from jaxmem.rewrite.removable_copies import Copies, find_copies

__all__ = [
  "SUFFIX",
  "Copies",
  "Edits",
  "RecomputeError",
  "RecomputeRules",
  "apply_edits",
  "edits",
  "fetch_arguments",
  "find_copies",
  "fusion_parts",
  "recomputable",
  "recompute_rules",
]
