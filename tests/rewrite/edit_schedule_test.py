"""Tests of jaxmem.rewrite.recompute: second runs in scheduled modules."""

import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from edited_modules import (
  chain,
  check,
  edits_of,
  names_of,
  operands_of,
  two_outputs,
)
from jaxmem_hlo.module.post_order import instruction_post_order
from tiny_hlo import f32, named, tuple_of

from jaxmem.rewrite import RecomputeError, apply_edits
from jaxmem.rewrite.edits import Edits
from jaxmem.rewrite.fusion_parts import needed_operands


class RunAgainTest(parameterized.TestCase):
  def test_a_later_use_reads_the_clone(self):
    module = chain()
    edited = apply_edits(module, edits_of(module, ("a", "d")))
    self.assertEqual(names_of(edited), ["x", "a", "b", "c", "a.recompute", "d"])
    self.assertEqual(operands_of(edited, "a.recompute"), ["x"])
    self.assertEqual(operands_of(edited, "b"), ["a"])
    self.assertEqual(operands_of(edited, "d"), ["c", "a.recompute"])
    clone = named(edited, "a.recompute").proto
    self.assertEqual(clone.metadata.op_name, "jit(f)/a/recompute")
    self.assertEqual(names_of(module), ["x", "a", "b", "c", "d"])
    # Peak while c runs: b and c; a is not kept over it. Each is aligned to 64
    # bytes: a and b need 64 + 256, b and c as much, with a kept 64 more.
    self.assertEqual(check(self, module), 64 + 256 + 64)
    self.assertEqual(check(self, edited), 64 + 256)

  def test_what_nobody_reads_is_not_made(self):
    module = chain()
    edited = apply_edits(module, edits_of(module, ("b", "d"), ("c", "d")))
    # c's only use reads its clone, hence b's clone: the originals are gone.
    self.assertEqual(
      names_of(edited),
      ["x", "a", "b.recompute", "c.recompute", "d"],
    )
    edited = apply_edits(module, edits_of(module, ("b", "d")))
    self.assertEqual(names_of(edited), names_of(module))
    check(self, edited)

  def test_clones_read_the_latest_producer(self):
    module = chain()
    edited = apply_edits(
      module,
      edits_of(module, ("a", "c"), ("b", "d"), ("a", "d"), ("c", "d")),
    )
    self.assertEqual(
      names_of(edited),
      [
        "x",
        "a.recompute",
        "b.recompute",
        "a.recompute.2",
        "c.recompute",
        "d",
      ],
    )
    self.assertEqual(operands_of(edited, "b.recompute"), ["a.recompute"])
    self.assertEqual(operands_of(edited, "d"), ["c.recompute", "a.recompute.2"])

  def test_bitcasts_of_the_value_follow(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(16), name="x")
    a = main.op("dot", f32(16), x, name="a")
    flat = main.op("bitcast", f32(4, 4), a, name="flat")
    b = main.op("dot", f32(16), flat, name="b")
    c = main.op("dot", f32(16), b, name="c")
    again = main.op("bitcast", f32(2, 8), flat, name="again")
    main.op("dot", f32(1), c, flat, again, a, again, name="d")
    module = builder.module(main)
    edited = apply_edits(module, edits_of(module, ("a", "d")))
    read = operands_of(edited, "d")
    self.assertEqual(
      read,
      [
        "c",
        "flat.recompute",
        "again.recompute",
        "a.recompute",
        "again.recompute",
      ],
    )
    self.assertNotIn("again", names_of(edited))
    for name, shape in (("flat", f32(4, 4)), ("again", f32(2, 8))):
      copy = named(edited, f"{name}.recompute")
      self.assertEqual(copy.opcode, "bitcast")
      self.assertEqual(copy.shape, shape)
      self.assertEqual(operands_of(edited, copy.name), ["a.recompute"])
    check(self, edited)

  def test_a_loop_starts_from_the_clone(self):
    builder = tiny_hlo.Builder()
    carried = tuple_of(f32(8))
    condition = builder.computation("condition")
    condition.op("compare", tiny_hlo.pred(), condition.parameter(carried))
    body = builder.computation("body")
    old = body.element(body.parameter(carried), 0)
    body.tuple(body.op("tanh", f32(8), old))
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    made = main.op("dot", f32(8), x, name="made")
    start = main.tuple(made, name="start")
    read = main.op("dot", f32(4), x, name="read")
    main.op("while", carried, start, calls=(body, condition), name="loop")
    loop = main.proto.root_id
    main.op("dot", f32(4), main.element(loop, 0), read, name="last")
    module = builder.module(main)
    edited = apply_edits(module, edits_of(module, ("made", "loop")))
    self.assertEqual(
      names_of(edited)[:5],
      ["x", "read", "made.recompute", "start.recompute", "loop"],
    )
    self.assertEqual(operands_of(edited, "loop"), ["start.recompute"])
    self.assertEqual(operands_of(edited, "start.recompute"), ["made.recompute"])
    check(self, edited)

  def test_control_dependencies_stay(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(16), name="x")
    a = main.op("dot", f32(16), x, name="a")
    b = main.op("dot", f32(16), x, name="b", after=(a,))
    main.op("dot", f32(1), b, a, name="c")
    module = builder.module(main)
    edited = apply_edits(module, edits_of(module, ("a", "c")))
    self.assertEqual(names_of(edited), ["x", "a", "b", "a.recompute", "c"])
    self.assertEqual(
      named(edited, "b").control_predecessors, (named(edited, "a").id,)
    )

  def test_runs_before_the_value_is_there(self):
    module = chain()
    for before in ("a", "x"):
      with self.assertRaisesRegex(RecomputeError, "before the value is there"):
        apply_edits(module, edits_of(module, ("a", before)))

  def test_no_edits(self):
    module = chain()
    self.assertEqual(apply_edits(module, Edits()).to_bytes(), module.to_bytes())


