import jax
import jax.numpy as jnp
import numpy as np
import pytest
import record_modules
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import aliasing

import jaxmem
from jaxmem.graph import from_hlo
from jaxmem.rewrite import find_copies

_SIZE = 64
_MATRIX = jax.ShapeDtypeStruct((_SIZE, _SIZE), jnp.float32)


def _late_use(weights, x):
  """Reads the weights twice: forward and, transposed, backward."""

  def loss(weights):
    h = x
    for w in weights:
      h = jnp.tanh(h @ w)
    return jnp.sum(h * h)

  gradients = jax.grad(loss)(weights)
  return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients)


def _read_after_update(w, x):
  """Its result needs the old weights after the new ones."""
  new = w + x
  return new, jnp.sum(w @ jnp.tanh(new))


def _mixing_update(w, x):
  """The update reads other elements of the old value than it writes."""
  return jnp.tanh(w @ x) + w.T, jnp.sum(w)


def _copies(captured: record_modules.Captured):
  model = AssignmentModel(captured.module, captured.platform)
  entry = from_hlo(model, captured.module.entry)
  return model.analysis, find_copies(model, entry)


class CopiesTest(parameterized.TestCase):
  def test_copies_of_parameters_that_are_updated_last_go(self):
    captured = record_modules.capture(
      _late_use, ([_MATRIX] * 4, _MATRIX), donate_argnums=0
    )
    copied = [
      i for i in captured.module.entry.instructions if i.opcode == "copy"
    ]
    self.assertNotEmpty(copied)
    _, copies = _copies(captured)
    self.assertLen(copies.removable, len(copied))

  def test_every_reader_runs_before_the_update(self):
    captured = record_modules.capture(
      _late_use, ([_MATRIX] * 4, _MATRIX), donate_argnums=0
    )
    analysis, copies = _copies(captured)
    module = captured.module.with_bitcasts(copies.removable)
    changed = from_hlo(AssignmentModel(module, captured.platform), module.entry)
    position = {i.id: n for n, i in enumerate(changed.instructions)}
    for copy_id in copies.removable:
      copy = captured.module.instruction(copy_id)
      old, copied = (
        analysis.dataflow.trees[i][()] for i in (*copy.operands, copy_id)
      )
      (new,) = (v for v in analysis.buffer_of(old).values if v is not old)
      writer = new.instruction.id
      readers = {use.instruction.id for use in (*old.uses, *copied.uses)}
      readers &= position.keys() - {writer}
      self.assertNotEmpty(readers)
      for reader in readers:
        self.assertLess(position[reader], position[writer])

  def test_a_reader_that_needs_the_update_keeps_its_copy(self):
    captured = record_modules.capture(
      _read_after_update, (_MATRIX, _MATRIX), donate_argnums=0
    )
    _, copies = _copies(captured)
    self.assertEmpty(copies.removable)
    self.assertEqual(copies.kept_bytes, {"order": 4 * _SIZE * _SIZE})

  @parameterized.parameters(_late_use, _read_after_update, _mixing_update)
  def test_same_bits_over_steps(self, function):
    rng = np.random.default_rng(0)
    values = [
      rng.normal(size=(_SIZE, _SIZE)).astype(np.float32) / 8 for _ in range(5)
    ]
    first = values[:4] if function is _late_use else values[0]
    plain = jax.jit(function, donate_argnums=0)
    planned = jaxmem.jit(
      function,
      donate_argnums=0,
      options=jaxmem.Options(min_gain=0.0, verify=True),
    )
    states = [jax.tree.map(jnp.array, first) for _ in range(2)]
    for _ in range(3):
      results = [
        jit(state, jnp.array(values[4]))
        for jit, state in zip((plain, planned), states, strict=True)
      ]
      for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(a, b)
      states = [r if function is _late_use else r[0] for r in results]

  @pytest.mark.slow
  def test_without_them_temporaries_shrink_as_predicted(self):
    pair = record_modules.zoo_pair("alexnet", None)
    self.assertNotEmpty(pair.plan.removed_copies)
    self.assertLess(pair.plan.planned_bytes, pair.plan.baseline_bytes)
    self.assertEqual(
      record_modules.temp_bytes(pair.planned), pair.plan.planned_bytes
    )

  def test_a_matrix_product_is_no_elementwise_update(self):
    captured = record_modules.capture(
      lambda w, x: w @ x, (_MATRIX, _MATRIX), donate_argnums=0
    )
    module = captured.module
    (product,) = (
      i for i in module.entry.instructions if i.opcode in ("dot", "fusion")
    )
    self.assertFalse(aliasing.is_elementwise_update(module, product, 0, ()))


if __name__ == "__main__":
  absltest.main()
