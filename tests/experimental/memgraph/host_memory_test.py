"""Host memory for what is offloaded: places, copies and limits."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized

from jaxmem.experimental.memgraph import host_memory


class HostMemoryTest(parameterized.TestCase):
  def test_block_hands_out_disjoint_ranges(self):
    rng = np.random.default_rng(0)
    block = host_memory.HostBlock(64 * 100)
    taken = []
    num_refused = 0
    for _ in range(3000):
      if taken and rng.random() < 0.45:
        block.free(taken.pop(rng.integers(len(taken))))
        continue
      size_bytes = int(rng.integers(0, 900))
      handle = block.allocate(size_bytes)
      if handle is None:
        num_refused += 1
        gaps = self._gaps(taken, 6400)
        self.assertLess(max(gaps), -(-size_bytes // 64) * 64)
        continue
      self.assertGreaterEqual(handle.end - handle.begin, size_bytes)
      self.assertLessEqual(handle.end, 6400)
      taken.append(handle)
      ranges = sorted((h.begin, h.end) for h in taken if h.end > h.begin)
      for (_, end), (begin, _) in itertools.pairwise(ranges):
        self.assertLessEqual(end, begin)
      self.assertEqual(block.used_bytes, sum(e - b for b, e in ranges))
    self.assertGreater(num_refused, 10)
    for handle in taken:
      block.free(handle)
    self.assertEqual(block.used_bytes, 0)
    self.assertIsNotNone(block.allocate(6400))

  def _gaps(self, taken, size_bytes) -> list[int]:
    ends = [0]
    begins = []
    for handle in sorted(taken, key=lambda h: (h.begin, h.end)):
      if handle.end > handle.begin:
        begins.append(handle.begin)
        ends.append(handle.end)
    begins.append(size_bytes)
    return [b - e for b, e in zip(begins, ends, strict=True)]

  @parameterized.product(
    host=[host_memory.HostBlock, host_memory.PinnedHost],
    value=[
      np.arange(6, dtype="f4").reshape(2, 3),
      np.float64(1.5),
      np.array([True, False]),
      np.arange(5).astype(ml_dtypes.bfloat16),
      np.zeros((0, 3), "i4"),
    ],
  )
  def test_round_trip(self, host, value):
    memory = host(4096)
    array = jnp.asarray(value)
    handle = memory.allocate(array.nbytes)
    memory.store(handle, array)
    back = memory.load(handle, jax.devices()[1])
    kept = memory.read(handle)
    self.assertEqual(back.dtype, array.dtype)
    self.assertEqual(back.devices(), {jax.devices()[1]})
    # The place is given to another one.
    memory.free(handle)
    other = memory.allocate(array.nbytes)
    memory.store(other, jnp.ones_like(array))
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(kept, array)

  @parameterized.parameters(host_memory.HostBlock, host_memory.PinnedHost)
  def test_random_keys(self, host):
    key = jax.random.key(7)
    memory = host(4096)
    handle = memory.allocate(8)
    memory.store(handle, key)
    back = memory.load(handle, jax.devices()[0])
    self.assertEqual(jax.random.uniform(back), jax.random.uniform(key))
    fetched = host_memory.fetch(key, jax.devices()[0])
    self.assertEqual(jax.random.uniform(fetched), jax.random.uniform(key))

  @parameterized.parameters(host_memory.HostBlock, host_memory.PinnedHost)
  def test_limit(self, host):
    memory = host(128)
    first = memory.allocate(128)
    self.assertIsNone(memory.allocate(1))
    memory.free(first)
    self.assertIsNotNone(memory.allocate(128))
    self.assertEqual(memory.peak_bytes, 128)

  def test_fetch_copies(self):
    value = np.arange(64, dtype="f4")
    fetched = host_memory.fetch(value, jax.devices()[0])
    value[:] = 0
    np.testing.assert_array_equal(fetched, np.arange(64))
    array = jnp.arange(64.0)
    fetched = host_memory.fetch(array, jax.devices()[0])
    fetched.delete()
    np.testing.assert_array_equal(array, np.arange(64))


if __name__ == "__main__":
  absltest.main()