class FusionTest(parameterized.TestCase):
  def test_a_clone_makes_one_output(self):
    module = two_outputs()
    edited = apply_edits(module, edits_of(module, ("f@1", "c"), ("f@0", "d")))
    check(self, edited)
    names = ["x", "y", "f", "g0", "g1", "a", "b", "f.recompute", "c"]
    self.assertEqual(names_of(edited), [*names, "f.recompute.2", "d"])
    # The second output needs only y: its body has one parameter.
    self.assertEqual(operands_of(edited, "f.recompute"), ["y"])
    self.assertEqual(operands_of(edited, "c"), ["b", "f.recompute"])
    self.assertEqual(operands_of(edited, "d"), ["c", "f.recompute.2"])
    clone = named(edited, "f.recompute")
    self.assertEqual(clone.shape, f32(16))
    body = edited.by_id[clone.callees[0]]
    self.assertEqual(body.root.opcode, "broadcast")
    self.assertEqual(
      [i.opcode for i in body.instructions],
      ["parameter", "constant", "reduce", "broadcast"],
    )
    self.assertEqual(list(body.proto.program_shape.parameter_names), ["q"])
    # The reduction's computation is a copy, too, and is scheduled.
    reduce = body.instructions[2]
    adder = edited.by_id[reduce.callees[0]]
    self.assertNotEqual(adder.name, "adder")
    self.assertLen(edited.schedule(adder.id), 3)
    other = named(edited, "f.recompute.2")
    self.assertEqual(operands_of(edited, other.name), ["x", "y"])

  def test_the_original_loses_an_output(self):
    module = two_outputs()
    edited = apply_edits(module, edits_of(module, ("f@1", "a"), ("f@1", "c")))
    check(self, edited)
    # Nobody reads the original's second output: it makes only the first.
    fusion = named(edited, "f")
    self.assertEqual(fusion.shape, f32(16))
    self.assertEqual(operands_of(edited, "a"), ["f", "f.recompute"])
    self.assertEqual(operands_of(edited, "d"), ["c", "f"])
    self.assertNotIn("g0", names_of(edited))
    body = edited.by_id[fusion.callees[0]]
    self.assertEqual(body.root.opcode, "multiply")
    self.assertNotIn("body", [c.name for c in edited.computations])
    self.assertNotIn("adder", [c.name for c in edited.computations])

  def test_the_original_goes(self):
    module = two_outputs()
    edited = apply_edits(module, edits_of(module, ("f@1", "a"), ("f@0", "a")))
    self.assertEqual(
      names_of(edited),
      ["x", "y", "f.recompute", "f.recompute.2", "a", "b", "c", "d"],
    )
    check(self, edited)

  def test_three_outputs_become_two(self):
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    p = body.parameter(f32(16), name="p")
    outputs = [
      body.op("multiply", f32(16), p, p, name=f"o{k}") for k in range(3)
    ]
    body.tuple(*outputs, name="all")
    main = builder.computation("main")
    x = main.parameter(f32(16), name="x")
    f = main.op(
      "fusion",
      tuple_of(*[f32(16)] * 3),
      x,
      name="f",
      fusion_kind="kLoop",
      calls=(body,),
    )
    g = [main.element(f, k, name=f"g{k}") for k in range(3)]
    a = main.op("dot", f32(16), g[0], g[2], name="a")
    main.op("dot", f32(1), a, g[1], name="b")
    module = builder.module(main)
    edited = apply_edits(module, edits_of(module, ("f@1", "b")))
    check(self, edited)
    self.assertEqual(named(edited, "f").shape, tuple_of(f32(16), f32(16)))
    self.assertEqual(named(edited, "g2").proto.tuple_index, 1)
    root = edited.by_id[named(edited, "f").callees[0]].root
    self.assertLen(root.operands, 2)
    self.assertEqual(operands_of(edited, "b"), ["a", "f.recompute"])

  @parameterized.parameters(
    dict(kind="kCustom"),
    dict(kind="kLoop", backend_config=b'{"tiles":[1]}'),
    dict(kind="kLoop", sharding=b"x"),
  )
  def test_what_is_not_understood_stays_whole(self, **fields):
    module = two_outputs(**fields)
    edits = edits_of(module, ("f@1", "a"), ("f@0", "a"), ("f@1", "c"))
    edited = apply_edits(module, edits)
    check(self, edited)
    # One clone serves both values that are made before a.
    clone = named(edited, "f.recompute")
    self.assertEqual(clone.shape, named(module, "f").shape)
    self.assertEqual(operands_of(edited, "f.recompute"), ["x", "y"])
    read = [named(edited, n) for n in operands_of(edited, "a")]
    self.assertEqual([r.opcode for r in read], ["get-tuple-element"] * 2)
    self.assertEqual([r.proto.tuple_index for r in read], [0, 1])
    self.assertEqual({r.operands for r in read}, {(clone.id,)})
    self.assertEqual(
      operands_of(edited, operands_of(edited, "c")[1]),
      ["f.recompute.2"],
    )

  def test_needed_operands(self):
    module = two_outputs()
    fusion = named(module, "f")
    self.assertEqual(needed_operands(module, fusion, (0,)), (0, 1))
    self.assertEqual(needed_operands(module, fusion, (1,)), (1,))


class PostOrderTest(parameterized.TestCase):
  @parameterized.parameters("mlp_cpu", "scan_cpu", "mlp_h200", "scan_h200")
  def test_modules_are_listed_in_it(self, name):
    for computation in record_modules.load(name).module.computations:
      self.assertEqual(
        instruction_post_order(computation.proto.instructions),
        [i.id for i in computation.instructions],
      )

  def test_control_dependencies_come_first(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    a, b, c, d = (main.parameter(f32(4), name=n) for n in "abcd")
    main.op("dot", f32(4), b, a, after=(d, c), name="e")
    module = builder.module(main)
    # The last control dependency first, then the operands from the first on.
    order = instruction_post_order(module.entry.proto.instructions)
    names = [module.instruction(i).name for i in order]
    self.assertEqual(names, ["c", "d", "b", "a", "e"])

  def test_a_cycle(self):
    module = chain()
    named(module, "a").proto.operand_ids[:] = [named(module, "b").id]
    with self.assertRaisesRegex(ValueError, "needs itself"):
      instruction_post_order(module.entry.proto.instructions)


if __name__ == "__main__":
  absltest.main()
