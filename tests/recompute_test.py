"""Tests of jaxmem.rewrite.recompute: second runs in scheduled modules."""

import importlib
import re
from typing import Any
from unittest import mock

import edited_steps
import jax
import jax.numpy as jnp
import numpy as np
import record_modules
import small_steps
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo import replay, schedule
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module
from jaxmem_hlo.post_order import instruction_post_order
from jaxmem_hlo.replay_layout import FaultKind
from tiny_hlo import f32, named, tuple_of

from benchmarks import zoo
from jaxmem import Options, extract, module_plan, validate
from jaxmem.budget.edits import Edits, Recompute, Value
from jaxmem.rewrite import RecomputeError, apply_edits, recomputable, recompute
from jaxmem.rewrite.recompute_fusions import needed_operands

_NUM_STEPS = 3


def _value(module, name, output=None):
  return Value(instruction=named(module, name).id, output=output)


def _edits(module, *recomputes):
  """From (name of the instruction, name of the one before which) pairs."""
  made = []
  for what, before in recomputes:
    name, _, output = what.partition("@")
    value = _value(module, name, int(output) if output else None)
    made.append(Recompute(value=value, before=named(module, before).id))
  return Edits(recomputes=tuple(made))


def _names(module):
  return [i.name for i in module.schedule(module.entry.id)]


def _operands(module, name):
  instruction = named(module, name)
  return [module.instruction(o).name for o in instruction.operands]


def _check(test, module, platform="cpu"):
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


