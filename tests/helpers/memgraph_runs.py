"""Graphs of vectors that run on jax devices, and what jax holds meanwhile."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmem.experimental import memgraph

ALIGNMENT_BYTES = 256


def live_bytes() -> int:
  """Returns the bytes that jax holds; arrays may share a buffer.

  Arrays over several devices are left over from other tests, and do not count.
  """
  arrays = [
    array
    for array in jax.live_arrays()
    if array.size and len(array.devices()) == 1
  ]
  buffers = {array.unsafe_buffer_pointer(): array.nbytes for array in arrays}
  return sum(buffers.values())


def vector_graph(num_tensors: int, size: int = 1024):
  """m_i makes x_i; use_i reads x_i and x_{i+1}; all survive two at a time."""
  builder = memgraph.Builder()
  size_bytes = 4 * size
  base = builder.tensor("base", size_bytes)
  made = [
    builder.task(f"m{i}", [base], [(f"x{i}", size_bytes)])[0]
    for i in range(num_tensors)
  ]
  used = [
    builder.task(f"use{i}", made[i : i + 2], [(f"y{i}", 4)], source="f.py:7")[0]
    for i in range(num_tensors - 1)
  ]
  kernels = [jax.jit(lambda x, i=i: [x + i]) for i in range(num_tensors)]
  dot = jax.jit(lambda a, b: [jnp.vdot(a, b)])
  kernels += [dot] * (num_tensors - 1)
  return builder.build(used), kernels, {base: np.arange(size, dtype="f4")}


def vector_runtime(num_tensors=5, num_resident=3, **options):
  graph, kernels, inputs = vector_graph(num_tensors)
  built = memgraph.build_memgraph(graph, num_resident * 4096 + ALIGNMENT_BYTES)
  memgraph.check(built)
  return memgraph.Runtime(built, kernels, **options), inputs


def expected_outputs(num_tensors=5) -> list[np.ndarray]:
  base = np.arange(1024, dtype="f4")
  return [
    np.asarray(jnp.vdot(jnp.asarray(base + i), jnp.asarray(base + i + 1)))
    for i in range(num_tensors - 1)
  ]
