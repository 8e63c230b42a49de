"""Arenas of programs that come from jax's persistent cache."""

import json
import tempfile

import cached_process
import pytest
from absl.testing import absltest

_PROGRAM = """
import json, warnings
import numpy as np
warnings.simplefilter("error")

def step(x, y):
  total = jnp.float32(0)
  for i in range(6):
    total += jnp.sum(jnp.sin((x + i) @ y) @ x.T)
  return total, jnp.sort(x @ y)

generator = np.random.default_rng(0)
x, y = (generator.normal(size=(48, 48)).astype(np.float32) for _ in range(2))
options = jaxmem.Options(keep_arena=True)
limit = eval(sys.argv[2])
expected = [np.asarray(leaf) for leaf in jax.jit(step)(x, y)]
for _ in range(2):  # The other takes the program that jax has in memory.
  jitted = jaxmem.jit(step, options=options, memory_limit=limit)
  lowered = jitted.lower(x, y)
  events.clear()
  compiled = lowered.compile()
  hits = num_hits()
  found = [jitted(x, y) for _ in range(3)]
  (kept,) = jitted._compiled.values()
  print(json.dumps({
    "hits": hits,
    "kind": type(kept).__name__,
    "arena_bytes": getattr(kept, "arena_bytes", None),
    "num_arenas": len(getattr(kept, "_free", ())),
    "temp_bytes": kept.memory_analysis().temp_size_in_bytes,
    "equal": all(
      np.array_equal(a, b) for f in found for a, b in zip(f, expected)
    ),
    "bits": [np.asarray(leaf).tobytes().hex() for leaf in found[0]],
  }))
"""


class ArenaCacheTest(absltest.TestCase):
  def run_process(self, folder, limit):
    lines = cached_process.run(_PROGRAM, folder, str(limit))
    return [json.loads(line) for line in lines]

  def check_second_process(self, limit):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    (first, again), (hit, hit_again) = (
      self.run_process(folder, limit) for _ in range(2)
    )
    self.assertEqual([first["hits"], hit["hits"]], [0, 1])
    for one in (first, again, hit, hit_again):
      self.assertEqual(one["kind"], "KeptArena")
      self.assertEqual((one["num_arenas"], one["temp_bytes"]), (1, 0))
      self.assertEqual(one["arena_bytes"], first["arena_bytes"])
      self.assertTrue(one["equal"])
      self.assertEqual(one["bits"], first["bits"])

  def test_a_second_process_keeps_the_arena(self):
    self.check_second_process(None)

  @pytest.mark.slow
  def test_under_a_limit(self):
    self.check_second_process(10**9)


if __name__ == "__main__":
  absltest.main()
