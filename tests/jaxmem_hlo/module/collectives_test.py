"""Tests of collectives: which instructions hold one, and between whom."""

import tiny_hlo
from absl.testing import absltest
from jaxmem_hlo.module import collective_of, collective_start, replica_groups
from jaxmem_hlo.proto import hlo_pb2
from tiny_hlo import f32, tuple_of

_ROWS = ((0, 1), (2, 3), (4, 5), (6, 7))
_COLUMNS = ((0, 4), (1, 5), (2, 6), (3, 7))


def _groups(**fields):
  return replica_groups(hlo_pb2.Instruction(opcode="all-reduce", **fields))


def _listed(groups):
  return [hlo_pb2.ReplicaGroup(replica_ids=group) for group in groups]


def _mesh(sizes, axes, device_ids=()):
  return hlo_pb2.MeshAxesReplicaGroupList(
    mesh=hlo_pb2.Mesh(
      axes=[
        hlo_pb2.Mesh.Axis(name=f"a{n}", size=size)
        for n, size in enumerate(sizes)
      ],
      device_ids=device_ids,
    ),
    axes=axes,
  )


def _axis(number, part=None):
  reference = hlo_pb2.AxisRef(mesh_axis_index=number)
  if part is not None:
    before, size = part
    reference.sub_axis_info.pre_size = before
    reference.sub_axis_info.size = size
  return reference


class ReplicaGroupsTest(absltest.TestCase):
  def test_listed(self):
    self.assertEqual(_groups(replica_groups=_listed(_ROWS)), _ROWS)

  def test_in_a_device_list(self):
    listed = hlo_pb2.CollectiveDeviceList(replica_groups=_listed(_COLUMNS))
    self.assertEqual(_groups(collective_device_list=listed), _COLUMNS)

  def test_a_transposed_row_of_numbers(self):
    iota = hlo_pb2.IotaReplicaGroupList(
      num_replica_groups=4,
      num_devices_per_group=2,
      iota_reshape_dims=[2, 4],
      iota_transpose_perm=[1, 0],
    )
    listed = hlo_pb2.CollectiveDeviceList(iota_replica_group_list=iota)
    self.assertEqual(_groups(collective_device_list=listed), _COLUMNS)

  def test_axes_of_a_mesh(self):
    for axes, expected in (
      ([_axis(1)], _ROWS),
      ([_axis(0)], _COLUMNS_OF_PAIRS),
      ([_axis(0), _axis(1)], (tuple(range(8)),)),
    ):
      found = _groups(mesh_axes_replica_group_list=_mesh((4, 2), axes))
      self.assertEqual(found, expected)

  def test_a_part_of_an_axis(self):
    # An axis of eight, as two times four: its major and its minor part.
    major = _mesh((8,), [_axis(0, (1, 2))])
    minor = _mesh((8,), [_axis(0, (2, 4))])
    self.assertEqual(_groups(mesh_axes_replica_group_list=major), _COLUMNS)
    self.assertEqual(
      _groups(mesh_axes_replica_group_list=minor), ((0, 1, 2, 3), (4, 5, 6, 7))
    )

  def test_a_mesh_of_named_devices(self):
    mesh = _mesh((2, 2), [_axis(1)], device_ids=[3, 1, 2, 0])
    self.assertEqual(
      _groups(mesh_axes_replica_group_list=mesh), ((3, 1), (2, 0))
    )

  def test_pairs_of_a_permutation(self):
    pairs = [hlo_pb2.SourceTarget(source=s, target=t) for s, t in _ROWS]
    self.assertEqual(_groups(source_target_pairs=pairs), _ROWS)

  def test_all_together(self):
    self.assertEqual(_groups(), ())


_COLUMNS_OF_PAIRS = ((0, 2, 4, 6), (1, 3, 5, 7))


class CollectiveOfTest(absltest.TestCase):
  def test_what_starts_or_holds_one(self):
    builder = tiny_hlo.Builder()
    fused = builder.fusion("fused")
    fused.op("all-reduce", f32(8), fused.parameter(f32(8)), name="inner")
    main = builder.computation("main")
    x = main.parameter(f32(8))
    pair = tuple_of(f32(8), f32(64))
    start = main.op("all-gather-start", pair, x, name="start")
    gathered = main.op("all-gather-done", f32(64), start, name="done")
    fusion = main.op("fusion", f32(8), x, calls=(fused,), name="fusion")
    alone = main.op("reduce-scatter", f32(8), gathered, name="alone")
    main.tuple(fusion, alone, main.op("dot", f32(8), x, name="dot"))
    module = builder.module(main)
    named = {i.name: i for i in module.entry.instructions}
    held = {n: collective_of(module, i) for n, i in named.items()}
    self.assertEqual(
      {n: i.name for n, i in held.items() if i is not None},
      {"start": "start", "fusion": "inner", "alone": "alone"},
    )
    started = {n for n, i in named.items() if collective_start(module, i)}
    self.assertEqual(started, {"start"})


if __name__ == "__main__":
  absltest.main()
