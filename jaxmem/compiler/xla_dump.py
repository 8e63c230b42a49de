"""What XLA really allocated: its own dump of a compile."""

from __future__ import annotations

import pathlib
import tempfile

import jax
from jaxmem_hlo.proto import hlo_pb2

from jaxmem import targets

_SUFFIX = "after_optimizations.hlo.pb"


def compile_and_read(
  traced: jax.stages.Traced, target: targets.TargetLike
) -> hlo_pb2.CompiledModule:
  """Compiles a program and reads its schedule and buffer assignment.

  Args:
    traced: The program; see `targets.trace`.
    target: What it was traced for.

  Raises:
    RuntimeError: If XLA wrote no dump, or more than one of this name.
  """
  with tempfile.TemporaryDirectory() as folder:
    options = {
      **targets.compile_options(target),
      "xla_dump_to": folder,
      "xla_dump_hlo_as_proto": True,
    }
    lowered = targets.lower_traced(traced, target)
    compiled = lowered.compile(compiler_options=options)
    # "HloModule jit_train_step, is_scheduled=true, ..."
    name = (
      (compiled.as_text() or "").split(",", 1)[0].removeprefix("HloModule ")
    )
    found = [
      path
      for path in pathlib.Path(folder).glob(f"*{_SUFFIX}")
      if f".{name}." in path.name
    ]
    if len(found) != 1:
      raise RuntimeError(
        f"XLA wrote {len(found)} dumps of {name}, expected one; is xla_dump_to"
        " set in XLA_FLAGS as well?"
      )
    proto = hlo_pb2.CompiledModule()
    proto.ParseFromString(found[0].read_bytes())
    return proto
