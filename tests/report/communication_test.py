"""Tests of what a report says of other devices."""

import jax
import numpy as np
import pytest
import tiny_hlo
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.proto import hlo_pb2
from tiny_hlo import f32, tuple_of

import jaxmem
from jaxmem import cost, report, targets
from jaxmem.report.communication import (
  communication_lines,
  replicated_lines,
  resharded_lines,
)

_PAIR = [hlo_pb2.ReplicaGroup(replica_ids=(0, 1))]
_RATES = cost.for_target("h200")


def _gather(computation, operand, length, source, op_name="step/dot_general"):
  shape = tuple_of(f32(length), f32(2 * length))
  start = computation.op(
    *("all-gather-start", shape, operand),
    replica_groups=_PAIR,
    metadata=hlo_pb2.OpMetadata(
      source_file=source, source_line=7, op_name=op_name
    ),
  )
  return computation.op("all-gather-done", f32(2 * length), start)


def _module():
  """Gathers 8 kB from one line, and from another 4 kB in each of 5 rounds."""
  builder = tiny_hlo.Builder()
  body = builder.computation("body")
  carried = body.parameter(f32(500))
  gathered = _gather(body, carried, 500, "loop.py")
  body.op("dot", f32(500), gathered)
  condition = builder.computation("condition")
  condition.parameter(f32(500))
  condition.op("constant", tiny_hlo.pred())
  main = builder.computation("main")
  x, y = main.parameter(f32(500)), main.parameter(f32(1000))
  count = b'{"known_trip_count":{"n":"5"}}'
  looped = main.op(
    *("while", f32(500), x), calls=(body, condition), backend_config=count
  )
  main.tuple(looped, _gather(main, y, 1000, "once.py"))
  return builder.module(main)


def test_where_collectives_come_from():
  found = report.communication_of(_module(), _RATES)
  assert found is not None
  listed = [(e.kind, e.source, e.count, e.size_bytes) for e in found.largest]
  assert listed == [
    ("all-gather", "loop.py:7", 5, 5 * 4000),
    ("all-gather", "once.py:7", 1, 8000),
  ]
  assert found.seconds == pytest.approx(sum(e.seconds for e in found.largest))
  assert found.hidden_s == pytest.approx(found.seconds - found.exposed_s)
  lines = communication_lines(found, None)
  assert [label.strip() for label, _ in lines] == ["communication", "most", ""]
  assert lines[1][1].endswith("loop.py:7")


def test_a_program_of_one_device_exchanges_nothing():
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  main.op("dot", f32(8), main.parameter(f32(8)))
  assert report.communication_of(builder.module(main), _RATES) is None
  assert not communication_lines(None, None)


@pytest.mark.parametrize(
  ("op_name", "is_known"),
  [
    ("jit(step)/jvp()/dot_general", True),
    ("params[0]['a']", True),
    ("jit(step)/jvp()/shard_map/all_gather", False),
    ("jit(step)/jvp()/shard_map/psum_scatter", False),
    ("", False),
  ],
)
def test_buffers_that_resharding_makes(op_name, is_known):
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(1000))
  gathered = _gather(main, x, 1000, "step.py", op_name)
  summed = main.op(
    *("all-reduce", f32(2000), gathered),
    replica_groups=_PAIR,
    metadata=hlo_pb2.OpMetadata(op_name="jit(step)/dot_general"),
  )
  main.op("dot", f32(8), gathered, summed)
  module = builder.module(main)
  assigned = AssignmentModel(module, "cuda").assign()
  placed = report.layout.describe(module, assigned)
  found = report.resharded(module, assigned, placed)
  if not is_known:
    assert not found and not resharded_lines(found)
    return
  assert [(b.size_bytes, b.source) for b in found] == [(8000, "step.py:7")]
  (label, total), (_, line) = resharded_lines(found)
  assert (label, total) == ("resharding", "7.81 KiB at the peak:")
  assert line.endswith("step.py:7")


@pytest.mark.skipif(
  not targets.is_available("h200"),
  reason="JAX's CUDA plugin is not installed: pip install jax-cuda13-plugin",
)
def test_large_arguments_that_every_device_has_all_of():
  devices = np.array(jaxmem.devices("h200", 8)).reshape(2, 4)
  mesh = Mesh(devices, ("data", "model"))

  def shape(*dims, spec=()):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.ShapeDtypeStruct(dims, np.float32, sharding=sharding)

  found = report.replicated(
    {
      "divided": shape(1024, 1024, spec=("data",)),
      "small": shape(8, 8),
      "odd": shape(1025, 1023),
      "wide": shape(1023, 1024),
      "tall": shape(1024, 1022),
    }
  )
  # The larger axis first, over the first dimension that it divides.
  assert [(r.path, r.dimension, r.axis) for r in found] == [
    ("['wide']", 1, "model"),
    ("['tall']", 0, "model"),
  ]
  tall = found[1]
  assert tall.size_bytes == 4 * 1024 * 1022
  assert tall.saved_bytes == tall.size_bytes * 3 // 4
  (label, _), (_, line) = replicated_lines(found)
  assert label == "replicated"
  assert "['tall']: dimension 0 over axis 'model' would save" in line
