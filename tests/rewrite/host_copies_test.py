"""Tests of jaxmem.rewrite.offload: values that wait in the host's memory."""

import dataclasses
import itertools
import random
import unittest

import edited_steps
import pytest
import small_steps
import tiny_hlo
from absl.testing import absltest, parameterized
from edited_modules import names_of, operands_of, value_of
from jaxmem_hlo import replay
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module
from jaxmem_hlo.module.opcodes import RENAMES
from tiny_hlo import f32, named, tuple_of

from benchmarks import zoo
from jaxmem import targets
from jaxmem.rewrite import (
  RecomputeError,
  RecomputeRules,
  apply_edits,
  recomputable,
)
from jaxmem.rewrite.edits import Edits, Offload, Recompute, Value
from jaxmem.rewrite.recompute_rules import named_value

needs_plugin = unittest.skipUnless(
  targets.is_available("h200"), "needs JAX's CUDA plugin"
)


def _offload(module, name, store_done, fetch_start, fetch_done):
  name, _, output = name.partition("@")
  return Offload(
    value=value_of(module, name, int(output) if output else None),
    store_done=named(module, store_done).id,
    fetch_start=named(module, fetch_start).id,
    fetch_done=named(module, fetch_done).id,
  )


def _replayed(module):
  assignment = AssignmentModel(module, "cuda").assign()
  return assignment, replay.check_assignment(
    module, assignment.to_proto(), "cuda"
  ).faults


