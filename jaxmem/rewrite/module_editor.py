"""A module under edit: fresh ids and names, copies of computations."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem_hlo.module import Module, list_in_post_order
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.graph import reachable

_LOCAL_BITS = 32
_LOCAL_MASK = (1 << _LOCAL_BITS) - 1


class ModuleEditor:
  """Collects what an edited module gets besides its new entry.

  Args:
    module: The module to edit; it is not changed.
  """

  def __init__(self, module: Module):
    self._module = module
    self._names = set(module.names)
    self._counts: dict[str, int] = {}
    self._next_local = 1 + max(
      i.id & _LOCAL_MASK for i in module.entry.instructions
    )
    self._next_computation = 1 + max(c.id for c in module.computations)
    self._added: list[hlo_pb2.Computation] = []
    self._sequences: dict[int, list[int]] = {}

  def fresh_name(self, base: str) -> str:
    """Returns a name that nothing in the module has."""
    while True:
      count = self._counts.get(base, 0) + 1
      self._counts[base] = count
      name = base if count == 1 else f"{base}.{count}"
      if name not in self._names:
        self._names.add(name)
        return name

  def fresh_id(self) -> int:
    """Returns the id of a new instruction of the entry."""
    self._next_local += 1
    return self._module.entry.id << _LOCAL_BITS | (self._next_local - 1)

  def add_computation(self, source: hlo_pb2.Computation, suffix: str) -> int:
    """Adds a copy of a computation, and of all that it calls.

    Args:
      source: What to copy; may be a part of a computation of the module, with
        its ids.
      suffix: Appended to the names.

    Returns:
      The id of the copy.
    """
    copy = hlo_pb2.Computation()
    copy.CopyFrom(source)
    copy.id = self._next_computation
    self._next_computation += 1
    copy.name = self.fresh_name(f"{source.name}.{suffix}")
    moved = {
      i.id: copy.id << _LOCAL_BITS | (i.id & _LOCAL_MASK)
      for i in copy.instructions
    }
    copy.root_id = moved[copy.root_id]
    for proto in copy.instructions:
      proto.name = self.fresh_name(f"{proto.name}.{suffix}")
      proto.id = moved[proto.id]
      proto.operand_ids[:] = [moved[o] for o in proto.operand_ids]
      proto.control_predecessor_ids[:] = [
        moved[o] for o in proto.control_predecessor_ids
      ]
      proto.called_computation_ids[:] = [
        self.add_computation(self._module.by_id[c].proto, suffix)
        for c in proto.called_computation_ids
      ]
    if self._module.is_scheduled(source.id):
      sequence = self._module.schedule(source.id)
      self._sequences[copy.id] = [moved[i.id] for i in sequence]
    self._added.append(copy)
    return copy.id

  def finish(self, entry: Sequence[hlo_pb2.Instruction]) -> Module:
    """Returns the edited module.

    Args:
      entry: All instructions of the entry in execution order; its root is
        among them.
    """
    edited = self._edited_entry(entry)
    callees = {c.id: c.callees for c in self._module.computations}
    before = reachable([edited.id], callees.__getitem__) | {
      c.id for c in self._added
    }
    callees.update((c.id, _callees(c)) for c in (*self._added, edited))
    gone = before - reachable([edited.id], callees.__getitem__)
    kept = [c.proto for c in self._module.computations if c.id != edited.id]
    kept += [*self._added, edited]
    module = self._module.with_computations(c for c in kept if c.id not in gone)
    for computation_id, ids in self._sequences.items():
      if computation_id not in gone:
        module.set_schedule(computation_id, ids)
    module.set_schedule(edited.id, [i.id for i in entry])
    return module

  def _edited_entry(
    self, instructions: Sequence[hlo_pb2.Instruction]
  ) -> hlo_pb2.Computation:
    entry = hlo_pb2.Computation()
    entry.CopyFrom(self._module.entry.proto)
    by_id = {i.id: i for i in instructions}
    known = [i.id for i in self._module.entry.instructions if i.id in by_id]
    added = [i for i in by_id if i not in self._module.entry.by_id]
    del entry.instructions[:]
    entry.instructions.extend(by_id[i] for i in (*known, *added))
    list_in_post_order(entry)
    return entry


def _callees(computation: hlo_pb2.Computation) -> frozenset[int]:
  called = (i.called_computation_ids for i in computation.instructions)
  return frozenset[int]().union(*called)