def _chain():
  """x -> a -> b -> c, and the result of c and a."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(16), name="x")
  a = main.op("dot", f32(16), x, name="a", metadata={"op_name": "jit(f)/a"})
  b = main.op("dot", f32(64), a, name="b")
  c = main.op("dot", f32(16), b, name="c")
  main.op("dot", f32(1), c, a, name="d")
  return builder.module(main)


class RunAgainTest(parameterized.TestCase):
  def test_a_later_use_reads_the_clone(self):
    module = _chain()
    edited = apply_edits(module, _edits(module, ("a", "d")))
    self.assertEqual(_names(edited), ["x", "a", "b", "c", "a.recompute", "d"])
    self.assertEqual(_operands(edited, "a.recompute"), ["x"])
    self.assertEqual(_operands(edited, "b"), ["a"])
    self.assertEqual(_operands(edited, "d"), ["c", "a.recompute"])
    clone = named(edited, "a.recompute").proto
    self.assertEqual(clone.metadata.op_name, "jit(f)/a/recompute")
    self.assertEqual(_names(module), ["x", "a", "b", "c", "d"])
    # Peak while c runs: b and c; a is not kept over it. Each is aligned to 64
    # bytes: a and b need 64 + 256, b and c as much, with a kept 64 more.
    self.assertEqual(_check(self, module), 64 + 256 + 64)
    self.assertEqual(_check(self, edited), 64 + 256)

  def test_what_nobody_reads_is_not_made(self):
    module = _chain()
    edited = apply_edits(module, _edits(module, ("b", "d"), ("c", "d")))
    # c's only use reads its clone, hence b's clone: the originals are gone.
    self.assertEqual(
      _names(edited), ["x", "a", "b.recompute", "c.recompute", "d"]
    )
    edited = apply_edits(module, _edits(module, ("b", "d")))
    self.assertEqual(_names(edited), _names(module))
    _check(self, edited)

  def test_clones_read_the_latest_producer(self):
    module = _chain()
    edited = apply_edits(
      module, _edits(module, ("a", "c"), ("b", "d"), ("a", "d"), ("c", "d"))
    )
    self.assertEqual(
      _names(edited),
      [
        "x",
        "a.recompute",
        "b.recompute",
        "a.recompute.2",
        "c.recompute",
        "d",
      ],
    )
    self.assertEqual(_operands(edited, "b.recompute"), ["a.recompute"])
    self.assertEqual(_operands(edited, "d"), ["c.recompute", "a.recompute.2"])

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
    edited = apply_edits(module, _edits(module, ("a", "d")))
    read = _operands(edited, "d")
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
    self.assertNotIn("again", _names(edited))
    for name, shape in (("flat", f32(4, 4)), ("again", f32(2, 8))):
      copy = named(edited, f"{name}.recompute")
      self.assertEqual(copy.opcode, "bitcast")
      self.assertEqual(copy.shape, shape)
      self.assertEqual(_operands(edited, copy.name), ["a.recompute"])
    _check(self, edited)

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
    edited = apply_edits(module, _edits(module, ("made", "loop")))
    self.assertEqual(
      _names(edited)[:5],
      ["x", "read", "made.recompute", "start.recompute", "loop"],
    )
    self.assertEqual(_operands(edited, "loop"), ["start.recompute"])
    self.assertEqual(_operands(edited, "start.recompute"), ["made.recompute"])
    _check(self, edited)

  def test_control_dependencies_stay(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(16), name="x")
    a = main.op("dot", f32(16), x, name="a")
    b = main.op("dot", f32(16), x, name="b", after=(a,))
    main.op("dot", f32(1), b, a, name="c")
    module = builder.module(main)
    edited = apply_edits(module, _edits(module, ("a", "c")))
    self.assertEqual(_names(edited), ["x", "a", "b", "a.recompute", "c"])
    self.assertEqual(
      named(edited, "b").control_predecessors, (named(edited, "a").id,)
    )

  def test_runs_before_the_value_is_there(self):
    module = _chain()
    for before in ("a", "x"):
      with self.assertRaisesRegex(RecomputeError, "before the value is there"):
        apply_edits(module, _edits(module, ("a", before)))

  def test_no_edits(self):
    module = _chain()
    self.assertEqual(apply_edits(module, Edits()).to_bytes(), module.to_bytes())


def _two_outputs(kind="kLoop", **fields):
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


class FusionTest(parameterized.TestCase):
  def test_a_clone_makes_one_output(self):
    module = _two_outputs()
    edited = apply_edits(module, _edits(module, ("f@1", "c"), ("f@0", "d")))
    _check(self, edited)
    names = ["x", "y", "f", "g0", "g1", "a", "b", "f.recompute", "c"]
    self.assertEqual(_names(edited), [*names, "f.recompute.2", "d"])
    # The second output needs only y: its body has one parameter.
    self.assertEqual(_operands(edited, "f.recompute"), ["y"])
    self.assertEqual(_operands(edited, "c"), ["b", "f.recompute"])
    self.assertEqual(_operands(edited, "d"), ["c", "f.recompute.2"])
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
    self.assertEqual(_operands(edited, other.name), ["x", "y"])

  def test_the_original_loses_an_output(self):
    module = _two_outputs()
    edited = apply_edits(module, _edits(module, ("f@1", "a"), ("f@1", "c")))
    _check(self, edited)
    # Nobody reads the original's second output: it makes only the first.
    fusion = named(edited, "f")
    self.assertEqual(fusion.shape, f32(16))
    self.assertEqual(_operands(edited, "a"), ["f", "f.recompute"])
    self.assertEqual(_operands(edited, "d"), ["c", "f"])
    self.assertNotIn("g0", _names(edited))
    body = edited.by_id[fusion.callees[0]]
    self.assertEqual(body.root.opcode, "multiply")
    self.assertNotIn("body", [c.name for c in edited.computations])
    self.assertNotIn("adder", [c.name for c in edited.computations])

  def test_the_original_goes(self):
    module = _two_outputs()
    edited = apply_edits(module, _edits(module, ("f@1", "a"), ("f@0", "a")))
    self.assertEqual(
      _names(edited),
      ["x", "y", "f.recompute", "f.recompute.2", "a", "b", "c", "d"],
    )
    _check(self, edited)

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
    edited = apply_edits(module, _edits(module, ("f@1", "b")))
    _check(self, edited)
    self.assertEqual(named(edited, "f").shape, tuple_of(f32(16), f32(16)))
    self.assertEqual(named(edited, "g2").proto.tuple_index, 1)
    root = edited.by_id[named(edited, "f").callees[0]].root
    self.assertLen(root.operands, 2)
    self.assertEqual(_operands(edited, "b"), ["a", "f.recompute"])

  @parameterized.parameters(
    dict(kind="kCustom"),
    dict(kind="kLoop", backend_config=b'{"tiles":[1]}'),
    dict(kind="kLoop", sharding=b"x"),
  )
  def test_what_is_not_understood_stays_whole(self, **fields):
    module = _two_outputs(**fields)
    edits = _edits(module, ("f@1", "a"), ("f@0", "a"), ("f@1", "c"))
    edited = apply_edits(module, edits)
    _check(self, edited)
    # One clone serves both values that are made before a.
    clone = named(edited, "f.recompute")
    self.assertEqual(clone.shape, named(module, "f").shape)
    self.assertEqual(_operands(edited, "f.recompute"), ["x", "y"])
    read = [named(edited, n) for n in _operands(edited, "a")]
    self.assertEqual([r.opcode for r in read], ["get-tuple-element"] * 2)
    self.assertEqual([r.proto.tuple_index for r in read], [0, 1])
    self.assertEqual({r.operands for r in read}, {(clone.id,)})
    self.assertEqual(
      _operands(edited, _operands(edited, "c")[1]), ["f.recompute.2"]
    )

  def test_needed_operands(self):
    module = _two_outputs()
    fusion = named(module, "f")
    self.assertEqual(needed_operands(module, fusion, (0,)), (0, 1))
    self.assertEqual(needed_operands(module, fusion, (1,)), (1,))


class RulesTest(parameterized.TestCase):
  def _refusal(self, build):
    """Why the instruction "i", that `build(main, x, builder)` adds, may not."""
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(16), name="x")
    build(main, x, builder)
    found = named(Module(builder.module(main).proto), "i").id
    # Whatever it makes is not the result.
    main.op("dot", f32(1), x, name="last")
    module = builder.module(main)
    output = 0 if named(module, "i").shape.tuple_shapes else None
    rules = recomputable(module)
    value = Value(instruction=found, output=output)
    reason = rules.why_not(value)
    if reason:
      edits = Edits(
        recomputes=(Recompute(value=value, before=module.entry.root.id),)
      )
      with self.assertRaisesRegex(RecomputeError, re.escape(reason)):
        apply_edits(module, edits)
    return reason

  @parameterized.parameters(
    ("rng", "a rng has a state"),
    ("rng-bit-generator", "has a state"),
    ("rng-get-and-update-state", "has a state"),
    ("all-reduce", "others take part"),
    ("all-gather", "others take part"),
    ("collective-permute", "others take part"),
    ("scatter", "another order"),
    ("dynamic-update-slice", "in place"),
    ("bitcast", "computes nothing"),
    ("constant", "computes nothing"),
    ("dot", ""),
    ("copy", ""),
    ("reduce", ""),
    ("convolution", ""),
  )
  def test_opcodes(self, opcode, expected):
    reason = self._refusal(
      lambda main, x, _: main.op(opcode, f32(16), x, x, x, name="i")
    )
    self.assertRegex(reason, expected if expected else "^$")

  @parameterized.parameters(
    ("__cudnn$convForward", False, ""),
    ("__cublas$gemm", False, ""),
    ("__cublas$gemm", True, "side effect"),
    ("my_kernel", False, "'my_kernel' does is not known"),
  )
  def test_custom_calls(self, target, side_effect, expected):
    reason = self._refusal(
      lambda main, x, _: main.op(
        "custom-call",
        tuple_of(f32(16), f32(4)),
        x,
        name="i",
        custom_call_target=target,
        custom_call_has_side_effect=side_effect,
      )
    )
    self.assertRegex(reason, expected if expected else "^$")

  def test_a_custom_call_that_writes_its_operand(self):
    reason = self._refusal(
      lambda main, x, _: main.op(
        "custom-call",
        f32(16),
        main.op("dot", f32(16), x),
        name="i",
        custom_call_target="__cublas$gemm",
        aliasing=((0, (), ()),),
      )
    )
    self.assertRegex(reason, "in place")

  def test_a_token(self):
    reason = self._refusal(
      lambda main, x, _: main.op(
        "custom-call",
        tuple_of(f32(16), tiny_hlo.token()),
        x,
        name="i",
        custom_call_target="__cublas$gemm",
      )
    )
    self.assertRegex(reason, "token")

  @parameterized.parameters("rng", "scatter", "dynamic-update-slice")
  def test_inside_a_fusion(self, opcode):
    def build(main, x, builder):
      body = builder.fusion("body")
      p = body.parameter(f32(16))
      body.op(opcode, f32(16), p, p, p)
      main.op(
        "fusion", f32(16), x, calls=(body,), name="i", fusion_kind="kLoop"
      )

    self.assertNotEqual(self._refusal(build), "")

  def test_control_flow(self):
    def build(main, x, builder):
      callee = builder.computation("callee")
      callee.op("dot", f32(16), callee.parameter(f32(16)))
      main.op("call", f32(16), x, calls=(callee,), name="i")

    self.assertRegex(self._refusal(build), "another computation")

  def test_parameters_and_results(self):
    module = _chain()
    rules = recomputable(module)
    self.assertRegex(rules.why_not(_value(module, "x")), "computes nothing")
    self.assertRegex(rules.why_not(_value(module, "d")), "returns it")
    self.assertEqual(rules.why_not(_value(module, "a")), "")
    self.assertRegex(rules.why_not(_value(module, "a", 0)), "output must be")
    self.assertRegex(
      rules.why_not(Value(instruction=12345)), "no instruction of the entry"
    )
    two = _two_outputs()
    rules = recomputable(two)
    self.assertRegex(rules.why_not(_value(two, "f")), "output must be")
    self.assertRegex(rules.why_not(_value(two, "f", 2)), "has 2 outputs")


def _donated():
  """A donated x, read by a; `new` takes its memory; then `late` reads a."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(16), name="x")
  a = main.op("dot", f32(16), x, name="a")
  b = main.op("dot", f32(16), a, name="b")
  new = main.op("dot", f32(16), b, name="new")
  late = main.op("dot", f32(16), new, a, name="late")
  main.tuple(new, late, name="results")
  return builder.module(main, donations=[(0, (0,))])


