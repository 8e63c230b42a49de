"""What programs over several devices are made of besides: how values are
divided, and operations that exchange them.

Collectives run where each device sees its own part, within the body of a
`shard_map`. Outside of one they make one for themselves. There branches and
loops must be decided alike on all devices, or some would wait for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from benchmarks.random_programs.kinds import (
  MAX_SIZE,
  Kind,
  bounded,
  cast,
  fit,
  number,
  real,
  rows,
)

_AXES = ("a", "b")


def mesh_of(shape: Sequence[int]) -> Mesh:
  """Returns a mesh over the first devices, with one axis or two."""
  return jax.make_mesh(
    tuple(shape),
    _AXES[: len(shape)],
    axis_types=(AxisType.Auto,) * len(shape),
    devices=jax.devices()[: math.prod(shape)],
  )


def divided(shape: Sequence[int], mesh: dict[str, int], choice: int) -> P:
  """Chooses how a value is divided: not at all, or over one dimension or two.

  Args:
    shape: Of the value.
    mesh: The axes and their sizes.
    choice: What is chosen by. A dimension that an axis does not divide evenly
      is left whole.
  """
  spec: list[str | tuple[str, ...] | None] = [None] * len(shape)
  if not shape or choice % 8 == 0:
    return P(*spec)
  names = tuple(mesh)
  together = choice % 4 == 1 and len(names) > 1
  for name in (names,) if together else names:
    choice //= 3
    dim = choice % len(shape)
    size = mesh[name] if isinstance(name, str) else math.prod(mesh.values())
    if spec[dim] is None and shape[dim] % size == 0:
      spec[dim] = name
  return P(*spec)


def inner_axes() -> tuple[str, ...]:
  """Returns the axes of the `shard_map` that is traced; none outside of one."""
  mesh = jax.sharding.get_abstract_mesh()
  return () if mesh.empty else tuple(mesh.manual_axes)


def agreed(x: jax.Array) -> jax.Array:
  """Returns a number that all devices have in common: the largest of theirs."""
  axes = inner_axes()
  return lax.pmax(lax.stop_gradient(x), axes) if axes else x


def over_devices(
  function: Callable[[jax.Array, jax.Array], jax.Array],
  x: jax.Array,
  y: jax.Array,
  choice: int,
) -> jax.Array:
  """Runs a function on each device's part of two values.

  What it gives is put together along the first dimension. XLA has no code for
  parts of values without any element; such a value is returned as it is.
  """
  if not x.size:
    return x
  y = y if y.size else x
  mesh = jax.sharding.get_abstract_mesh()
  names, size = mesh.axis_names, mesh.size
  specs = [P(names), P(names[0]), P(names[-1]), P()]

  def even(x: jax.Array) -> jax.Array:
    x = rows(x)
    return fit(x, (-(-x.shape[0] // size) * size, *x.shape[1:]), x.dtype)

  def whole(x: jax.Array, y: jax.Array) -> jax.Array:
    return rows(function(x, y))

  # What each device has all of is as often in the result as there are devices.
  x_spec = specs[choice % 4 if x.size * size <= MAX_SIZE else 0]
  return jax.shard_map(
    whole,
    in_specs=(x_spec, specs[choice // 4 % 4]),
    out_specs=P(names),
    check_vma=False,
  )(even(x), even(y))


def _collective(exchange: Callable[[jax.Array, str, int], jax.Array]) -> Kind:
  """Makes a kind of what exchanges the parts of a value over one axis."""

  def kind(x, y, choice):
    axes = inner_axes()
    if not axes:
      return over_devices(lambda x, y: kind(x, y, choice // 16), x, y, choice)
    return exchange(rows(number(x)), axes[choice % len(axes)], choice // 2)

  return kind


def _sum(x, axis, choice):
  """Adds up over one axis, or over all of them."""
  over = inner_axes() if choice % 2 else axis
  if choice % 3 == 0:
    return lax.pmax(lax.stop_gradient(real(x)), over)
  return lax.psum(bounded(x), over)


def _gather(x, axis, choice):
  size = lax.axis_size(axis)
  if x.size * size > MAX_SIZE:
    x = x.reshape(-1)[: MAX_SIZE // size]
  return lax.all_gather(x, axis, tiled=bool(choice % 2))


def _permute(x, axis, choice):
  size = lax.axis_size(axis)
  shift = 1 + choice % (size - 1)
  pairs = [(device, (device + shift) % size) for device in range(size)]
  # Who is sent nothing has zeros.
  return lax.ppermute(x, axis, pairs[: size - (choice // 8 % 2)])


def _even(x: jax.Array, axis: str) -> jax.Array:
  size = lax.axis_size(axis)
  return fit(x, (-(-x.shape[0] // size) * size, *x.shape[1:]), x.dtype)


def _scatter(x, axis, choice):
  del choice
  return lax.psum_scatter(_even(bounded(x), axis), axis, tiled=True)


def _exchange(x, axis, choice):
  concatenated = choice % x.ndim
  return lax.all_to_all(_even(x, axis), axis, 0, concatenated, tiled=True)


def _index(x, axis, choice):
  del choice
  return x + cast(lax.axis_index(axis), x.dtype)


def _constraint(x, y, choice):
  """Says how a value is divided; each device's own part cannot be."""
  del y
  mesh = jax.sharding.get_abstract_mesh()
  if inner_axes() or not x.ndim:
    return x
  spec = divided(x.shape, dict(mesh.shape), choice)
  return lax.with_sharding_constraint(x, spec)


def _shard_map(run, scope, x, y, choice):
  """Its body sees nothing but the parts of two values."""
  del scope
  # No value has the number that the second one is given.
  if inner_axes():
    return run({-1: y}, x)
  return over_devices(lambda x, y: run({-1: y}, x), x, y, choice)


KINDS: dict[str, Kind] = {
  "constraint": _constraint,
  "all_reduce": _collective(_sum),
  "all_gather": _collective(_gather),
  "permute": _collective(_permute),
  "reduce_scatter": _collective(_scatter),
  "all_to_all": _collective(_exchange),
  "device_index": _collective(_index),
}
BODIES = {"shard_map": _shard_map}
CLOSED = frozenset(BODIES)
