"""Tests of jaxmem_hlo.replay on compiled steps.

XLA's own assignment of XLA's own order is right; broken ones are named.
"""

import dataclasses
import functools
import glob
import itertools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from jaxmem_hlo import replay
from jaxmem_hlo.buffers.dataflow import Dataflow
from jaxmem_hlo.module import Instruction, Module
from jaxmem_hlo.proto import hlo_pb2
from jaxmem_hlo.replay.placed_values import FaultKind

from jaxmem import targets

# Small real steps.


def _f32(*shape):
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def _mlp(params, x, y):
  def loss(params):
    h = x
    for w, b in params:
      h = jnp.tanh(h @ w + b)
    return jnp.mean((h - y) ** 2)

  value, grads = jax.value_and_grad(loss)(params)
  return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def _scan(weights, x):
  def loss(weights):
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
    return jnp.sum(h**2)

  value, grads = jax.value_and_grad(loss)(weights)
  return weights - 0.1 * grads, value


def _nested_loops(x):
  def outer(i, x):
    return jax.lax.fori_loop(0, i, lambda j, y: jnp.sin(y @ y) + j, x) * 2

  return jax.lax.fori_loop(0, 3, outer, x)


def _swap(a, b):
  def body(carry):
    i, a, b = carry
    return i + 1, b, jnp.sin(a @ b)

  _, a2, b2 = jax.lax.while_loop(lambda c: c[0] < 5, body, (0, a, b))
  return a2 + a, b2


def _cond(w, x):
  def loss(w):
    h = jax.lax.cond(
      x.sum() > 0, lambda h: jnp.sin(h @ w), lambda h: jnp.cos(h) * 2, x
    )
    return jnp.sum(
      jax.lax.switch(
        x[0, 0].astype(int), [jnp.tanh, lambda h: h, lambda h: h @ w], h
      )
    )

  return w - jax.grad(loss)(w)


def _sort(keys, values):
  order = jnp.argsort(keys, axis=0)
  return jax.lax.sort((keys, values), num_keys=1), order, jnp.sort(values)


def _scatter(table, rows, indices):
  old = table[indices]
  return table.at[indices].add(rows), old, table.at[0].multiply(2.0)


def _update_slice(cache, row, position):
  before = cache.sum(axis=1)
  cache = jax.lax.dynamic_update_slice(cache, row, (position, 0))
  return cache, before


def _dropout(w, x, key):
  def loss(w):
    keep = jax.random.bernoulli(key, 0.9, x.shape)
    return jnp.sum(jnp.where(keep, x @ w, 0.0) ** 2)

  return w - jax.grad(loss)(w), jax.random.split(key)


def _checkpoint(params, x):
  @jax.checkpoint
  def block(h, w):
    return jnp.tanh(jax.nn.gelu(h @ w) @ w.T)

  def loss(params):
    h = x
    for w in params:
      h = block(h, w)
    return jnp.sum(h)

  grads = jax.grad(loss)(params)
  return jax.tree.map(lambda p, g: p - g, params, grads)


def _bf16(w, x):
  def loss(w):
    h = (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)
    return jnp.mean(h**2)

  return w - jax.grad(loss)(w)


@dataclasses.dataclass(frozen=True)
class _Step:
  function: Callable[..., Any]
  args: tuple[Any, ...]
  donate: tuple[int, ...] = ()


_PARAMS = [(_f32(32, 32), _f32(32))] * 3
_STEPS = {
  "mlp": _Step(_mlp, (_PARAMS, _f32(8, 32), _f32(8, 32)), (0,)),
  "mlp_kept": _Step(_mlp, (_PARAMS, _f32(8, 32), _f32(8, 32))),
  "scan": _Step(_scan, (_f32(4, 32, 32), _f32(8, 32)), (0,)),
  "scan_kept": _Step(_scan, (_f32(4, 32, 32), _f32(8, 32))),
  "nested_loops": _Step(_nested_loops, (_f32(16, 16),)),
  "swap": _Step(_swap, (_f32(16, 16), _f32(16, 16)), (0, 1)),
  "cond": _Step(_cond, (_f32(16, 16), _f32(16, 16)), (0,)),
  "sort": _Step(_sort, (_f32(64, 4), _f32(64, 4)), (0,)),
  "scatter": _Step(
    _scatter,
    (_f32(64, 8), _f32(5, 8), jax.ShapeDtypeStruct((5,), jnp.int32)),
    (0,),
  ),
  "update_slice": _Step(
    _update_slice,
    (_f32(64, 8), _f32(1, 8), jax.ShapeDtypeStruct((), jnp.int32)),
    (0,),
  ),
  "dropout": _Step(
    _dropout,
    (_f32(16, 16), _f32(8, 16), jax.ShapeDtypeStruct((2,), jnp.uint32)),
    (0,),
  ),
  "checkpoint": _Step(_checkpoint, ([_f32(16, 32)] * 3, _f32(8, 16)), (0,)),
  "bf16": _Step(_bf16, (_f32(32, 32), _f32(8, 32)), (0,)),
}