def _chain():
  """a is read by b, then only at the end."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(64), name="x")
  a = main.op("dot", f32(128), x, name="a")
  b = main.op("dot", f32(64), a, name="b")
  c = main.op("dot", f32(256), b, name="c")
  d = main.op("dot", f32(64), c, name="d")
  flat = main.op("bitcast", f32(64, 2), a, name="flat")
  main.op("dot", f32(1), d, flat, a, name="e")
  return builder.module(main)


class TinyTest(parameterized.TestCase):
  def _moved(self, **edits):
    module = _chain()
    moves = (_offload(module, "a", "c", "d", "e"),)
    edits = Edits(offloads=moves, **edits)
    return module, apply_edits(module, edits, "cuda")

  def test_places(self):
    _, edited = self._moved()
    self.assertEqual(
      names_of(edited),
      [
        *("x", "a", "offload-start", "b", "offload-done", "c", "fetch-start"),
        *("d", "fetch-done", "flat.recompute", "e"),
      ],
    )
    self.assertEqual(operands_of(edited, "offload-start"), ["a"])
    self.assertEqual(operands_of(edited, "b"), ["a"])
    self.assertEqual(
      operands_of(edited, "e"), ["d", "flat.recompute", "fetch-done"]
    )
    host, device = f32(128, memory_space=5), f32(128)
    context = named(edited, "offload-start").shape.tuple_shapes[2]
    self.assertEqual(context.element_type, 8)
    for name, opcode, shape in (
      ("offload-start", "copy-start", tuple_of(host, device, context)),
      ("offload-done", "copy-done", host),
      ("fetch-start", "copy-start", tuple_of(device, host, context)),
      ("fetch-done", "copy-done", device),
    ):
      self.assertEqual(named(edited, name).opcode, opcode)
      self.assertEqual(named(edited, name).shape, shape)

  def test_bytes(self):
    module = _chain()
    moves = (_offload(module, "a", "c", "e", "e"),)
    edited = apply_edits(module, Edits(offloads=moves), "cuda")
    before, _ = _replayed(module)
    after, faults = _replayed(edited)
    self.assertEqual(faults, ())
    # While c runs, b and c are needed, then c and d; all is aligned to 256
    # bytes. Before, a is kept besides; after, it is on the host meanwhile. The
    # tables of the two copy-starts take 256 bytes each in every schedule.
    tables = 2 * 256
    self.assertEqual(before.temp_bytes, 512 + 1024 + 256)
    self.assertEqual(after.temp_bytes, tables + 1024 + 256)
    host = [a.size_bytes for a in after.allocations if a.memory_space == 5]
    self.assertEqual(host, [512])

  def test_an_output_of_a_fusion(self):
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    p = body.parameter(f32(64))
    body.tuple(body.op("tanh", f32(64), p), body.op("sine", f32(64), p))
    main = builder.computation("main")
    x = main.parameter(f32(64), name="x")
    f = main.op(
      "fusion",
      tuple_of(f32(64), f32(64)),
      x,
      name="f",
      fusion_kind="kLoop",
      calls=(body,),
    )
    g0, g1 = (main.element(f, k, name=f"g{k}") for k in (0, 1))
    a = main.op("dot", f32(64), g0, g1, name="a")
    b = main.op("dot", f32(64), a, name="b")
    main.op("dot", f32(1), b, g1, name="c")
    module = builder.module(main)
    moves = (_offload(module, "f@1", "b", "b", "c"),)
    edited = apply_edits(module, Edits(offloads=moves), "cuda")
    (source,) = operands_of(edited, "offload-start")
    self.assertEqual(named(edited, source).proto.tuple_index, 1)
    self.assertEqual(operands_of(edited, source), ["f"])
    self.assertEqual(operands_of(edited, "c"), ["b", "fetch-done"])
    self.assertEqual(_replayed(edited)[1], ())

  def test_a_clone_reads_what_was_fetched(self):
    module = _chain()
    edits = Edits(
      offloads=(_offload(module, "a", "c", "d", "e"),),
      recomputes=(
        Recompute(value=value_of(module, "b"), before=named(module, "e").id),
        Recompute(value=value_of(module, "c"), before=named(module, "e").id),
        Recompute(value=value_of(module, "d"), before=named(module, "e").id),
      ),
    )
    edited = apply_edits(module, edits, "cuda")
    self.assertEqual(operands_of(edited, "b.recompute"), ["fetch-done"])
    self.assertEqual(_replayed(edited)[1], ())

  def test_what_nobody_fetches_is_not_moved(self):
    module = _chain()
    value = value_of(module, "a")
    edits = Edits(
      offloads=(_offload(module, "a", "c", "d", "e"),),
      recomputes=(Recompute(value=value, before=named(module, "e").id),),
    )
    edited = apply_edits(module, edits, "cuda")
    self.assertNotIn("fetch-done", names_of(edited))
    self.assertNotIn("offload-start", names_of(edited))

  def test_refuses_platforms_without_a_host(self):
    module = _chain()
    edits = Edits(offloads=(_offload(module, "a", "c", "d", "e"),))
    with self.assertRaisesRegex(ValueError, "nothing to offload to"):
      apply_edits(module, edits, "cpu")
    with self.assertRaisesRegex(ValueError, "needs platform 'cuda', got None"):
      apply_edits(module, edits)

  @parameterized.parameters(
    ("x", "c", "d", "e", "a parameter produces no value"),
    ("flat", "e", "e", "e", "a bitcast produces no value"),
    ("e", "e", "e", "e", "the program returns it"),
    ("a", "a", "d", "e", "before the value is there"),
    ("a", "d", "c", "e", "in this order"),
    ("a", "c", "e", "d", "in this order"),
  )
  def test_refusals(self, name, store_done, fetch_start, fetch_done, message):
    module = _chain()
    move = _offload(module, name, store_done, fetch_start, fetch_done)
    with self.assertRaisesRegex(RecomputeError, message):
      apply_edits(module, Edits(offloads=(move,)), "cuda")

  def test_refuses_what_is_elsewhere_already(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(64), name="x")
    a = main.op("dot", f32(64, memory_space=5), x, name="a")
    main.op("dot", f32(1), a, name="b")
    module = builder.module(main)
    rules = recomputable(module)
    self.assertRegex(
      rules.why_not_moved(value_of(module, "a")),
      "not in the device's own memory",
    )

  def test_the_copy_ends_before_the_value_is_overwritten(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(64), name="x")
    at = main.parameter(tiny_hlo.s32(), name="at")
    a = main.op("dot", f32(64), x, name="a")
    b = main.op("dot", f32(8), a, name="b")
    update = main.op("dynamic-update-slice", f32(64), a, b, at, name="update")
    c = main.op("dot", f32(64), update, name="c")
    main.op("dot", f32(1), c, update, b, name="d")
    module = builder.module(main)
    for store_done, is_late in (("update", False), ("c", True)):
      move = _offload(module, "a", store_done, "c", "d")
      # Something reads it again: b runs a second time.
      again = Recompute(value=value_of(module, "b"), before=move.fetch_done)
      edits = Edits(offloads=(move,), recomputes=(again,))
      if not is_late:
        self.assertEqual(_replayed(apply_edits(module, edits, "cuda"))[1], ())
        continue
      with self.assertRaisesRegex(RecomputeError, "already written over"):
        apply_edits(module, edits, "cuda")
      rules = dataclasses.replace(recomputable(module), overwriters={})
      forced = apply_edits(module, edits, "cuda", rules)
      self.assertNotEmpty(_replayed(forced)[1])


def _random_moves(
  module: Module, rules: RecomputeRules, seed: int, count: int
) -> Edits:
  """Moves of values over gaps between two steps that touch them."""
  generator = random.Random(seed)
  schedule = module.schedule(module.entry.id)
  times = {i.id: t for t, i in enumerate(schedule)}
  gaps = []
  for value in rules.analysis.dataflow.values:
    found = named_value(module, value)
    if found is None or rules.why_not_moved(found):
      continue
    uses = {
      times[use.instruction.id]
      for use in value.uses
      if use.instruction.id in times and use.instruction.opcode not in RENAMES
    }
    touched = sorted({times[found.instruction], *uses})
    writer = rules.overwriters.get(value)
    for start, end in itertools.pairwise(touched):
      is_whole = writer is None or times[writer.id] >= touched[-1]
      if end - start > 8 and value.size_bytes > 256 and is_whole:
        gaps.append((found, start, end))
  chosen: dict[Value, Offload] = {}
  for found, start, end in generator.sample(gaps, len(gaps)):
    if found not in chosen and len(chosen) < count:
      done = generator.randrange(start + 1, end - 2)
      fetch = generator.randrange(done, end)
      chosen[found] = Offload(
        value=found,
        store_done=schedule[done].id,
        fetch_start=schedule[fetch].id,
        fetch_done=schedule[end].id,
      )
  return Edits(offloads=tuple(chosen.values()))


@needs_plugin
class CompiledTest(parameterized.TestCase):
  """XLA:GPU takes edited modules and needs the bytes that were predicted."""

  def _check(self, edited):
    self.assertEqual(edited.faults, ())
    self.assertEqual(edited.temp_bytes, edited.predicted_bytes)
    self.assertEqual(edited.host_bytes, edited.predicted_host_bytes)

  @parameterized.parameters("conv", "mlp", "scan", "update_slice", "sort")
  def test_recomputes(self, name):
    step, params, x = small_steps.STEPS[name]
    edited = edited_steps.compile_edited(
      step,
      (params, x),
      edited_steps.edit_randomly(1, 16),
      target="h200",
      donate_argnums=0,
    )
    self._check(edited)
    self.assertEqual(edited.host_bytes, 0)

  @pytest.mark.slow
  def test_moves_of_a_model(self):
    step = zoo.build("gpt2_small", 2, size="tiny")
    moved = []

    def edit(module, platform):
      rules = recomputable(module)
      moves = _random_moves(module, rules, 0, 20)
      moved.extend(moves.offloads)
      more = edited_steps.random_recomputes(module, rules, 0, 20)
      edits = dataclasses.replace(more, offloads=moves.offloads)
      return apply_edits(module, edits, platform, rules)

    edited = edited_steps.compile_edited(
      step.function, step.args, edit, target="h200", **step.jit_kwargs
    )
    self._check(edited)
    self.assertLen(moved, 20)
    self.assertGreater(edited.host_bytes, 0)
    # The whole of it is in the compiled program: four instructions a move.
    text = edited.compiled.as_text()
    self.assertEqual(text.count(" copy-start("), text.count(" copy-done("))
    made = [n for n in names_of(edited.after) if n.startswith("fetch-done")]
    self.assertGreater(len(made), 10)
    self.assertLen(
      [line for line in text.splitlines() if " copy-start(" in line],
      2 * len(made),
    )


if __name__ == "__main__":
  absltest.main()
