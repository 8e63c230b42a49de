"""A program that XLA is about to compile, as jax's compiling door has it."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir as _ir
from jaxmem_hlo import compiler_hook

from jaxmem.compiler.persistent_cache import PersistentCache

_FRONTEND_ATTRIBUTES = "mhlo.frontend_attributes"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
  """A program that XLA is about to compile, with the option `jaxmem`.

  Attributes:
    name: Of the module: "jit_train_step".
    option: The option's value.
    module: The program, as it was lowered.
    devices: That it is to run on.
    settings: All that XLA is told besides, serialized.
    is_profiled: Whether jax gives XLA a profile of earlier runs, if it has one.
    cache: What jax's persistent cache has of it, by the tags of `run`.
  """

  name: str
  option: str
  module: Any
  devices: tuple[Any, ...]
  settings: bytes
  is_profiled: bool
  cache: PersistentCache
  _run: Callable[[str | None, bool], Any]

  def run(self, tag: str | None, *, use_cache: bool = True) -> Any:
    """Compiles the program.

    Args:
      tag: What the hook knows the module by; None for XLA's own plan. It is
        part of the key in jax's persistent cache.
      use_cache: Whether the persistent cache may serve it, and take it.

    Returns:
      XLA's executable, loaded.
    """
    return self._run(tag, use_cache)

  def is_as(self, other: Compiling) -> bool:
    """Whether XLA makes the same of this and another, but for the hook."""
    return (
      self.module is other.module
      and self.devices == other.devices
      and self.settings == other.settings
      and not (self.is_profiled or other.is_profiled)
    )


def tagged(computation: Any, tag: str) -> Any:
  """Returns a copy of a module with the attribute that the hook looks for.

  The module itself may be compiled by another thread with another tag.

  Args:
    computation: The module.
    tag: The value of the attribute.
  """
  with computation.context, _ir.Location.unknown(computation.context):
    written = io.BytesIO()
    computation.operation.write_bytecode(written)
    copy = _ir.Module.parse(written.getvalue())
    attributes = copy.operation.attributes
    ours: dict[str, _ir.Attribute] = {
      compiler_hook.ATTRIBUTE: _ir.StringAttr.get(tag)
    }
    if _FRONTEND_ATTRIBUTES in attributes:
      given = _ir.DictAttr(attributes[_FRONTEND_ATTRIBUTES])
      ours |= {named.name: named.attr for named in given}
    attributes[_FRONTEND_ATTRIBUTES] = _ir.DictAttr.get(ours)
    return copy
