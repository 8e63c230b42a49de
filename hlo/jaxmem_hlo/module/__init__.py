"""XLA's scheduled modules: read, edited, serialized."""

from jaxmem_hlo.module.hlo_module import Computation, Instruction, Module
from jaxmem_hlo.module.late_passes import apply_late_passes
from jaxmem_hlo.module.opcodes import GIVEN, RENAMES, STATEFUL_PREFIXES
from jaxmem_hlo.module.post_order import list_in_post_order
from jaxmem_hlo.module.shapes import ShapeIndex

__all__ = [
  "GIVEN",
  "RENAMES",
  "STATEFUL_PREFIXES",
  "Computation",
  "Instruction",
  "Module",
  "ShapeIndex",
  "apply_late_passes",
  "list_in_post_order",
]
