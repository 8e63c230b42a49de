"""Kinds of operations that hold no others, for operands of any shape and type.

Numbers stay finite: nothing grows faster than to the double of its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Of two operands and a choice; the first operand decides shape and type.
Kind = Callable[[jax.Array, jax.Array, int], jax.Array]

DTYPES = ("float32", "bfloat16", "int32", "int8", "complex64", "bool")
# Elements of the largest value: 128 KiB of float32.
MAX_SIZE = 1 << 15


def cast(x: jax.Array, dtype: Any) -> jax.Array:
  """Converts values to a type, with small numbers for small types."""
  dtype = jnp.dtype(dtype)
  if x.dtype == dtype:
    return x
  if jnp.iscomplexobj(x) and dtype != jnp.complex64:
    x = jnp.real(x)
  if dtype == jnp.bool_:
    return x > 0
  if is_float(x) and jnp.issubdtype(dtype, jnp.integer):
    x = jnp.round(100 * jnp.tanh(x))
  return x.astype(dtype)


def is_float(x: jax.Array) -> bool:
  """Whether values are real and differentiable."""
  return jnp.issubdtype(x.dtype, jnp.floating)


def fit(x: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
  """Converts to a type and a shape: values are repeated, or left out."""
  x, size = cast(x, dtype), math.prod(shape)
  if x.shape == tuple(shape):
    return x
  if not x.size:
    return jnp.zeros(shape, dtype)
  x = x.reshape(-1)
  if x.size < size:
    x = jnp.tile(x, -(-size // x.size))
  return x[:size].reshape(shape)


def bounded(x: jax.Array) -> jax.Array:
  """Brings real and complex values within the unit circle."""
  if jnp.iscomplexobj(x):
    return x / (1 + jnp.abs(x))
  return jnp.tanh(x) if is_float(x) else x


def rows(x: jax.Array) -> jax.Array:
  """Returns what has a first dimension."""
  return x if x.ndim else x[None]


def real(x: jax.Array) -> jax.Array:
  """Returns what can be ordered."""
  return jnp.real(x) if jnp.iscomplexobj(x) else x


def number(x: jax.Array) -> jax.Array:
  """Returns what can be added."""
  return x.astype(jnp.int32) if x.dtype == jnp.bool_ else x


def _wide(x: jax.Array) -> jax.Array:
  """Returns float32 of float32's size, complex64 as it is."""
  return x if jnp.iscomplexobj(x) else cast(x, jnp.float32)


def _axis(x: jax.Array, choice: int) -> int:
  return choice % x.ndim


def _indices(y: jax.Array, count: int, below: int) -> jax.Array:
  indices = jnp.abs(fit(y, (count,), jnp.int32))
  return indices % max(below, 1)


def _add(x, y, choice):
  y = fit(y, x.shape, x.dtype)
  if x.dtype == jnp.bool_:
    return jnp.logical_xor(x, y)
  return x - y if choice % 2 else x + y


def _multiply(x, y, choice):
  del choice
  return x * bounded(fit(y, x.shape, x.dtype))


