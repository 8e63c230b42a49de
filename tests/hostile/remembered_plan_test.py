"""Remembered plans that somebody else wrote: planned afresh, never run wrong.

Each file is as sound as its reader can tell: in the user's own folder, with the
right format and checksum.
"""

import functools
import json
import os
import pathlib
import tempfile
from unittest import mock

import hostile
import jax
import jax.numpy as jnp
import numpy as np
import small_steps
from absl.testing import absltest
from hypothesis import given
from hypothesis import strategies as st

import jaxmem
from jaxmem.entry import PLANNED, plan_store, remembered
from jaxmem.entry.plan_store import PlanStore

_OPTIONS = jaxmem.Options(effort="fast")
_KEY = "ab" * 32


def _step(weights, x):
  """Updates donated weights, of which XLA copies those that are read late."""

  def loss(weights):
    hidden = x
    for each in weights:
      hidden = jnp.tanh(hidden @ each)
    return jnp.sum(hidden * hidden)

  value, gradients = jax.value_and_grad(loss)(weights)
  return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), value


def _arguments():
  weights = [0.3 * jnp.asarray(small_steps.normal(i, 32, 32)) for i in range(5)]
  return weights, jnp.asarray(small_steps.normal(9, 32, 32))


@functools.cache
def _expected():
  results = jax.jit(_step, donate_argnums=0)(*_arguments())
  return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


@functools.cache
def _limit():
  plan = jaxmem.plan(_step, *_arguments(), donate_argnums=0, options=_OPTIONS)
  return plan.total_bytes + 4096


def _start():
  """Runs the step as a new process would; returns results and record."""
  jax.clear_caches()
  step = jaxmem.jit(
    _step, donate_argnums=0, memory_limit=_limit(), options=_OPTIONS
  )
  results = step(*_arguments())
  return jax.tree.leaves(results), PLANNED.records.all()[-1]


class _FolderTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    parent = self.enter_context(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(parent, "plans")
    self.enter_context(
      mock.patch.dict(os.environ, JAXMEM_CACHE_DIR=str(self.folder))
    )
    _start()
    (path,) = self.folder.iterdir()
    self.path, self.sound = path, path.read_bytes()
    content = PlanStore(self.folder).get(path.stem)
    assert content is not None
    self.content = json.loads(content)

  def put(self, content):
    PlanStore(self.folder).put(self.path.stem, json.dumps(content).encode())

  def assert_right(self):
    """The step runs, and its results are jax's; returns its record."""
    found, record = _start()
    for ours, theirs in zip(found, _expected(), strict=True):
      np.testing.assert_array_equal(ours, theirs)
    self.assertEqual(record.why_not, "")
    return record


class TamperedTest(_FolderTest):
  def test_as_it_was_written(self):
    self.assertTrue(self.assert_right().is_remembered)

  def setUp(self):
    super().setUp()
    with mock.patch.object(remembered, "check_again") as check:
      _start()
    self.module = check.call_args[0][0].given
    self.base = self.content["decided"][0]["plan"]["base"]
    self.assertNotEmpty(self.base["removed_copies"])

  def test_an_order_that_reads_what_was_written_over(self):
    # XLA takes all of these. Unchecked, results of some are others.
    entry, num_wrong = self.module.entry, 0
    for seed in range(4):
      order = hostile.random_order(entry, seed)
      self.base["orders"] = {str(entry.id): order}
      self.put(self.content)
      with mock.patch.object(remembered, "check_again"):
        found, _ = _start()
      is_wrong = not all(map(np.array_equal, found, _expected()))
      num_wrong += is_wrong
      record = self.assert_right()
      self.assertFalse(is_wrong and record.is_remembered)
    self.assertGreater(num_wrong, 0)

  def test_an_instruction_that_is_no_copy(self):
    for instruction in self.module.entry.instructions:
      if instruction.opcode == "fusion" and len(instruction.operands) == 1:
        self.base["removed_copies"] = [instruction.id]
        self.put(self.content)
        self.assertFalse(self.assert_right().is_remembered)
        return
    self.fail("There is no such instruction.")

  def test_the_check_is_what_finds_it(self):
    self.base["platform"] = "cuda"
    self.put(self.content)
    with mock.patch.object(remembered, "check_again") as check:
      _start()
    check.assert_called_once()

  @hostile.examples(12)
  @given(draw=st.data())
  def test_any_field(self, draw):
    self.put(hostile.changed(self.content, draw))
    self.assert_right()


class ContentTest(_FolderTest):
  @hostile.examples(300)
  @given(draw=st.data())
  def test_a_record_is_read_or_refused(self, draw):
    changed = hostile.changed(self.content, draw)
    try:
      content = remembered._Content.from_bytes(json.dumps(changed).encode())
    except (ValueError, RecursionError):
      return
    for fields in content.decided:
      try:
        fields.decided()
      except ValueError as error:
        self.assertNotEmpty(str(error))

  @hostile.examples(200)
  @given(data=st.one_of(st.binary(max_size=60), hostile.values.map(str)))
  def test_bytes_of_any_kind_are_no_file(self, data):
    self.path.write_bytes(
      data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    )
    self.assertIsNone(PlanStore(self.folder).get(self.path.stem))

  @hostile.examples(200)
  @given(at=st.integers(0, 10**9), byte=st.integers(1, 255), cut=st.booleans())
  def test_a_file_with_another_byte_or_an_end_of_its_own(self, at, byte, cut):
    at %= len(self.sound)
    changed = bytearray(self.sound)
    changed[at] ^= byte
    self.path.write_bytes(self.sound[:at] if cut else changed)
    self.assertIsNone(PlanStore(self.folder).get(self.path.stem))

  @hostile.examples(50)
  @given(content=st.binary(max_size=200))
  def test_a_checksum_does_not_make_content_sound(self, content):
    packed = plan_store._packed(self.path.stem, content)
    self.path.write_bytes(packed)
    self.assertEqual(PlanStore(self.folder).get(self.path.stem), content)
    with self.assertRaises((ValueError, RecursionError)):
      remembered._Content.from_bytes(content)

  def test_links_and_files_that_cannot_be_read(self):
    elsewhere = self.folder.parent / "elsewhere"
    self.path.rename(elsewhere)
    self.path.symlink_to(elsewhere)
    self.assertFalse(_start()[1].is_remembered)
    self.assertFalse(self.path.is_symlink())
    self.assertTrue(_start()[1].is_remembered)
    self.path.unlink()
    self.path.symlink_to(self.path)
    self.assertFalse(_start()[1].is_remembered)
    self.path.unlink()
    self.path.mkdir()
    self.assertFalse(_start()[1].is_remembered)
    self.assertTrue(self.path.is_dir())


if __name__ == "__main__":
  absltest.main()
