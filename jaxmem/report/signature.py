"""What a compiled function takes and returns, by the names the user gave."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxmem_hlo.module import Module


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
  """An array that the function takes.

  Attributes:
    group: The function's argument that holds it.
    place: That argument's position or keyword; None if it is not known.
    path: Where in that argument it lies: "['w']".
    aval: Shape and type over all devices: "float32[4,8]".
    size_bytes: Over all devices.
    is_requested: Whether the user donated it; None if that is not known.
    is_kept: Whether the compiled program takes it: jax drops unused ones.
  """

  group: str
  place: int | str | None
  path: str
  aval: str
  size_bytes: int
  is_requested: bool | None
  is_kept: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
  """All arrays that a function takes and returns, in jax's order.

  Attributes:
    arguments: What it takes, dropped ones included.
    output_paths: Where in the result each output lies: "[0]['w']".
    output_avals: Shape and type of each output.
  """

  arguments: tuple[Argument, ...]
  output_paths: tuple[str, ...]
  output_avals: tuple[str, ...]


def read(
  compiled: jax.stages.Compiled,
  fun: Callable[..., Any],
  jit_kwargs: Mapping[str, Any],
) -> Signature:
  """Returns what a compiled function takes and returns.

  Args:
    compiled: What `jax.jit(fun, **jit_kwargs).lower(...).compile()` returned.
    fun: The function, for the names of its arguments.
    jit_kwargs: jit's keywords, for which arguments are static.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(compiled.args_info)
  formats = jax.tree.leaves(compiled.input_formats)
  # jax gives arguments that it dropped no layout.
  kept = [getattr(f, "layout", None) is not None for f in formats]
  if len(kept) != len(leaves):
    kept = [True] * len(leaves)
  places = _places(fun, jit_kwargs, len(compiled.args_info[0]))
  arguments = [
    _argument(path, info, is_kept, places)
    for (path, info), is_kept in zip(leaves, kept, strict=True)
  ]
  outputs, _ = jax.tree_util.tree_flatten_with_path(compiled.out_info)
  return Signature(
    arguments=tuple(arguments),
    output_paths=tuple(jax.tree_util.keystr(path) for path, _ in outputs),
    output_avals=tuple(_aval(info) for _, info in outputs),
  )


def argument_names(
  module: Module,
  fun: Callable[..., Any],
  args: Sequence[Any],
  kwargs: Mapping[str, Any],
) -> dict[str, str]:
  """Returns the paths of arguments that a wrapper of `jax.jit` hid from jax.

  Flax's `nnx.jit` and Equinox's `filter_jit` pass flat lists to jax, in the
  order of the arrays in their own arguments.

  Args:
    module: Of the compiled function.
    fun: What the user called.
    args: What it was called with.
    kwargs: Its keyword arguments.

  Returns:
    A name in the module -> the path that the user would write; empty where the
    two lists are not alike.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
  arrays = [(p, x) for p, x in leaves if hasattr(x, "shape")]
  given = module.entry.parameters
  if len(given) != len(arrays) or not all(
    _is_part(parameter.shape.dimensions, _dimensions(x))
    for parameter, (_, x) in zip(given, arrays, strict=True)
  ):
    return {}
  places = _places(fun, {}, len(args))
  names: dict[str, str] = {}
  for parameter, (path, _) in zip(given, arrays, strict=True):
    first: Any = path[1]
    group = first.key if path[0].idx else places[first.idx][1]
    old = parameter.proto.metadata.op_name.replace("\\'", "'")
    names[old] = group + jax.tree_util.keystr(path[2:]).removesuffix(".value")
  return names


def _dimensions(array: Any) -> Sequence[int]:
  """Returns what XLA sees of an array's shape: random keys are words there."""
  if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
    return jax.eval_shape(jax.random.key_data, array).shape
  return array.shape


def _is_part(local: Sequence[int], whole: Sequence[int]) -> bool:
  """Whether one device's part of an array has these dimensions."""
  return len(local) == len(whole) and all(
    a == b or (a and b % a == 0) for a, b in zip(local, whole, strict=True)
  )


def _argument(
  path: Any,
  info: Any,
  is_kept: bool,
  places: Sequence[tuple[int | None, str]],
) -> Argument:
  is_keyword = path[0].idx == 1
  key = path[1].key if is_keyword else path[1].idx
  place, group = (key, key) if is_keyword else places[key]
  return Argument(
    group=group,
    place=place,
    path=jax.tree_util.keystr(path[2:]),
    aval=_aval(info),
    size_bytes=math.prod(info.shape) * info.dtype.itemsize,
    is_requested=info.donated,
    is_kept=is_kept,
  )


def _aval(info: Any) -> str:
  return f"{info.dtype}[{','.join(map(str, info.shape))}]"


def _places(
  fun: Callable[..., Any], jit_kwargs: Mapping[str, Any], num_dynamic: int
) -> list[tuple[int | None, str]]:
  """Returns position and name of the arguments that are not static."""
  try:
    parameters = list(inspect.signature(fun).parameters.values())
  except (TypeError, ValueError):
    return [(None, f"argument {i}") for i in range(num_dynamic)]
  names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
  static = _static_positions(jit_kwargs, names)
  # Where a negative position lies depends on how many arguments were passed.
  if any(i < 0 for i in static):
    return [(None, f"argument {i}") for i in range(num_dynamic)]
  rest = "".join(p.name for p in parameters if p.kind is p.VAR_POSITIONAL)
  count = num_dynamic + len(static)
  dynamic = [i for i in range(count) if i not in static][:num_dynamic]
  names += [f"{rest}[{i}]" for i in range(count - len(names))]
  return [(i, names[i]) for i in dynamic]


def _static_positions(
  jit_kwargs: Mapping[str, Any], names: Sequence[str]
) -> set[int]:
  numbers = jit_kwargs.get("static_argnums")
  if numbers is not None:
    return {numbers} if isinstance(numbers, int) else set(numbers)
  static = jit_kwargs.get("static_argnames") or ()
  static = (static,) if isinstance(static, str) else tuple(static)
  return {names.index(name) for name in static if name in names}