def _unary(x, y, choice):
  del y
  if x.dtype == jnp.bool_:
    return ~x
  if jnp.issubdtype(x.dtype, jnp.integer):
    return (-x, jnp.abs(x), x // 3, x ^ 5)[choice % 4]
  if jnp.iscomplexobj(x):
    return (bounded(x), jnp.conj(x), jnp.exp(1j * jnp.real(x)))[choice % 3]
  functions: tuple[Callable[[Any], jax.Array], ...] = (
    *(jnp.tanh, jnp.sin, jnp.cos, jax.nn.sigmoid, jax.nn.relu, jnp.arctan),
    *(lambda x: jnp.exp(-x * x), lambda x: jnp.sqrt(1 + x * x)),
    lambda x: x / (1 + jnp.abs(x)),
  )
  return functions[choice % len(functions)](bounded(x))


def _select(x, y, choice):
  y = fit(y, x.shape, x.dtype)
  if choice % 3 == 0 and not jnp.iscomplexobj(x):
    return jnp.maximum(x, y)
  return jnp.where(real(x) > real(y), x, y)


def _cast(x, y, choice):
  del y
  return cast(x, DTYPES[choice % len(DTYPES)])


def _reduce(x, y, choice):
  del y
  x = number(rows(x))
  axis = _axis(x, choice // 8)
  if not x.size or jnp.iscomplexobj(x):
    return x.sum(axis)
  which = choice % 5
  if which == 4:
    return x.sum().astype(x.dtype) / 64 if is_float(x) else x.sum()
  return (jnp.sum, jnp.max, jnp.mean, jnp.min)[which](x, axis)


def _widen(x, y, choice):
  del y
  count = 2 + choice % 7
  if x.size * count > MAX_SIZE:
    return x
  return jnp.broadcast_to(x[None], (count, *x.shape))


def _matmul(x, y, choice):
  x = rows(number(x))
  x = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
  columns = (8, 32, 64, x.shape[-1])[choice % 4]
  y = bounded(fit(y, (x.shape[-1], columns), x.dtype))
  if jnp.issubdtype(x.dtype, jnp.integer):
    return jnp.matmul(x, y, preferred_element_type=jnp.int32)
  return (x @ y) / jnp.asarray(max(1, x.shape[-1]), x.dtype)


def _convolution(x, y, choice):
  dtype = x.dtype if is_float(x) else jnp.float32
  x = fit(x, (2, 8, 8, 4), dtype)
  y = bounded(fit(y, (3, 3, 4, (4, 8)[choice % 2]), dtype))
  return jax.lax.conv_general_dilated(
    x,
    y / 36,
    ((1, 1), (2, 2))[choice // 2 % 2],
    ("SAME", "VALID")[choice // 4 % 2],
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def _gather(x, y, choice):
  x = rows(x)
  if not x.shape[0]:
    return x
  return x[_indices(y, (2, 8, x.shape[0])[choice % 3], x.shape[0])]


def _scatter(x, y, choice):
  x = rows(x)
  count = min(4, x.shape[0])
  indices = _indices(y, count, x.shape[0])
  new = fit(y, (count, *x.shape[1:]), x.dtype)
  if choice % 2 or x.dtype == jnp.bool_:
    # Which of several rows stays is not defined: they are at other places.
    places = (indices[:1] + jnp.arange(count)) % max(1, x.shape[0])
    return x.at[places].set(new, unique_indices=True)
  return x.at[indices].add(new)


def _slice(x, y, choice):
  x = rows(x)
  axis = _axis(x, choice)
  start = _indices(y, 1, x.shape[axis])[0]
  size = (x.shape[axis] + 1) // 2
  return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _update(x, y, choice):
  x = rows(x)
  axis = _axis(x, choice)
  shape = [*x.shape]
  shape[axis] = (shape[axis] + 1) // 2
  start = _indices(y, 1, x.shape[axis])[0]
  return jax.lax.dynamic_update_slice_in_dim(
    x, fit(y, shape, x.dtype), start, axis
  )


def _sort(x, y, choice):
  del y
  x = rows(x)
  axis = _axis(x, choice // 2)
  if choice % 2:
    return jnp.argsort(x, axis)
  return jnp.sort(x, axis)


def _cumulate(x, y, choice):
  del y
  x = number(rows(x))
  axis = _axis(x, choice // 2)
  if choice % 2:
    return jax.lax.cummax(real(x), axis)
  return jnp.cumsum(bounded(x), axis).astype(x.dtype)


def _transpose(x, y, choice):
  del y
  if choice % 2 and x.size:
    return x.reshape(-1)[::-1].reshape(x.shape)
  return x.T


def _reshape(x, y, choice):
  del y
  columns = (1, 4, 16, 64)[choice % 4]
  return x.reshape(-1, columns) if x.size % columns == 0 and x.size else x


def _concatenate(x, y, choice):
  x = rows(x)
  if 2 * x.size > MAX_SIZE:
    return x[: x.shape[0] // 2]
  axis = _axis(x, choice)
  return jnp.concatenate([x, fit(y, x.shape, x.dtype)], axis)


def _pad(x, y, choice):
  del y
  x = rows(x)
  config = [(choice % 3, choice // 3 % 2, 0)] * x.ndim
  return x if x.size > MAX_SIZE // 4 else jnp.pad(x, [c[:2] for c in config])


def _random(x, y, choice):
  key = jax.random.fold_in(
    jax.random.key(choice), _indices(y, 1, 1 << 20)[0].astype(jnp.uint32)
  )
  if choice % 2:
    return jnp.where(
      jax.random.bernoulli(key, 0.8, x.shape), x, jnp.zeros_like(x)
    )
  return _add(x, jax.random.normal(key, x.shape), 0)


def _solve(x, y, choice):
  del choice
  system = bounded(fit(x, (8, 8), jnp.float32)) + 10 * jnp.eye(8)
  return jnp.linalg.solve(system, bounded(fit(y, (8, 4), jnp.float32)))


def _fourier(x, y, choice):
  del y
  x = rows(_wide(x))
  if not x.size:
    return x
  x = jnp.fft.fft(bounded(x)) / x.shape[-1]
  return x if choice % 2 else jnp.real(x)


def _empty(x, y, choice):
  x = rows(x)[:0]
  return jnp.concatenate([x, rows(y).astype(x.dtype)[:0].reshape(x.shape)])


def _barrier(x, y, choice):
  del choice
  return jax.lax.optimization_barrier((x, y))[0]


def _window(x, y, choice):
  del y
  x = _wide(real(x))
  x = fit(x, (4, 16, 16), jnp.float32)
  strides = (1, 2, 2) if choice % 2 else (1, 1, 1)
  return jax.lax.reduce_window(
    x, np.float32(-np.inf), jax.lax.max, (1, 2, 2), strides, "VALID"
  )


KINDS: dict[str, Kind] = {
  "add": _add,
  "multiply": _multiply,
  "unary": _unary,
  "select": _select,
  "cast": _cast,
  "reduce": _reduce,
  "widen": _widen,
  "matmul": _matmul,
  "convolution": _convolution,
  "gather": _gather,
  "scatter": _scatter,
  "slice": _slice,
  "update": _update,
  "sort": _sort,
  "cumulate": _cumulate,
  "transpose": _transpose,
  "reshape": _reshape,
  "concatenate": _concatenate,
  "pad": _pad,
  "random": _random,
  "solve": _solve,
  "fourier": _fourier,
  "empty": _empty,
  "barrier": _barrier,
  "window": _window,
}
