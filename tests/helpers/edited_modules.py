"""Small modules to edit, and what to ask of edited ones."""

import tiny_hlo
from jaxmem_hlo import replay
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import schedule
from jaxmem_hlo.module import Module
from tiny_hlo import f32, named, tuple_of

from jaxmem.rewrite.edits import Edits, Recompute, Value


def value_of(module, name, output=None):
  return Value(instruction=named(module, name).id, output=output)


def edits_of(module, *recomputes):
  """From (name of the instruction, name of the one before which) pairs."""
  made = []
  for what, before in recomputes:
    name, _, output = what.partition("@")
    value = value_of(module, name, int(output) if output else None)
    made.append(Recompute(value=value, before=named(module, before).id))
  return Edits(recomputes=tuple(made))


def names_of(module):
  return [i.name for i in module.schedule(module.entry.id)]


def operands_of(module, name):
  instruction = named(module, name)
  return [module.instruction(o).name for o in instruction.operands]


def check(test, module, platform="cpu"):
  """Checks that a module is consistent and a replay finds no fault."""
  ids = [i.id for c in module.computations for i in c.instructions]
  names = [i.name for c in module.computations for i in c.instructions]
  test.assertLen(set(ids), len(ids))
  test.assertLen(set(names), len(names))
  again = Module.from_bytes(module.to_bytes())
  for computation in again.computations:
    for instruction in computation.instructions:
      test.assertEqual(instruction.id >> 32, computation.id)
    if not computation.is_fusion:
      ids = [i.id for i in again.schedule(computation.id)]
      schedule.check_schedule(computation, ids)
    program = computation.proto.program_shape
    if program.parameters:
      parameters = [p.shape for p in computation.parameters]
      test.assertEqual(list(program.parameters), parameters)
      test.assertEqual(program.result, computation.root.shape)
  assignment = AssignmentModel(again, platform).assign()
  report = replay.check_assignment(again, assignment.to_proto(), platform)
  test.assertEqual(report.faults, ())
  return assignment.temp_bytes


def chain():
  """x -> a -> b -> c, and the result of c and a."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(16), name="x")
  a = main.op("dot", f32(16), x, name="a", metadata={"op_name": "jit(f)/a"})
  b = main.op("dot", f32(64), a, name="b")
  c = main.op("dot", f32(16), b, name="c")
  main.op("dot", f32(1), c, a, name="d")
  return builder.module(main)


def two_outputs(kind="kLoop", **fields):
  """A fusion: output 0 of x and y, output 1 of y alone, both read twice."""
  builder = tiny_hlo.Builder()
  adder = builder.computation("adder")
  left, right = (adder.parameter(f32()) for _ in range(2))
  adder.op("add", f32(), left, right, name="sum")
  body = builder.fusion("body")
  p, q = (body.parameter(f32(16), name=n) for n in "pq")
  zero = body.op("constant", f32(), name="zero")
  product = body.op("multiply", f32(16), p, q, name="product")
  total = body.op("reduce", f32(), q, zero, calls=(adder,), name="total")
  wide = body.op("broadcast", f32(16), total, name="wide")
  body.tuple(product, wide, name="both")
  body.proto.program_shape.parameters.extend([f32(16), f32(16)])
  body.proto.program_shape.parameter_names.extend(["p", "q"])
  body.proto.program_shape.result.CopyFrom(tuple_of(f32(16), f32(16)))
  main = builder.computation("main")
  x, y = (main.parameter(f32(16), name=n) for n in "xy")
  shape = tuple_of(f32(16), f32(16))
  both = main.op(
    "fusion", shape, x, y, name="f", fusion_kind=kind, calls=(body,), **fields
  )
  g0, g1 = (main.element(both, k, name=f"g{k}") for k in (0, 1))
  a = main.op("dot", f32(16), g0, g1, name="a")
  b = main.op("dot", f32(16), a, name="b")
  c = main.op("dot", f32(16), b, g1, name="c")
  main.op("dot", f32(1), c, g0, name="d")
  return builder.module(main)
