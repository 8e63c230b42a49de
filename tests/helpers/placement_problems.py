"""Placement problems for tests: by hand, at random, and from files."""

import itertools
import pathlib
import random

from jaxmem.placement import Buffer, Gap, Problem, from_csv

_FOLDER = pathlib.Path(__file__).parents[1] / "testdata" / "minimalloc"
CAPACITY = 1 << 20


def problem(*rows, **common) -> Problem:
  """Makes a problem of rows (size, lower, upper), named b0, b1 and so on."""
  return Problem(
    tuple(
      Buffer(name=f"b{i}", size_bytes=size, lower=lower, upper=upper, **common)
      for i, (size, lower, upper) in enumerate(rows)
    )
  )


def instance(name: str) -> Problem:
  """Reads one of MiniMalloc's instances."""
  path = _FOLDER / f"{name}.{CAPACITY}.csv"
  return from_csv(path.read_text(encoding="utf-8"))


def random_problem(seed: int, num_buffers: int) -> Problem:
  """Draws a problem; some have gaps, alignments or a fixed buffer."""
  generator = random.Random(seed)
  alignment = generator.choice([1, 1, 4, 64])
  buffers = []
  for i in range(num_buffers):
    size = generator.randint(0, 40) * generator.choice([1, 8])
    lower, upper = sorted(generator.sample(range(2 * num_buffers + 8), 2))
    gaps = ()
    if upper - lower > 3 and generator.random() < 0.3:
      low, high = sorted([generator.randint(0, size) for _ in range(2)])
      window = generator.choice([None, (low, high)])
      gaps = (Gap(lower + 1, upper - 1, window),)
    buffers.append(
      Buffer(
        name=f"b{i}",
        size_bytes=size,
        lower=lower,
        upper=upper,
        alignment_bytes=generator.choice([alignment, 1, alignment]),
        offset_bytes=alignment * generator.randint(0, 2)
        if i == 0 and generator.random() < 0.3
        else None,
        gaps=gaps,
      )
    )
  return Problem(tuple(buffers))


def least_height(given: Problem) -> int:
  """Returns the height of the best placement, by trying all.

  Any placement can be pushed down until each buffer lies on the ground or on
  others. So some order of the buffers, each put at the lowest offset above all
  earlier ones that it meets, is optimal; buffers without gaps only.
  """
  heights = []
  for order in itertools.permutations(given.buffers):
    placed: list[tuple[Buffer, int]] = []
    for buffer in order:
      meets = [
        offset + other.size_bytes
        for other, offset in placed
        if other.lower < buffer.upper and buffer.lower < other.upper
      ]
      step = buffer.alignment_bytes
      placed.append((buffer, -(-max(meets, default=0) // step) * step))
    heights.append(max(o + b.size_bytes for b, o in placed))
  return min(heights)
