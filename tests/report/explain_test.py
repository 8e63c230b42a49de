"""What the bytes at the peak are said to be, of steps of four libraries."""

import collections
import functools

import jax
import jax.numpy as jnp
import library_steps
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding, PartitionSpec

import jaxmem
from jaxmem import targets
from jaxmem.report import PeakRow, peak_tree


@functools.cache
def _plan(library: str, target: str | None = None) -> jaxmem.Plan:
  step, args, jit_kwargs = library_steps.STEPS[library]()
  options = jaxmem.Options(effort="fast")
  return jaxmem.plan(step, *args, target=target, options=options, **jit_kwargs)


def _by_kind(plan: jaxmem.Plan) -> collections.Counter:
  found = collections.Counter()
  for row in plan.peak:
    found[row.kind] += row.size_bytes
  return found


class LibrariesTest(parameterized.TestCase):
  @parameterized.product(library=list(library_steps.STEPS))
  def test_every_tree_has_all_the_bytes(self, library):
    plan = _plan(library)
    self._check_sums(plan)

  def _check_sums(self, plan):
    for node in plan.explain().trees.values():
      self.assertEqual(node.size_bytes, plan.total_bytes)
      stack = [node]
      while stack:
        node = stack.pop()
        if node.children:
          sizes = [c.size_bytes for c in node.children]
          self.assertEqual(sum(sizes), node.size_bytes)
          self.assertEqual(sizes, sorted(sizes, reverse=True))
        stack += node.children

  @parameterized.product(library=list(library_steps.STEPS))
  def test_parameters_and_state_to_the_byte(self, library):
    found = _by_kind(_plan(library))
    size = library_steps.PARAMETER_BYTES
    self.assertEqual(found["parameters"], size)
    # Adam's two moments, and the counters of Adam and of nnx.Optimizer.
    self.assertBetween(found["optimizer state"], 2 * size, 2 * size + 8)
    self.assertEqual(found["inputs"], library_steps.INPUT_BYTES)
    self.assertEqual(found["other"], 0)

  @parameterized.product(library=list(library_steps.STEPS))
  def test_residuals_are_of_the_layers_that_made_them(self, library):
    rows = _plan(library).peak
    layers = library_steps.FIRST_LAYERS[library]
    for layer in layers:
      # What the first layer returns waits for the backward pass.
      self.assertTrue(
        [
          row
          for row in rows
          if row.kind == "residuals"
          and row.size_bytes == library_steps.INNER_BYTES
          and row.module[: len(layer) - 1] == layer[:-1]
        ],
        layer,
      )
      owned = {row.kind for row in rows if row.module == layer}
      self.assertLessEqual({"parameters", "optimizer state"}, owned)

  @parameterized.product(library=list(library_steps.STEPS))
  def test_lines_are_the_users(self, library: str):
    rows = [row for row in _plan(library).peak if row.kind == "residuals"]
    for row in rows:
      self.assertIn("library_steps.py:", row.source)
    # The layers are made by a package: its lines tell rows apart.
    packages: dict[str, str] = {"nnx": "flax/nnx", "linen": "flax/linen"}
    package = packages.get(library, library)
    self.assertTrue([row for row in rows if row.package.startswith(package)])

  @pytest.mark.slow
  def test_a_described_gpu(self):
    if not targets.is_available("h200"):
      self.skipTest("needs jax's CUDA plugin")
    plan = _plan("equinox", "h200")
    self._check_sums(plan)
    found = _by_kind(plan)
    self.assertEqual(found["parameters"], library_steps.PARAMETER_BYTES)
    self.assertGreater(found["residuals"], library_steps.INNER_BYTES)


class ShardedTest(absltest.TestCase):
  def test_gathered_parameters_are_of_their_layers(self):
    if not targets.is_available("h200"):
      self.skipTest("needs jax's CUDA plugin")
    mesh = jax.make_mesh((8,), ("d",), devices=jaxmem.devices("h200", 8))

    def array(*shape):
      sharding = NamedSharding(mesh, PartitionSpec("d"))
      return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    def step(state, x):
      def loss(params):
        y = x
        for layer in params["layers"]:
          weights = jax.lax.with_sharding_constraint(
            layer["w"], NamedSharding(mesh, PartitionSpec())
          )
          y = jnp.tanh(y @ weights)
        return jnp.sum(y**2)

      params, momenta = state["params"], state["momenta"]
      grads = jax.grad(loss)(params)
      momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, grads)
      params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momenta)
      return {"params": params, "momenta": momenta}

    params = {"layers": [{"w": array(64, 64)} for _ in range(3)]}
    state = {"params": params, "momenta": params}
    options = jaxmem.Options(effort="fast")
    plan = jaxmem.plan(step, state, array(2048, 64), options=options)
    found = _by_kind(plan)
    size = 3 * 64 * 64 * 4 // 8
    self.assertEqual(found["parameters"], size)
    self.assertEqual(found["optimizer state"], size)
    self.assertGreater(found["communication"], 0)
    modules = {r.module for r in plan.peak if r.kind == "residuals"}
    self.assertLessEqual({("layers", "0"), ("layers", "1")}, modules)


