"""Arguments that wait in the host's memory from one step to the next.

What only the end of a step reads, an optimizer's state above all, takes the
device's memory all the time. Kept on the host, it comes in when it is read, and
what takes its place goes out. The caller says which arguments that is; when
they are copied is planned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxmem import targets

_ON_HOST = "pinned_host"


def on_host(
  fun: Callable[..., Any],
  argnums: int | Sequence[int],
  outnums: int | Sequence[int],
) -> Callable[..., Any]:
  """Returns a step some of whose arguments and results are on the host.

      step = jaxmem.jit(jaxmem.on_host(train_step, argnums=1, outnums=1),
                        donate_argnums=(0, 1))
      opt_state = jaxmem.to_host(opt_state)
      params, opt_state, loss = step(params, opt_state, batch)

  Donate them, so that each takes the memory of the result that it becomes. On
  a CPU, which has one memory only, nothing changes.

  Args:
    fun: The step; it returns a tuple.
    argnums: Positions of arguments that are on the host: see `to_host`.
    outnums: Positions of results that shall be there.

  Raises:
    TypeError: When called, if `fun` does not return a tuple.
    ValueError: When called, if there is no such argument or result.
  """
  inputs, outputs = _numbers(argnums), _numbers(outnums)

  @functools.wraps(fun)
  def step(*args: Any, **kwargs: Any) -> Any:
    _check(inputs, len(args), "argument")
    # XLA:CPU has no such copies, and fails at them.
    is_needed = targets.current_platform() != "cpu"
    if is_needed:
      args = _moved(args, inputs, jax.memory.Space.Device)
    results = fun(*args, **kwargs)
    if not isinstance(results, tuple):
      raise TypeError(
        "on_host needs a step that returns a tuple, got one that returns"
        f" {type(results).__name__}."
      )
    _check(outputs, len(results), "result")
    if is_needed:
      results = _moved(results, outputs, jax.memory.Space.Host)
    return results

  return step


def to_host(tree: Any) -> Any:
  """Moves arrays to the host's memory, where steps of `on_host` leave theirs.

  Args:
    tree: Arrays. Those of a CPU stay where they are, and so does what is none,
      for example a `jax.ShapeDtypeStruct`.
  """
  return jax.tree.map(_to_host, tree)


def _to_host(leaf: Any) -> Any:
  if not isinstance(leaf, jax.Array):
    return leaf
  if any(device.platform == "cpu" for device in leaf.devices()):
    return leaf
  return jax.device_put(leaf, leaf.sharding.with_memory_kind(_ON_HOST))


def _numbers(numbers: int | Sequence[int]) -> tuple[int, ...]:
  return (numbers,) if isinstance(numbers, int) else tuple(numbers)


def _check(numbers: tuple[int, ...], count: int, name: str) -> None:
  for number in numbers:
    if not 0 <= number < count:
      raise ValueError(
        f"on_host names {name} {number}, but the step has {count}, counted"
        " from 0."
      )


def _moved(
  values: tuple[Any, ...], which: tuple[int, ...], space: Any
) -> tuple[Any, ...]:
  return tuple(
    jax.device_put(value, space) if i in which else value
    for i, value in enumerate(values)
  )