def _updated():
  """A value that is updated in place: `old` is gone when `update` has run."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(16), name="x")
  at = main.parameter(tiny_hlo.s32(), name="at")
  old = main.op("dot", f32(16), x, name="old")
  a = main.op("dot", f32(4), old, name="a")
  update = main.op("dynamic-update-slice", f32(16), old, a, at, name="update")
  b = main.op("dot", f32(4), update, name="b")
  main.op("dot", f32(4), b, a, update, name="late")
  return builder.module(main)


class OverwrittenTest(parameterized.TestCase):
  """Values that something else was written over are not read any more."""

  @parameterized.parameters(
    (_donated, "a", "late", "x cannot be read by a second a before late: new"),
    (_updated, "a", "late", "old cannot be read by a second a before late"),
    (_updated, "a", "b", "update has already written over it in place"),
  )
  def test_refused_and_found_by_replay(self, build, name, before, message):
    module = build()
    edits = _edits(module, (name, before))
    with self.assertRaisesRegex(RecomputeError, message):
      apply_edits(module, edits)
    # Forced, the edit gives a program that reads what is not there any more.
    with mock.patch.object(recompute, "find_overwriters", return_value={}):
      forced = apply_edits(module, edits)
    assignment = AssignmentModel(forced, "cpu").assign()
    report = replay.check_assignment(forced, assignment.to_proto(), "cpu")
    self.assertContainsSubset(
      {f.kind for f in report.faults},
      {FaultKind.LATE_READ, FaultKind.OVERWRITTEN},
    )
    self.assertNotEmpty(report.faults)

  @parameterized.parameters(
    (_donated, "a", "new"), (_updated, "a", "update"), (_donated, "a", "b")
  )
  def test_just_before_is_in_time(self, build, name, before):
    module = build()
    _check(self, apply_edits(module, _edits(module, (name, before))))

  def test_a_clone_of_the_overwritten_value_serves(self):
    module = _updated()
    edited = apply_edits(module, _edits(module, ("old", "b"), ("a", "late")))
    _check(self, edited)
    self.assertEqual(_operands(edited, "a.recompute"), ["old.recompute"])

  def test_a_clone_that_was_updated_in_place_is_gone(self):
    module = _updated()
    # The update itself reads the clone, and writes over it.
    edits = _edits(module, ("old", "update"), ("a", "late"))
    with self.assertRaisesRegex(RecomputeError, "already written over"):
      apply_edits(module, edits)

  def test_rules_name_the_writers(self):
    module = _donated()
    rules = recomputable(module)
    self.assertEqual(
      rules.overwriters, {_value(module, "x"): named(module, "new").id}
    )
    module = _updated()
    rules = recomputable(module)
    self.assertEqual(
      rules.overwriters, {_value(module, "old"): named(module, "update").id}
    )


def _bits(tree):
  found = []
  for leaf in jax.tree.leaves(tree):
    array = np.asarray(leaf)
    found.append((array.dtype, array.shape, array.tobytes()))
  return found


def _dropout(impl):
  def step(params, x):
    key = jax.random.key(x[0, 0].astype(jnp.int32), impl=impl)

    def loss(params):
      hidden = x
      for i, weights in enumerate(params):
        hidden = jax.nn.gelu(hidden @ weights)
        keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape)
        hidden = jnp.where(keep, hidden / 0.9, 0)
      return jnp.mean(hidden**2)

    value, grads = jax.value_and_grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value

  return step, [small_steps.normal(i, 32, 32) * 0.2 for i in range(3)]


def _bfloat16(params, x):
  def loss(params):
    hidden = x.astype(jnp.bfloat16)
    for weights in params:
      hidden = jnp.tanh(jnp.sin(hidden) @ weights.astype(jnp.bfloat16))
    return jnp.mean(hidden.astype(jnp.float32) ** 2)

  value, grads = jax.value_and_grad(loss)(params)
  return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


def _branches_and_loops(params, x):
  def loss(params):
    hidden = x
    for weights in params:
      hidden = jax.lax.cond(
        hidden.sum() > 0,
        lambda h, w: jnp.sin(h @ w),
        lambda h, w: jnp.cos(h @ w),
        hidden,
        weights,
      )
      hidden, _ = jax.lax.scan(
        lambda h, _: (jnp.tanh(h) * 1.1, None), hidden, None, length=3
      )
    return jnp.sum(hidden.at[jnp.arange(5)].add(1.0) ** 2)

  value, grads = jax.value_and_grad(loss)(params)
  return [p - 0.01 * g for p, g in zip(params, grads, strict=True)], value


def _reads_after_donation(params, x):
  sine = jnp.sin(params)
  hidden = jnp.tanh(jnp.tanh(sine @ x.T) @ x)
  new = params * 2 + hidden
  return new, jnp.sum(sine * jnp.tanh(new @ x.T @ x))


_WEIGHTS = [small_steps.normal(i, 32, 32) * 0.2 for i in range(3)]
_INPUT = small_steps.normal(9, 32, 32)
_STEPS = {
  **small_steps.STEPS,
  "dropout_threefry": (*_dropout("threefry2x32"), _INPUT),
  "dropout_rbg": (*_dropout("rbg"), _INPUT),
  "bfloat16": (_bfloat16, _WEIGHTS, _INPUT),
  "branches_and_loops": (_branches_and_loops, _WEIGHTS, _INPUT),
  "reads_after_donation": (_reads_after_donation, _WEIGHTS[0], _INPUT),
}


class ParityTest(parameterized.TestCase):
  """Steps with random recomputes give the bits that they gave before."""

  def _run(self, compiled, state, *batch):
    state = jax.tree.map(lambda x: jnp.array(x, copy=True), state)
    seen = []
    for _ in range(_NUM_STEPS):
      *state, value = compiled(*state, *batch)
      seen.append(_bits((state, value)))
    return seen

  def _check_edited(self, edited):
    self.assertEqual(edited.faults, ())
    self.assertEqual(edited.temp_bytes, edited.predicted_bytes)
    # The edited module can be planned like any other.
    model = AssignmentModel(edited.after, "cpu")
    entry = extract.from_hlo(model, edited.after.entry)
    self.assertFalse(entry.is_repaired)
    validate.check_order(entry.graph, range(entry.graph.num_nodes))
    for computation in edited.after.computations:
      self.assertEqual(
        instruction_post_order(computation.proto.instructions),
        [i.id for i in computation.instructions],
      )

  @parameterized.parameters(*_STEPS)
  def test_small_steps(self, name):
    step, params, x = _STEPS[name]
    made = []
    edited = edited_steps.compile_edited(
      step,
      (params, x),
      edited_steps.edit_randomly(0, 16, made),
      donate_argnums=0,
    )
    self._check_edited(edited)
    self.assertNotEmpty(made[0].recomputes)
    plain = jax.jit(step, donate_argnums=0).lower(params, x).compile()
    self.assertEqual(
      self._run(edited.compiled, [params], x), self._run(plain, [params], x)
    )

  @parameterized.parameters("mlp", "conv", "reads_after_donation")
  def test_on_a_planned_order(self, name):
    # Copies of donated arguments may be gone there: readers of the argument
    # and the output in its place are closer than XLA would have them.
    step, params, x = _STEPS[name]
    random_edit = edited_steps.edit_randomly(0, 16)

    def edit(module, platform):
      plan = module_plan.plan_module(module, platform, Options())
      return random_edit(plan.apply(module), platform)

    edited = edited_steps.compile_edited(
      step, (params, x), edit, donate_argnums=0
    )
    self._check_edited(edited)
    plain = jax.jit(step, donate_argnums=0).lower(params, x).compile()
    self.assertEqual(
      self._run(edited.compiled, [params], x), self._run(plain, [params], x)
    )

  @parameterized.parameters("gpt2_small", "resnet50")
  def test_models(self, name):
    step = zoo.build(name, 2, size="tiny")
    variables, opt_state, *batch = zoo.concrete(step)
    made = []
    edited = edited_steps.compile_edited(
      step.function,
      (variables, opt_state, *batch),
      edited_steps.edit_randomly(0, 30, made),
      **step.jit_kwargs,
    )
    self._check_edited(edited)
    clones = [n for n in _names(edited.after) if "recompute" in n]
    self.assertGreater(len(clones), 10)
    jitted = jax.jit(step.function, **step.jit_kwargs)
    plain = jitted.lower(variables, opt_state, *batch).compile()
    state = [variables, opt_state]
    self.assertEqual(
      self._run(edited.compiled, state, *batch),
      self._run(plain, state, *batch),
    )


# A program with fusions of two and three outputs. XLA:CPU makes none by
# itself, but compiles them.
_FUSED = """
HloModule fused, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

