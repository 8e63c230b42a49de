"""What may be kept instead of made again, where the peak comes late."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import random_graphs
from absl.testing import absltest, parameterized

import jaxmem
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.graph import Buffer, ComputationGraph
from jaxmem.planning import Request
from jaxmem.planning.kept_room import kept_room
from jaxmem.versions import blocks
from jaxmem.versions.rules import RECOMPUTE_SCOPE
from jaxmem.versions.version import Version, recomputing_blocks

_SPARE = 5


def _entry(names, live):
  """A program with these names of operations and ascending live bytes."""
  last = len(names) - 1
  sizes = [
    after - before for before, after in zip([0, *live[:-1]], live, strict=True)
  ]
  buffers = [
    Buffer(name=f"{n}", size_bytes=size, touchers=(n, last), definer=n)
    for n, size in enumerate(sizes[:-1])
  ]
  buffers.append(
    Buffer(name="last", size_bytes=sizes[-1], touchers=(last,), definer=last)
  )
  graph = random_graphs.build(
    [(n - 1,) if n else () for n in range(len(names))], buffers
  )
  instructions = []
  for name in names:
    instruction = mock.Mock()
    instruction.proto.metadata.op_name = name
    instructions.append(instruction)
  return mock.Mock(
    spec=ComputationGraph, instructions=tuple(instructions), graph=graph
  )


class ByHandTest(parameterized.TestCase):
  @parameterized.parameters(
    # All is live from the second to the third, half from the first to the
    # fifth. At the third, 100 - 30 + 5 are left.
    ("f f loss r/f grad r/f grad", [10, 20, 30, 40, 50, 60, 100], 75),
    # The peak is at the end of the forward pass.
    ("f f loss r/f grad r/f grad", [10, 20, 100, 100, 100, 100, 100], _SPARE),
    # Two passes: twice what is left at the end of each forward pass.
    ("f loss r/f grad f loss r/f grad", [0, 10, 20, 30, 40, 50, 60, 90], 90),
    # Nothing is made again, or nobody knows what.
    ("f f loss grad grad", [10, 20, 30, 40, 100], _SPARE),
    ("f loss r/other grad", [10, 20, 30, 100], _SPARE),
  )
  def test_by_hand(self, names, live, room):
    self.assertEqual(kept_room(_entry(names.split(), live), "r", _SPARE), room)


def _clipped_step(layers, x):
  """All gradients are live before the first weight is updated."""

  def loss(layers):
    y = x
    for left, right in layers:
      y += jax.nn.gelu(y @ left) @ right
    return jnp.mean(y**2)

  grads = jax.grad(loss)(layers)
  norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
  return jax.tree.map(lambda w, g: w - g / norm, layers, grads)


class RealStepTest(absltest.TestCase):
  def test_what_is_kept_fits_as_xla_allocates_it(self):
    left = jax.ShapeDtypeStruct((256, 1024), jnp.float32)
    right = jax.ShapeDtypeStruct((1024, 256), jnp.float32)
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    jitted = jax.jit(_clipped_step, donate_argnums=0)
    traced = TracedStep(jitted.trace([(left, right)] * 8, x))
    request = Request(options=jaxmem.Options())
    step = blocks.BlockStep(traced.jaxpr)
    device = request.device("cpu")
    choice = blocks.BlockChoice(num_groups=step.blocks.number)

    def planner(choice):
      recomputed = step.recompute(choice, device.rates)
      version = recomputing_blocks(
        Version(step=traced), choice, recomputed, device
      )
      module = ScheduleCapture(request).module(version.step)
      return request.planner(module, "cpu"), recomputed

    nothing, _ = planner(choice)
    limit_bytes = nothing.total_bytes + (1 << 20)
    room = nothing.kept_room(limit_bytes, RECOMPUTE_SCOPE)
    self.assertGreater(room, 4 << 20)
    kept, recomputed = planner(dataclasses.replace(choice, keep_bytes=room))
    self.assertGreater(recomputed.kept_bytes, 4 << 20)
    self.assertLessEqual(kept.total_bytes, limit_bytes)


if __name__ == "__main__":
  absltest.main()
