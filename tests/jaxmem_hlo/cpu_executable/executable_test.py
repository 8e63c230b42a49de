"""Tests of jaxmem_hlo.cpu_executable on real executables."""

import functools
import subprocess
import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jaxmem_hlo.cpu_executable import (
  PlacementItem,
  UnsupportedExecutableError,
  executable,
  load_placed,
  placement,
)
from jaxmem_hlo.proto import cpu_executable_pb2
from small_steps import STEPS, normal

_ALIGNMENT = 64


def _compile(name: str, donate: bool = True) -> jax.stages.Compiled:
  function, params, x = STEPS[name]

  # A function of its own: JAX would hand out the same executable again, and
  # one that has run cannot always be serialized.
  def step(params, x):
    return function(params, x)

  donated = (0,) if donate else ()
  return jax.jit(step, donate_argnums=donated).lower(params, x).compile()


@functools.cache
def _executable(name: str) -> executable.CpuExecutable:
  runtime = _compile(name).runtime_executable()
  assert runtime is not None
  return executable.read_cpu_executable(runtime.serialize())


def _meet(a: PlacementItem, b: PlacementItem) -> bool:
  return any(
    s < f and t < e for s, e in a.live_ranges for t, f in b.live_ranges
  )


def _first_fit(
  items: Sequence[PlacementItem], order: Sequence[int], base: int = 0
) -> tuple[list[int], int]:
  offsets = [0] * len(items)
  placed: list[int] = []
  height = 0
  for i in order:
    taken = sorted(
      (offsets[j], offsets[j] + items[j].size_bytes)
      for j in placed
      if _meet(items[i], items[j])
    )
    offset = base
    for low, high in taken:
      if low - offset >= items[i].size_bytes:
        break
      offset = max(offset, -(-high // _ALIGNMENT) * _ALIGNMENT)
    offsets[i] = offset
    placed.append(i)
    height = max(height, offset + items[i].size_bytes)
  return offsets, height


def _by_size(items):
  return _first_fit(
    items, sorted(range(len(items)), key=lambda i: -items[i].size_bytes)
  )


def _shuffled(items):
  order = np.random.default_rng(3).permutation(len(items))
  return _first_fit(items, [int(i) for i in order], base=_ALIGNMENT)


def _disjoint(items):
  offsets, height = [], 0
  for item in reversed(items):
    offsets.append(height)
    height += -(-item.size_bytes // _ALIGNMENT) * _ALIGNMENT
  return offsets[::-1], height


def _as_xla(items):
  height = max(item.offset_bytes + item.size_bytes for item in items)
  return [item.offset_bytes for item in items], height


def _memory(compiled: jax.stages.Compiled) -> Any:
  analysis = compiled.memory_analysis()
  assert analysis is not None
  return analysis


def _run(compiled, params, x, num_steps: int = 4):
  params = jax.tree.map(jnp.array, params)
  values = []
  for _ in range(num_steps):
    params, value = compiled(params, x)
    values.append(np.asarray(value))
  return [*values, *map(np.asarray, jax.tree.leaves(params))]


class LoadTest(parameterized.TestCase):
  def _assert_same_run(self, planned, compiled, name):
    _, params, x = STEPS[name]
    for got, expected in zip(
      _run(planned, params, x), _run(compiled, params, x), strict=True
    ):
      np.testing.assert_array_equal(got, expected)

  @parameterized.product(
    name=sorted(STEPS),
    placer=(_by_size, _shuffled, _disjoint),
  )
  def test_another_placement_gives_the_same_bits(self, name, placer):
    compiled = _compile(name)
    plan = {}

    def offsets_fn(items):
      plan["offsets"], plan["height"] = placer(items)
      plan["moved"] = sum(
        offset != item.offset_bytes
        for offset, item in zip(plan["offsets"], items, strict=True)
      )
      return plan["offsets"], plan["height"]

    planned = load_placed(compiled, offsets_fn)
    if placer is _shuffled:
      self.assertGreater(plan["moved"], 0)
    self.assertEqual(_memory(planned).temp_size_in_bytes, plan["height"])
    self._assert_same_run(planned, compiled, name)

  @parameterized.parameters("mlp", "scan")
  def test_without_donation(self, name):
    compiled = _compile(name, donate=False)
    planned = load_placed(compiled, _shuffled)
    self._assert_same_run(planned, compiled, name)
    params = jax.tree.map(jnp.array, STEPS[name][1])
    planned(params, STEPS[name][2])
    self.assertFalse(any(p.is_deleted() for p in jax.tree.leaves(params)))

  @parameterized.parameters(*sorted(STEPS))
  def test_xla_s_own_placement_can_be_kept(self, name):
    compiled = _compile(name)
    planned = load_placed(compiled, _as_xla)
    self.assertEqual(
      _memory(planned).temp_size_in_bytes,
      _memory(compiled).temp_size_in_bytes,
    )
    self._assert_same_run(planned, compiled, name)

  def test_is_a_compiled_function(self):
    compiled = _compile("mlp")
    planned = load_placed(compiled, _by_size)
    self.assertIsInstance(planned, jax.stages.Compiled)
    self.assertEqual(planned.args_info, compiled.args_info)
    self.assertEqual(planned.input_shardings, compiled.input_shardings)
    self.assertEqual(planned.output_shardings, compiled.output_shardings)
    self.assertEqual(planned.out_tree, compiled.out_tree)
    text = planned.as_text()
    assert text is not None
    self.assertIn("input_output_alias", text)
    old, new = _memory(compiled), _memory(planned)
    for field in ("argument", "output", "alias"):
      name = f"{field}_size_in_bytes"
      self.assertEqual(getattr(new, name), getattr(old, name))

  def test_donation_is_honoured(self):
    planned = load_placed(_compile("mlp"), _shuffled)
    params = jax.tree.map(jnp.array, STEPS["mlp"][1])
    planned(params, STEPS["mlp"][2])
    self.assertTrue(all(p.is_deleted() for p in params))

  def test_keyword_arguments_and_captured_arrays(self):
    captured = jnp.array(normal(5, 48, 48))

    def function(state, *, scale):
      hidden = jnp.tanh(state["a"] @ captured) @ captured
      return {"a": hidden @ hidden.T * scale["s"]}

    state = {"a": normal(6, 48, 48)}
    scale = {"s": np.float32(2)}
    compiled = jax.jit(function).lower(state, scale=scale).compile()
    planned = load_placed(compiled, _disjoint)
    np.testing.assert_array_equal(
      planned(state, scale=scale)["a"], compiled(state, scale=scale)["a"]
    )
    with self.assertRaisesRegex(TypeError, "pytree does not match"):
      planned(state)

  def test_the_offsets_are_used(self):
    _, params, x = STEPS["mlp"]

    def all_at_zero(items):
      return [0] * len(items), max(i.size_bytes for i in items)

    with mock.patch.object(executable, "check_placement"):
      planned = load_placed(_compile("mlp"), all_at_zero)
    wrong = _run(planned, params, x)
    right = _run(_compile("mlp"), params, x)
    self.assertFalse(
      all(np.array_equal(a, b) for a, b in zip(wrong, right, strict=True))
    )

  def test_an_invalid_placement_is_refused(self):
    with self.assertRaisesRegex(ValueError, "share bytes while both are live"):
      load_placed(_compile("mlp"), lambda items: ([0] * len(items), 1 << 30))


class UnsupportedTest(parameterized.TestCase):
  def test_second_generation(self):
    planned = load_placed(_compile("mlp"), _as_xla)
    with self.assertRaisesRegex(
      UnsupportedExecutableError, "was loaded, not compiled"
    ):
      load_placed(planned, _as_xla)

  def test_host_callback(self):
    def function(x):
      shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
      return jax.pure_callback(np.sin, shape, x @ x) @ x

    compiled = jax.jit(function).lower(normal(0, 32, 32)).compile()
    with self.assertRaisesRegex(
      UnsupportedExecutableError, "calls back into Python"
    ):
      load_placed(compiled, _as_xla)

  def test_sort_that_has_run(self):
    # XLA binds the comparator at the first call, and cannot write it then.
    compiled = _compile("sort")
    _run(compiled, *STEPS["sort"][1:])
    with self.assertRaisesRegex(
      UnsupportedExecutableError, "cannot be serialized"
    ):
      load_placed(compiled, _as_xla)

  def test_nothing_to_place(self):
    compiled = jax.jit(lambda x: x + 1).lower(normal(0, 4)).compile()
    with self.assertRaisesRegex(UnsupportedExecutableError, "no temporaries"):
      load_placed(compiled, _as_xla)

  @parameterized.parameters(b"", b"\x05abc", b"\x00not a message", b"\x80")
  def test_other_bytes(self, data):
    with self.assertRaises(UnsupportedExecutableError):
      executable.read_cpu_executable(data)

  def test_unknown_version_of_jax(self):
    with self.assertRaisesRegex(
      UnsupportedExecutableError, "cannot be serialized"
    ):
      load_placed(mock.Mock(spec=[]), _as_xla)

  def _edited(self, edit) -> bytes:
    parsed = _executable("mlp")
    result = cpu_executable_pb2.CompilationResult()
    result.CopyFrom(parsed.result)
    edit(result)
    envelope = cpu_executable_pb2.ExecutableAndOptions()
    envelope.CopyFrom(parsed.envelope)
    envelope.serialized_executable = result.SerializeToString()
    return parsed.header + envelope.SerializeToString()

  def test_unknown_field(self):
    def edit(result):
      # Field 99, a varint.
      result.thunk_sequence.thunks[0].MergeFromString(b"\x98\x06\x01")

    with self.assertRaisesRegex(UnsupportedExecutableError, "unknown field 99"):
      executable.read_cpu_executable(self._edited(edit))

  def test_unknown_thunk(self):
    def edit(result):
      thunk = result.thunk_sequence.thunks[0]
      thunk.ClearField(thunk.WhichOneof("impl"))
      thunk.kind = "brand-new"

    with self.assertRaisesRegex(
      UnsupportedExecutableError, "unknown kind brand-new"
    ):
      executable.read_cpu_executable(self._edited(edit))

  def _edit_last_slice(self, edit):
    """Edits the last slice of the arena; returns the parsed executable."""

    def apply(result):
      index = _executable("mlp").temp.index
      references = list(executable._references(result.thunk_sequence))
      edit([r.slice for r in references if r.slice.allocation_index == index])

    return executable.read_cpu_executable(self._edited(apply))

  def test_slice_where_no_value_is(self):
    def edit(slices):
      slices[-1].offset = 1 << 40

    with self.assertRaisesRegex(
      UnsupportedExecutableError, "where no value is"
    ):
      _ = self._edit_last_slice(edit).arena

  def test_value_that_no_thunk_uses(self):
    def edit(slices):
      for piece in slices:
        piece.allocation_index = 0

    with self.assertRaisesRegex(
      UnsupportedExecutableError, "No thunk refers to"
    ):
      _ = self._edit_last_slice(edit).arena

  def test_thunk_of_an_unknown_instruction_is_never_free(self):
    def edit(result):
      for thunk in result.thunk_sequence.thunks:
        thunk.info.op_name = f"unknown_{thunk.info.op_name}"

    items = executable.read_cpu_executable(self._edited(edit)).arena.items
    spans = {item.live_ranges for item in items}
    self.assertLen(spans, 1)
    self.assertLen(spans.pop(), 1)


class PlacementProblemTest(parameterized.TestCase):
  @parameterized.parameters(*sorted(STEPS))
  def test_xla_placement_is_valid(self, name):
    parsed = _executable(name)
    items = parsed.arena.items
    placement.check_placement(
      items, [i.offset_bytes for i in items], parsed.temp_bytes
    )

  @parameterized.parameters(*sorted(STEPS))
  def test_every_value_is_in_one_item(self, name):
    parsed = _executable(name)
    ids = [
      buffer_id
      for item in parsed.arena.items
      for part in item.parts
      for buffer_id in part.buffer_ids
    ]
    self.assertCountEqual(
      ids, [a.logical_buffer_id for a in parsed.temp.assigned if a.size]
    )

  @parameterized.parameters(*sorted(STEPS))
  def test_every_slice_of_the_arena_has_an_item(self, name):
    parsed = _executable(name)
    items = parsed.arena.items
    for i, (_, piece) in enumerate(parsed.slices):
      if piece.allocation_index != parsed.temp.index:
        self.assertNotIn(i, parsed.arena.item_of_slice)
        continue
      item = items[parsed.arena.item_of_slice[i]]
      self.assertGreaterEqual(piece.offset, item.offset_bytes)
      self.assertLessEqual(
        piece.offset + piece.size, item.offset_bytes + item.size_bytes
      )

  @parameterized.parameters("scan", "cond", "small_loop")
  def test_nested_slices_are_found(self, name):
    parsed = _executable(name)
    module_entry = {i.name for i in parsed.module.entry.instructions}
    nested = {t.info.op_name for t, _ in parsed.slices} - module_entry
    calls = {
      t.info.op_name for t, _ in parsed.slices if "call" in t.info.op_name
    }
    self.assertTrue(nested if name != "small_loop" else calls)

  @parameterized.parameters(*sorted(STEPS))
  def test_unchanged_offsets_change_nothing(self, name):
    parsed = _executable(name)
    items = parsed.arena.items
    data = executable.rewrite_offsets(
      parsed, [i.offset_bytes for i in items], parsed.temp_bytes
    )
    again = executable.read_cpu_executable(data)
    self.assertEqual(again.header, parsed.header)
    self.assertEqual(again.assignment, parsed.assignment)
    for field, _ in parsed.result.ListFields():
      if field.name != "buffer_assignment":
        self.assertEqual(
          getattr(again.result, field.name), getattr(parsed.result, field.name)
        )
    self.assertEqual(again.arena.items, items)

  @parameterized.parameters(*sorted(STEPS))
  def test_a_placement_can_be_read_back(self, name):
    parsed = _executable(name)
    before = parsed.result.SerializeToString()
    items = parsed.arena.items
    offsets, height = _disjoint(items)
    again = executable.read_cpu_executable(
      executable.rewrite_offsets(parsed, offsets, height)
    )
    self.assertEqual(parsed.result.SerializeToString(), before)
    self.assertEqual(again.temp_bytes, height)
    placed = {
      buffer_id: item.offset_bytes + part.offset_bytes
      for item in again.arena.items
      for part in item.parts
      for buffer_id in part.buffer_ids
    }
    for item, offset in zip(items, offsets, strict=True):
      for part in item.parts:
        for buffer_id in part.buffer_ids:
          self.assertEqual(placed[buffer_id], offset + part.offset_bytes)

  def test_slices_of_one_kernel_stay_apart(self):
    # The whole loop is one kernel: its slices must be live together.
    parsed = _executable("small_loop")
    items = parsed.arena.items
    inside = {
      parsed.arena.item_of_slice[i]
      for i, (thunk, _) in enumerate(parsed.slices)
      if thunk.info.op_name.startswith("call")
      and i in parsed.arena.item_of_slice
    }
    self.assertGreater(len(inside), 1)
    for i in inside:
      for j in inside:
        self.assertTrue(_meet(items[i], items[j]))


class ImportTest(absltest.TestCase):
  def test_jax_is_not_imported(self):
    code = (
      "import jaxmem_hlo.cpu_executable, sys; sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
  absltest.main()