%two (p0: f32[64,64], p1: f32[64,64], p2: f32[64,64]) -> (f32[64,64], f32[64,64]) {
  %p0 = f32[64,64]{1,0} parameter(0)
  %p1 = f32[64,64]{1,0} parameter(1)
  %p2 = f32[64,64]{1,0} parameter(2)
  %a = f32[64,64]{1,0} add(%p0, %p1)
  %s = f32[64,64]{1,0} sine(%a)
  %m = f32[64,64]{1,0} multiply(%p1, %p2)
  %t = f32[64,64]{1,0} tanh(%m)
  ROOT %r2 = (f32[64,64]{1,0}, f32[64,64]{1,0}) tuple(%s, %t)
}

%three (q0: f32[64,64], q1: f32[64,64]) -> (f32[64,64], f32[64,64], f32[64,64]) {
  %q0 = f32[64,64]{1,0} parameter(0)
  %q1 = f32[64,64]{1,0} parameter(1)
  %b = f32[64,64]{1,0} add(%q0, %q1)
  %c = f32[64,64]{1,0} cosine(%b)
  %n = f32[64,64]{1,0} negate(%q1)
  ROOT %r3 = (f32[64,64]{1,0}, f32[64,64]{1,0}, f32[64,64]{1,0}) tuple(%b, %c, %n)
}

