"""What the name that jax gave an operation says of where it comes from.

A name lists the scopes in which an operation was traced, and the operation:
"jit(step)/transpose(jvp(Net))/Block_3/Dense_0/dot_general". Flax's linen,
Haiku and Keras open a scope for each module, Equinox one for each layer that it
has itself, `jax.named_scope` any. In between stand jax's transformations, which
may enclose scopes, "jvp(Net)", and functions that are jitted, "jit(relu)".
See https://docs.jax.dev/en/latest/_autosummary/jax.named_scope.html.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Literal

Part = Literal["forward", "recomputed", "backward", "other"]

# Transformations: what they enclose are scopes of the program.
_TRANSFORMS = frozenset(
  ("checkpoint", "jvp", "linearize", "remat", "transpose", "vmap")
)
# What jax itself writes between scopes.
_JAX = re.compile(
  r"while|body|body_fun|cond|cond_fun|scan|branch_\d+_fun|closed_call|core_call"
  r"|checkpoint|remat\d?|rematted_computation|eval_jaxpr|pjit|jit|shard_map"
  r"|custom_[jv][a-z]+_call(_jaxpr)?|~"
  # jax.numpy.einsum names itself by its subscripts.
  r"|.*->.*"
)
# Nobody differentiates so often.
_MAX_DEPTH = 32
_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)


@functools.lru_cache(maxsize=1 << 16)
def scopes(op_name: str) -> tuple[str, ...]:
  """Returns the scopes of the program that an operation was traced in.

  Args:
    op_name: The operation's name; its last part, the operation, does not count.

  Returns:
    Modules and named scopes, outermost first: ("Net", "Block_3", "Dense_0").
  """
  # Where XLA made one operation of several, it lists their names.
  return tuple(_scopes(_split(op_name.partition(";")[0])[:-1]))


def _scopes(parts: list[str], depth: int = 0) -> Iterator[str]:
  for part in parts:
    call = _CALL.fullmatch(part)
    if call is None:
      if part and not _JAX.fullmatch(part):
        yield part
    elif call[1] in _TRANSFORMS and depth < _MAX_DEPTH:
      yield from _scopes(_split(call[2]), depth + 1)
    elif call[1] not in ("jit", "pjit", "xla_call", "pmap"):
      yield part


def _split(text: str) -> list[str]:
  """Splits a name at the slashes that stand outside of parentheses."""
  parts, depth, start = [], 0, 0
  for place, character in enumerate(text):
    depth += (character == "(") - (character == ")")
    if character == "/" and depth <= 0:
      parts.append(text[start:place])
      start = place + 1
  return [*parts, text[start:]]


def part(op_name: str) -> Part:
  """Returns which part of a differentiated program an operation belongs to.

  "other" is what is not differentiated: the optimizer, or the whole program.
  """
  if "rematted_computation" in op_name:
    return "recomputed"
  if "transpose(" in op_name:
    return "backward"
  return "forward" if "jvp(" in op_name else "other"


_KEY = re.compile(r"\.?([^.\[\]'\"]+)|\[(?:'([^']*)'|\"([^\"]*)\"|([^\]]*))\]")
# The last keys of a parameter, which name no module.
_LEAVES = frozenset(("value", "raw_value"))


def keys(argument: str) -> tuple[str, ...]:
  """Returns the keys on the way to an array: "a.b['c'][0]" is a, b, c, 0."""
  found = _KEY.findall(argument)
  return tuple(next(filter(None, key), "") for key in found)


def module_of(parameter: str) -> tuple[str, ...]:
  """Returns the module that a parameter belongs to, by the parameter's path.

  The argument that holds it is left out, and so is what only says that it is a
  parameter: "state.params['params']['Dense_0']['kernel']" is of Dense_0. One
  that lies beside modules is one itself: "params['tokens']".
  """
  path = parameter_path(parameter)
  is_inside = len(keys(parameter)) > 1
  module = path[:-1] or (path if is_inside else ())
  # Haiku's keys are paths themselves.
  return tuple(_scopes("/".join(module).split("/")))


def parameter_path(parameter: str) -> tuple[str, ...]:
  """Returns the keys of a parameter within the model's parameters.

  The same are the last keys of what an optimizer keeps for it.
  """
  path = [k for k in keys(parameter) if k not in _LEAVES]
  start = 1
  if "params" in path[:-1]:
    start = len(path) - path[::-1].index("params")
  return tuple(path[start:] or path)
