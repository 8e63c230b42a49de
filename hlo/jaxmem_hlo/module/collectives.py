"""Collectives of a scheduled module, and which devices take part in them.

One that is asynchronous has a start and a done. XLA runs it beside kernels if
any stands between the two, and otherwise like any other kernel: see
`convert_async_collectives_to_sync.cc`.

XLA writes groups of devices in four ways: as a list of groups, as a list inside
of a device list, as a reshaped and transposed row of numbers, or as axes of a
mesh.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from jaxmem_hlo.module.hlo_module import Instruction, Module
from jaxmem_hlo.module.opcodes import COLLECTIVES
from jaxmem_hlo.proto import hlo_pb2

Groups = tuple[tuple[int, ...], ...]

_START = "-start"


def collective_of(
  module: Module, instruction: Instruction
) -> Instruction | None:
  """Returns the collective that an instruction is, starts or wraps, if any.

  Args:
    module: The module.
    instruction: Of one of its scheduled computations.
  """
  opcode = instruction.opcode
  if opcode.removesuffix(_START) in COLLECTIVES:
    return instruction
  if opcode not in ("async-start", "fusion"):
    return None
  for callee in instruction.callees:
    for inner in module.by_id[callee].instructions:
      found = collective_of(module, inner)
      if found is not None:
        return found
  return None


def collective_start(
  module: Module, instruction: Instruction
) -> Instruction | None:
  """Returns the collective that an instruction starts, if it starts one."""
  if not instruction.opcode.endswith(_START):
    return None
  return collective_of(module, instruction)


def replica_groups(instruction: hlo_pb2.Instruction) -> Groups:
  """Returns the groups of devices of a collective, by their partition's number.

  Args:
    instruction: The collective itself, not what starts or wraps it.

  Returns:
    The groups; of a permutation, each pair of a source and a target. Without
    any, all devices of the program are one group.
  """
  if instruction.source_target_pairs:
    return tuple((p.source, p.target) for p in instruction.source_target_pairs)
  if instruction.HasField("mesh_axes_replica_group_list"):
    return _of_mesh(instruction.mesh_axes_replica_group_list)
  devices = instruction.collective_device_list
  if devices.HasField("iota_replica_group_list"):
    return _of_iota(devices.iota_replica_group_list)
  listed = devices.replica_groups or instruction.replica_groups
  return tuple(tuple(group.replica_ids) for group in listed)


def _of_iota(iota: hlo_pb2.IotaReplicaGroupList) -> Groups:
  sizes = tuple(iota.iota_reshape_dims)
  order = tuple(iota.iota_transpose_perm) or tuple(range(len(sizes)))
  numbers = np.arange(math.prod(sizes)).reshape(sizes).transpose(order)
  return _as_groups(numbers.reshape(-1, iota.num_devices_per_group))


def _of_mesh(axes: hlo_pb2.MeshAxesReplicaGroupList) -> Groups:
  mesh = axes.mesh
  sizes = [axis.size for axis in mesh.axes]
  numbers = np.arange(math.prod(sizes))
  if mesh.device_ids:
    numbers = np.array(mesh.device_ids)
  # Every axis is cut where a reference to a part of it begins or ends.
  pieces = [_pieces(n, size, axes.axes) for n, size in enumerate(sizes)]
  cut = [(n, before, size) for n, p in enumerate(pieces) for before, size in p]
  inside = [
    number
    for reference in axes.axes
    for number, piece in enumerate(cut)
    if _holds(reference, sizes, piece)
  ]
  outside = [n for n in range(len(cut)) if n not in inside]
  shaped = numbers.reshape([size for _, _, size in cut])
  together = math.prod(cut[n][2] for n in inside)
  return _as_groups(shaped.transpose(outside + inside).reshape(-1, together))


def _pieces(
  axis: int, size: int, references: Iterable[hlo_pb2.AxisRef]
) -> list[tuple[int, int]]:
  """Cuts an axis; returns what lies before each piece, and its size."""
  cuts = {1, size}
  for reference in references:
    part = reference.sub_axis_info
    is_part = reference.HasField("sub_axis_info")
    if is_part and reference.mesh_axis_index == axis:
      cuts |= {part.pre_size, part.pre_size * part.size}
  pairs = itertools.pairwise(sorted(cuts))
  return [(low, high // low) for low, high in pairs] or [(1, 1)]


def _holds(
  reference: hlo_pb2.AxisRef,
  sizes: Sequence[int],
  piece: tuple[int, int, int],
) -> bool:
  """Whether a reference to an axis, or a part of one, holds a piece of it."""
  axis, before, size = piece
  if axis != reference.mesh_axis_index:
    return False
  low, high = 1, sizes[axis]
  if reference.HasField("sub_axis_info"):
    low = reference.sub_axis_info.pre_size
    high = low * reference.sub_axis_info.size
  return low <= before and before * size <= high


def _as_groups(numbers: np.ndarray) -> Groups:
  return tuple(tuple(row) for row in numbers.tolist())
