"""Takes a compiled CPU function apart, and puts other executables into it.

The only place that relies on how JAX holds a compiled function. As of jax
0.11.2 and 0.12.0, `_executable` is a MeshExecutable whose
`_unloaded_executable`, a dataclass, holds the runtime's executable and all that
JAX knows about it: with another runtime executable in it, its `load` makes
another MeshExecutable. `jax.experimental.serialize_executable` goes the same
way, but refuses captured constants and keeps no tie to the original.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxmem_hlo.cpu_executable.errors import UnsupportedExecutableError

if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True, eq=False)
class OpenedFunction:
  """A compiled CPU function and the bytes of its executable.

  Attributes:
    compiled: The function.
    data: Its executable, serialized.
  """

  compiled: jax.stages.Compiled
  data: bytes

  def reload(self, data: bytes) -> jax.stages.Compiled:
    """Returns the function with another executable of the same signature.

    Args:
      data: The executable, serialized.

    Raises:
      UnsupportedExecutableError: If it cannot be loaded.
    """
    import jax

    params: Any = self.compiled._params
    try:
      replaced = dataclasses.replace(
        self._unloaded, xla_executable=self._load(data)
      )
      return jax.stages.Compiled(
        replaced.load(),
        params.const_args,
        self.compiled.args_info,
        self.compiled.out_tree,
        no_kwargs=params.no_kwargs,
        in_types=params.in_types,
        out_types=params.out_types,
      )
    except Exception as error:
      raise _not_loaded(error) from error

  def reload_flat(self, data: bytes, num_bytes: int) -> jax.stages.Compiled:
    """Returns a flat function with one more argument, donated and returned.

    Args:
      data: An executable that takes and returns one more array of bytes, in the
        last place, serialized.
      num_bytes: Length of that array.

    Returns:
      A function of the leaves of the arguments and the array. Returns a tuple:
      the leaves of the result, and the array.

    Raises:
      UnsupportedExecutableError: If it cannot be loaded, or the function is of
        a kind that is not known here.
    """
    import jax

    own: Any = self._unloaded
    if own.mut is not None or own.ordered_effects or len(own.device_list) > 1:
      raise UnsupportedExecutableError(
        "The function has side effects, or runs on several devices."
      )
    if len(own.output_avals) != self.compiled.out_tree.num_leaves:
      raise UnsupportedExecutableError(
        "The executable does not return what the function returns."
      )
    # A function of nothing else says what JAX wants to know about the array.
    device = jax.sharding.SingleDeviceSharding(own.device_list[0])
    array = jax.ShapeDtypeStruct((num_bytes,), "uint8", sharding=device)
    like = jax.jit(lambda x: x, donate_argnums=0).lower(array).compile()
    more: Any = _unloaded(like)
    joined = {
      name: [*getattr(own, name), *getattr(more, name)] for name in _PER_ARRAY
    }
    known = own.all_args_info
    arguments = (
      *jax.tree.leaves(self.compiled.args_info),
      like.args_info[0][0],
    )
    try:
      replaced = dataclasses.replace(
        own,
        xla_executable=self._load(data),
        kept_var_idx={*own.kept_var_idx, len(known.in_avals)},
        all_args_info=_with_argument(known, more.all_args_info),
        **joined,
      )
      results = (0,) * (self.compiled.out_tree.num_leaves + 1)
      return jax.stages.Compiled(
        replaced.load(),
        self.compiled._params.const_args,
        (arguments, {}),
        jax.tree.structure(results),
      )
    except Exception as error:
      raise _not_loaded(error) from error

  @property
  def _unloaded(self) -> Any:
    return _unloaded(self.compiled)

  def _load(self, data: bytes) -> Any:
    own = self._unloaded
    return own.backend.deserialize_executable(
      data, executable_devices=own.device_list
    )


# What JAX knows of each argument of the executable and of each result.
_PER_ARRAY = (
  "input_avals",
  "input_shardings",
  "output_avals",
  "output_shardings",
  "xla_in_layouts",
  "dispatch_in_layouts",
  "xla_out_layouts",
)


def open_compiled(
  compiled: jax.stages.Compiled, data: bytes | None = None
) -> OpenedFunction:
  """Returns a compiled function with the bytes of its executable.

  Args:
    compiled: A compiled function, for XLA:CPU.
    data: Its executable, serialized when it was compiled; None if it is fresh.

  Raises:
    UnsupportedExecutableError: If it cannot be serialized, or is not for CPU.
  """
  try:
    own = _unloaded(compiled)
    if own.backend.platform != "cpu":
      raise UnsupportedExecutableError("The executable is not for XLA:CPU.")
    if own.host_callbacks or own.keepalive:
      raise UnsupportedExecutableError("The function calls back into Python.")
    if data is not None:
      return OpenedFunction(compiled, data)
    return OpenedFunction(compiled, own.xla_executable.serialize())
  except UnsupportedExecutableError:
    raise
  except Exception as error:
    raise UnsupportedExecutableError(
      f"The executable cannot be serialized: {error}"
    ) from error


def _unloaded(compiled: jax.stages.Compiled) -> Any:
  executable: Any = compiled._executable
  return executable._unloaded_executable


def _with_argument(known: Any, more: Any) -> Any:
  """Joins what JAX checks arguments against, and calls them in errors."""
  names = (known.debug_info.arg_names or ()) + (more.debug_info.arg_names or ())
  return known._replace(
    in_avals=[*known.in_avals, *more.in_avals],
    debug_info=known.debug_info._replace(arg_names=names or None),
  )


def _not_loaded(error: Exception) -> UnsupportedExecutableError:
  return UnsupportedExecutableError(
    f"The rewritten executable cannot be loaded: {error}"
  )