class KindsTest(absltest.TestCase):
  def _plan(self, step, *args, **kwargs):
    options = jaxmem.Options(effort="fast")
    return jaxmem.plan(step, *args, options=options, **kwargs)

  def test_nothing_is_a_gradient_of_what_is_not_differentiated(self):
    x = jnp.zeros((64, 64))

    def step(x):
      y = jnp.sort(x @ x, axis=0)
      return (y @ jnp.sort(y, axis=1)).sum()

    plan = self._plan(step, x)
    found = _by_kind(plan)
    self.assertEqual(found["inputs"], x.nbytes)
    self.assertGreater(found["intermediate values"], 0)
    self.assertLessEqual(
      found.keys(),
      {"inputs", "intermediate values", "outputs", "packing", "workspace"},
    )

  def test_rows_add_up_where_all_is_lost_to_packing_or_nothing_is_used(self):
    for step in (lambda x: x, lambda x: x * 0 + 1):
      plan = self._plan(step, jnp.zeros((8, 8)))
      self.assertEqual(
        sum(row.size_bytes for row in plan.peak), plan.total_bytes
      )

  def test_a_named_scope_is_a_module(self):
    def step(w, x):
      def loss(w):
        with jax.named_scope("encoder"):
          y = jnp.tanh(x @ w)
        with jax.named_scope("decoder"):
          z = jnp.tanh(y @ w.T)
        return jnp.sum(jnp.tanh(z @ w) ** 2)

      return w - jax.grad(loss)(w)

    plan = self._plan(step, jnp.zeros((64, 256)), jnp.zeros((512, 64)))
    found = {row.module for row in plan.peak if row.kind == "residuals"}
    self.assertEqual({m[0] for m in found if m}, {"encoder", "decoder"})

  def test_what_has_no_name_is_of_who_reads_it(self):
    def step(w, x):
      def loss(w):
        y = jax.lax.conv(x, w, (1, 1), "SAME")
        with jax.named_scope("pool"):
          # XLA:CPU writes its gradient with operations of its own.
          z = jax.lax.reduce_window(
            y, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"
          )
        return jnp.sum(jnp.tanh(z) ** 2)

      return w - jax.grad(loss)(w)

    arrays = jnp.zeros((8, 4, 3, 3)), jnp.zeros((4, 4, 32, 32))
    plan = self._plan(step, *arrays)
    found = _by_kind(plan)
    self.assertLess(found["other"], 0.05 * plan.temp_bytes)
    self.assertGreater(found["activation gradients"], 0)

  def test_residuals_of_a_scan_are_residuals(self):
    def step(ws, x):
      def loss(ws):
        def layer(h, w):
          with jax.named_scope("layer"):
            return jnp.tanh(h @ w), None

        return jax.lax.scan(layer, x, ws)[0].sum()

      return ws - jax.grad(loss)(ws)

    ws = jnp.zeros((8, 64, 64))
    plan = self._plan(step, ws, jnp.zeros((256, 64)))
    stacked = 8 * 256 * 64 * 4
    rows = [row for row in plan.peak if row.kind == "residuals"]
    self.assertEqual(max(row.size_bytes for row in rows), stacked)
    self.assertIn("explain_test.py:", rows[0].source)


