"""What XLA really allocated: its own dump of a compile."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxmem.compiler.steps import Step

if TYPE_CHECKING:
  from jaxmem_hlo.proto import hlo_pb2

_SUFFIX = "after_optimizations.hlo.pb"


def compile_and_read(
  step: Step, options: Mapping[str, Any]
) -> hlo_pb2.CompiledModule:
  """Compiles a program and reads its schedule and buffer assignment.

  Args:
    step: The program.
    options: Compiler options besides those that ask for the dump.

  Raises:
    RuntimeError: If XLA wrote no dump, or more than one of this name.
  """
  # The doors are in this package, and most processes need no protobuf.
  from jaxmem_hlo.proto import hlo_pb2

  with tempfile.TemporaryDirectory() as folder:
    dumped = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
    compiled = step.compile({**options, **dumped})
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
