"""XLA's scheduled modules: read, edited, serialized.

`hlo_module` wraps the messages; `shapes` knows sizes and indices, `opcodes` the
kinds of instructions. `post_order` lists the instructions of an edited
computation as XLA does, and `late_passes` takes out what XLA takes out once it
has scheduled a module. `collectives` reads who exchanges what, `source_lines`
which lines of a program an operation comes from.
"""

from jaxmem_hlo.module import shapes, source_lines, xla_version
from jaxmem_hlo.module.collectives import (
  collective_of,
  collective_start,
  replica_groups,
)
from jaxmem_hlo.module.hlo_module import Computation, Instruction, Module
from jaxmem_hlo.module.late_passes import apply_late_passes
from jaxmem_hlo.module.opcodes import (
  ASYNC_STARTS,
  COLLECTIVES,
  ELEMENTWISE,
  FORWARDS,
  GIVEN,
  HOST_MEMORY_SPACE,
  OPERAND_IN_START,
  RENAMES,
  RESULT_IN_START,
  STATEFUL_PREFIXES,
)
from jaxmem_hlo.module.post_order import list_in_post_order
from jaxmem_hlo.module.shapes import ShapeIndex

__all__ = [
  "ASYNC_STARTS",
  "COLLECTIVES",
  "ELEMENTWISE",
  "FORWARDS",
  "GIVEN",
  "HOST_MEMORY_SPACE",
  "OPERAND_IN_START",
  "RENAMES",
  "RESULT_IN_START",
  "STATEFUL_PREFIXES",
  "Computation",
  "Instruction",
  "Module",
  "ShapeIndex",
  "apply_late_passes",
  "collective_of",
  "collective_start",
  "list_in_post_order",
  "replica_groups",
  "shapes",
  "source_lines",
  "xla_version",
]
