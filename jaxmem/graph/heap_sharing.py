"""When XLA's heap may place a value on one that dies."""

from __future__ import annotations

from jaxmem_hlo.buffers import BufferAnalysis, Value


def may_share_on_heap(
  analysis: BufferAnalysis, read: Value, written: Value, is_direct: bool
) -> bool:
  """Whether the heap may even consider to put a value on top of another.

  It does not for buffers of several values, and it looks only at operands that
  make the value themselves, not at those that pick it out of a tuple. Sizes and
  users are the assignment's to judge (`AssignmentModel.may_share`), and values
  that follow each other in one buffer share it in any case.

  Args:
    analysis: The module's buffers.
    read: The value that an instruction reads, and that dies there.
    written: The value that the instruction makes.
    is_direct: Whether the operand makes `read` itself. Callers who look for all
      that XLA could share, or whose edits take the tuple away, say so of any.
  """
  return (
    is_direct
    and len(analysis.buffer_of(read).values) == 1
    and len(analysis.buffer_of(written).values) == 1
  )