_needs_h200 = absltest.skipUnless(
  targets.is_available("h200"),
  "JAX's CUDA plugin is not installed: pip install jax-cuda13-plugin",
)


@functools.cache
def _compiled_bytes(name: str, target: str) -> bytes:
  step = _STEPS[name]
  jitted = jax.jit(step.function, donate_argnums=step.donate)
  lowered = targets.lower(jitted, step.args, target=target)
  with tempfile.TemporaryDirectory() as folder:
    options = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
    lowered.compile({**options, **targets.compile_options(target)})
    pattern = f"*jit_{step.function.__name__}*after_optimizations.hlo.pb"
    (path,) = glob.glob(f"{folder}/{pattern}")
    return pathlib.Path(path).read_bytes()


def _compiled(
  name: str, target: str = "cpu"
) -> tuple[Module, hlo_pb2.BufferAssignment]:
  proto = hlo_pb2.CompiledModule()
  proto.ParseFromString(_compiled_bytes(name, target))
  return Module(proto.hlo_module), proto.buffer_assignment


class XlaTest(parameterized.TestCase):
  """XLA's own assignment of XLA's own order is right."""

  @parameterized.parameters(*_STEPS)
  def test_cpu(self, name):
    report = replay.check_assignment(*_compiled(name), "cpu")
    self.assertEqual(report.faults, ())
    self.assertEmpty(report.faults)
    self.assertGreater(report.num_reads, 3)
    self.assertGreater(report.num_writes, 3)
    report.raise_if_faulty()

  @parameterized.parameters("mlp", "scan", "swap", "cond", "scatter", "sort")
  @_needs_h200
  def test_h200(self, name):
    report = replay.check_assignment(*_compiled(name, "h200"), "cuda")
    self.assertEqual(report.faults, ())
    self.assertGreater(report.num_reads, 3)


# Ways to break a real one.


def _parts(
  assignment: hlo_pb2.BufferAssignment, module: Module, name: str
) -> list[tuple[hlo_pb2.BufferAllocation, hlo_pb2.AssignedBuffer]]:
  """Returns the allocations and parts of an instruction's values."""
  defined = {
    b.id: module.instruction(b.defined_at.instruction_id).name
    for b in assignment.logical_buffers
  }
  return [
    (allocation, part)
    for allocation in assignment.allocations
    for part in allocation.assigned
    if defined[part.logical_buffer_id] == name
  ]


def _descendants(module: Module, start: Instruction) -> set[int]:
  found = {start.id}
  for instruction in module.entry.instructions:
    needed = (*instruction.operands, *instruction.control_predecessors)
    if found.intersection(needed):
      found.add(instruction.id)
  return found


def _late_reader(
  module: Module,
) -> tuple[Instruction, Instruction, list[int]]:
  """Returns (reader of a donated parameter, its writer, an order to blame)."""
  flow = Dataflow(module)
  root = module.entry.root
  for (number, index), output in module.donations.items():
    old = flow.trees[module.entry.parameters[number].id][index]
    writer = flow.trees[root.id][output].instruction
    for use in old.uses:
      reader = use.instruction
      late = _descendants(module, reader)
      if reader.opcode == "bitcast" or writer.id in late:
        continue
      order = [i.id for i in module.schedule(module.entry.id)]
      first = [i for i in order if i not in late]
      return reader, writer, first + [i for i in order if i in late]
  raise AssertionError("every reader precedes its writer")