ENTRY %main (x: f32[64,64], w: f32[64,64]) -> (f32[64,64], f32[64,64]) {
  %x = f32[64,64]{1,0} parameter(0)
  %w = f32[64,64]{1,0} parameter(1)
  %d = f32[64,64]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %f = (f32[64,64]{1,0}, f32[64,64]{1,0}) fusion(%x, %w, %d), kind=kLoop, calls=%two
  %f0 = f32[64,64]{1,0} get-tuple-element(%f), index=0
  %f1 = f32[64,64]{1,0} get-tuple-element(%f), index=1
  %g = (f32[64,64]{1,0}, f32[64,64]{1,0}, f32[64,64]{1,0}) fusion(%f0, %f1), kind=kLoop, calls=%three
  %g0 = f32[64,64]{1,0} get-tuple-element(%g), index=0
  %g1 = f32[64,64]{1,0} get-tuple-element(%g), index=1
  %g2 = f32[64,64]{1,0} get-tuple-element(%g), index=2
  %flat = f32[4096]{0} bitcast(%g2)
  %back = f32[64,64]{1,0} bitcast(%flat)
  %e = f32[64,64]{1,0} dot(%f0, %g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %h = f32[64,64]{1,0} dot(%e, %back), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %i = f32[64,64]{1,0} dot(%h, %g0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %j = f32[64,64]{1,0} dot(%i, %f1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %k = f32[64,64]{1,0} dot(%j, %g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %last = f32[64,64]{1,0} dot(%k, %back), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %o = (f32[64,64]{1,0}, f32[64,64]{1,0}) tuple(%last, %j)
}
"""  # noqa: E501


def _fused_module(name):
  hlo: Any = importlib.import_module("jaxlib._hlo")
  parsed = hlo.hlo_module_from_text(_FUSED)
  module = Module.from_bytes(parsed.as_serialized_hlo_module_proto())
  module.proto.name = name
  return module


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
    module = _chain()
    named(module, "a").proto.operand_ids[:] = [named(module, "b").id]
    with self.assertRaisesRegex(ValueError, "needs itself"):
      instruction_post_order(module.entry.proto.instructions)


class MultiOutputParityTest(parameterized.TestCase):
  def _run(self, edit):
    """Compiles the program above in place of one with its signature."""
    edited = edited_steps.compile_edited(
      lambda x, w: (x @ w, x @ w.T),
      (self._x, self._w),
      lambda module, platform: edit(_fused_module(module.name), platform),
      donate_argnums=0,
    )
    self.assertEqual(edited.temp_bytes, edited.predicted_bytes)
    self.assertEqual(edited.faults, ())
    return edited, _bits(edited.compiled(jnp.array(self._x), self._w))

  def setUp(self):
    super().setUp()
    self._x = small_steps.normal(0, 64, 64) / 8
    self._w = small_steps.normal(1, 64, 64) / 8

  def test_random_recomputes(self):
    _, expected = self._run(lambda module, _: module)
    num_split = num_cut = 0
    for seed in range(8):
      edited, found = self._run(edited_steps.edit_randomly(seed, 10))
      self.assertEqual(found, expected, seed)
      fusions = [
        i for i in edited.after.entry.instructions if i.opcode == "fusion"
      ]
      for fusion in fusions:
        if "recompute" in fusion.name:
          self.assertEmpty(fusion.shape.tuple_shapes)
          num_split += 1
        elif len(fusion.shape.tuple_shapes) < {"f": 2, "g": 3}[fusion.name]:
          num_cut += 1
    self.assertGreater(num_split, 10)
    self.assertGreater(num_cut, 2)


if __name__ == "__main__":
  absltest.main()