class HintsTest(absltest.TestCase):
  def _step(self, w, x):
    def loss(w):
      half = w.astype(jnp.bfloat16)
      y = jnp.tanh(x.astype(jnp.bfloat16) @ half)
      return jnp.sum((y @ half.T).astype(jnp.float32) ** 2)

    return w - jax.grad(loss)(w)

  def test_names_what_can_be_donated(self):
    w, x = jnp.zeros((256, 256)), jnp.zeros((64, 256))
    options = jaxmem.Options(effort="fast")
    hints = jaxmem.plan(self._step, w, x, options=options).explain().hints
    self.assertIn("donate_argnums=(0,): 256 KiB less for outputs", hints)
    hints = jaxmem.plan(
      self._step, w, x, donate_argnums=0, options=options
    ).explain()
    self.assertNotIn("donate", str(hints))

  def test_what_a_wrapper_hides_from_jax_has_the_users_names(self):
    for library in ("nnx", "equinox"):
      rows = [r for r in _plan(library).peak if r.kind == "parameters"]
      self.assertTrue(all(r.argument.startswith("net.") for r in rows), rows)
      self.assertIn("net.blocks[", str(_plan(library).donation))

  def test_a_cast_argument_is_there_twice(self):
    w, x = jnp.zeros((256, 256)), jnp.zeros((64, 256))
    options = jaxmem.Options(effort="fast")
    plan = jaxmem.plan(self._step, w, x, options=options)
    # The backward pass reads the batch as it was cast; the CPU's product of
    # bfloat16 reads float32.
    (copy,) = [row for row in plan.peak if row.copy_of]
    self.assertEqual((copy.copy_of, copy.kind), ("x", "copies of arguments"))
    self.assertEqual(copy.size_bytes, x.nbytes)
    self.assertIn("x is there twice", str(plan.explain()))

  def test_limits_are_told_only_of_a_frontier(self):
    plan = _plan("linen")
    self.assertNotIn("memory_limit", str(plan.explain()))
    frontier = plan.frontier()
    lower = [
      p for p in frontier.points if (p.total_bytes or 2**60) < plan.total_bytes
    ]
    self.assertNotEmpty(lower)
    told = str(plan.explain(frontier))
    self.assertIn(f"memory_limit={lower[-1].limit_bytes}", told)


class TreeTest(absltest.TestCase):
  def _rows(self, *rows):
    return [
      PeakRow(name=str(i), size_bytes=size, kind="residuals", module=module)
      for i, (size, module) in enumerate(rows)
    ]

  def test_ways_without_branches_are_one_step(self):
    rows = self._rows((3, ("a", "b", "c")), (2, ("a", "b", "d")), (9, ("e",)))
    where = peak_tree.paths(rows)["module"]
    node = peak_tree.tree("module", rows, where)
    self.assertEqual([c.name for c in node.children], ["e", "a/b"])
    self.assertEqual([c.name for c in node.children[1].children], ["c", "d"])

  def test_blocks_of_one_size_are_in_the_order_of_their_numbers(self):
    rows = self._rows(*((7, (f"block_{i}",)) for i in (10, 2, 1, 11)))
    node = peak_tree.tree("module", rows, [r.module for r in rows])
    names = [c.name for c in node.children]
    self.assertEqual(names, ["block_1", "block_2", "block_10", "block_11"])

  def test_what_is_of_a_module_itself(self):
    rows = self._rows((3, ("a",)), (2, ("a", "b")))
    node = peak_tree.tree("module", rows, [r.module for r in rows])
    (a,) = node.children
    self.assertEqual([c.name for c in a.children], ["(itself)", "b"])

  def test_the_deepest_path_ends(self):
    rows = self._rows((3, ("a",) * 5000), (2, ("a",) * 4999 + ("b",)))
    node = peak_tree.tree("module", rows, [r.module for r in rows])
    self.assertEqual(node.size_bytes, 5)

  def test_what_is_trimmed_is_counted(self):
    rows = self._rows(*((i + 1, (f"m{i}",)) for i in range(1000)))
    node = peak_tree.tree("module", rows, [r.module for r in rows])
    top = peak_tree.trimmed(node, 10)
    self.assertLen(top.children, 10)
    self.assertEqual(top.children[-1].name, "and 991 more")
    self.assertEqual(sum(c.size_bytes for c in top.children), node.size_bytes)

  def test_lines_are_relative_to_the_users_folder(self):
    rows = [
      PeakRow(name="a", size_bytes=1, kind="k", source="/u/p/train.py:3"),
      PeakRow(name="b", size_bytes=1, kind="k", source="/u/p/net/gpt.py:5"),
    ]
    self.assertEqual(
      peak_tree.paths(rows)["line"], [("train.py:3",), ("net/gpt.py:5",)]
    )


if __name__ == "__main__":
  absltest.main()