class MutationTest(parameterized.TestCase):
  """Broken schedules and assignments of real steps are named."""

  def assert_fault(self, faults, kind, *words):
    messages = [f.message for f in faults if f.kind == kind]
    self.assertTrue(
      any(all(word in m for word in words) for m in messages),
      f"no {kind} fault names {words}: {faults}",
    )

  @parameterized.parameters("mlp", "scan", "cond")
  def test_late_operand(self, name):
    module, assignment = _compiled(name)
    order = [i.id for i in module.schedule(module.entry.id)]
    for at, (first, second) in enumerate(itertools.pairwise(order)):
      if first in module.instruction(second).operands:
        order[at], order[at + 1] = second, first
        break
    module = module.with_schedules({module.entry.id: order})
    report = replay.check_assignment(module, assignment, "cpu")
    names = [module.instruction(i).name for i in (first, second)]
    self.assert_fault(report.faults, FaultKind.ORDER, *names)
    self.assertEqual((report.num_reads, report.num_writes), (0, 0))
    with self.assertRaisesRegex(replay.FaultyAssignmentError, "order: "):
      report.raise_if_faulty()

  def test_repeated_and_missing_instruction(self):
    module, assignment = _compiled("mlp")
    order = [i.id for i in module.schedule(module.entry.id)]
    gone, order[-2] = order[-2], order[0]
    module = module.with_schedules({module.entry.id: order})
    faults = replay.check_assignment(module, assignment, "cpu").faults
    again = module.instruction(order[0]).name
    self.assert_fault(faults, "order", again, "again at step")
    missing = module.instruction(gone).name
    self.assert_fault(faults, "order", f"{missing} is not in the schedule")

  @_needs_h200
  def test_late_read_of_donated_parameter(self):
    # On CPU, XLA keeps such readers apart from the writer by copies.
    module, assignment = _compiled("mlp", "h200")
    reader, writer, order = _late_reader(module)
    module = module.with_schedules({module.entry.id: order})
    faults = replay.check_assignment(module, assignment, "cuda").faults
    words = (reader.name, writer.name, "the parameter is donated")
    self.assert_fault(faults, FaultKind.LATE_READ, *words)

  def test_buffer_moved_over_a_live_one(self):
    module, assignment = _compiled("mlp")
    flow = Dataflow(module)
    schedule = module.schedule(module.entry.id)
    steps = {i.id: step for step, i in enumerate(schedule)}
    for value in flow.values:
      if value.is_tuple_table or value.instruction.opcode == "parameter":
        continue
      start = steps[value.instruction.id]
      end = max((steps[u.instruction.id] for u in value.uses), default=start)
      ((home, kept),) = _parts(assignment, module, value.instruction.name)
      for other in schedule[start + 1 : end]:
        parts = _parts(assignment, module, other.name)
        if parts and parts[0][0] is home:
          ((_, moved),) = parts
          moved.offset = kept.offset
          faults = replay.check_assignment(module, assignment, "cpu").faults
          words = (value.instruction.name, other.name, "step ", "bytes [")
          self.assert_fault(faults, FaultKind.OVERWRITTEN, *words)
          return
    self.fail("no two temporaries are live together")

  def test_written_parameter_is_not_donated(self):
    module, assignment = _compiled("mlp")
    module.proto.ClearField("input_output_alias")
    faults = replay.check_assignment(
      Module(module.proto), assignment, "cpu"
    ).faults
    self.assert_fault(faults, FaultKind.READ_ONLY, "must keep its contents")
    self.assert_fault(faults, FaultKind.DONATION, "was not donated for it")

  def test_donated_output_moved(self):
    module, assignment = _compiled("mlp")
    root = module.entry.root
    output = next(iter(module.donations.values()))
    writer = Dataflow(module).trees[root.id][output].instruction
    ((home, part),) = _parts(assignment, module, writer.name)
    other = next(a for a in assignment.allocations if a.index != home.index)
    other.assigned.add().CopyFrom(part)
    home.assigned.remove(part)
    faults = replay.check_assignment(module, assignment, "cpu").faults
    self.assert_fault(faults, FaultKind.DONATION, "was donated for it")

  def test_kept_output_moved(self):
    module, assignment = _compiled("mlp_kept")
    root = module.entry.root
    name = Dataflow(module).trees[root.id][(1,)].instruction.name
    ((home, part),) = _parts(assignment, module, name)
    home.size += 64
    part.offset = 64
    faults = replay.check_assignment(module, assignment, "cpu").faults
    self.assert_fault(faults, FaultKind.OUTPUT, "the caller receives")

  @parameterized.parameters("scan", "swap", "nested_loops")
  def test_carry_moved(self, name):
    module, assignment = _compiled(name)
    loop = next(
      i
      for c in module.computations
      for i in c.instructions
      if i.opcode == "while"
    )
    value = next(
      v
      for index, v in Dataflow(module).trees[loop.id].items()
      if index and v.instruction is loop and v.size_bytes > 4
    )
    buffers = {
      b.id
      for b in assignment.logical_buffers
      if b.defined_at.instruction_id == loop.id
      and tuple(b.defined_at.shape_index) == value.position.index
    }
    for allocation in assignment.allocations:
      for part in allocation.assigned:
        if part.logical_buffer_id in buffers:
          part.offset += 64
    faults = replay.check_assignment(module, assignment, "cpu").faults
    self.assert_fault(faults, FaultKind.CARRY, loop.name)

  def test_sizes(self):
    module, assignment = _compiled("mlp")
    temp = next(a for a in assignment.allocations if len(a.assigned) > 2)
    temp.assigned[0].size -= 4
    faults = replay.check_assignment(module, assignment, "cpu").faults
    self.assert_fault(faults, FaultKind.SIZE, "sets aside")
    module, assignment = _compiled("mlp")
    temp = next(a for a in assignment.allocations if len(a.assigned) > 2)
    temp.size //= 2
    faults = replay.check_assignment(module, assignment, "cpu").faults
    self.assert_fault(faults, FaultKind.SIZE, f"which has {temp.size} bytes")

  def test_no_place(self):
    module, assignment = _compiled("mlp")
    temp = next(a for a in assignment.allocations if len(a.assigned) > 2)
    del temp.assigned[0]
    faults = replay.check_assignment(module, assignment, "cpu").faults
    self.assert_fault(faults, FaultKind.UNASSIGNED, "one place, got none")


if __name__ == "__main__":
  absltest.main()
