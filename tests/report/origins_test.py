"""What the names of operations and of arguments say of where they come from."""

from absl.testing import absltest, parameterized

from jaxmem.report import origins


class ScopesTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      "jit(step)/transpose(jvp(Net))/Block_3/Dense_0/dot_general",
      ("Net", "Block_3", "Dense_0"),
    ),
    ("jit(step)/jvp(vmap(eqx.nn.Linear))/dot_general", ("eqx.nn.Linear",)),
    ("jit(step)/jvp(a/b)/c/add", ("a", "b", "c")),
    (
      "jit(step)/transpose(jvp(Net))/while/body/eval_jaxpr/checkpoint/"
      "rematted_computation/Block_0/LayerNorm_0/mul",
      ("Net", "Block_0", "LayerNorm_0"),
    ),
    ("jit(step)/jvp(mlp)/~/linear_0/dot_general", ("mlp", "linear_0")),
    ("jit(step)/cond/branch_1_fun/named/add", ("named",)),
    ("jit(step)/jvp(jit(relu))/max", ()),
    ("jit(step)/jvp(attend)/bqhd,bkhd->bhqk/dot_general", ("attend",)),
    ("jit(step)/layer(norm)/max", ("layer(norm)",)),
    ("jit(step)/unclosed(jvp(/max", ()),
    ("jit(step)/Net/transpose;jit(step)/other/reshape", ("Net",)),
    ("jit(step)/transpose;jit(step)/reshape", ()),
    ("add", ()),
    ("", ()),
  )
  def test_leaves_out_what_jax_writes(self, name, expected):
    self.assertEqual(origins.scopes(name), expected)

  def test_names_of_any_depth_end(self):
    name = "jvp(" * 5000 + "Net" + ")" * 5000
    self.assertLen(origins.scopes(f"{name}/add"), 1)

  @parameterized.parameters(
    ("jit(step)/jvp(Net)/dot_general", "forward"),
    ("jit(step)/transpose(jvp(Net))/dot_general", "backward"),
    ("a/transpose(jvp(N))/checkpoint/rematted_computation/b", "recomputed"),
    ("jit(step)/mul", "other"),
    # The operation, not the transformation.
    ("jit(step)/transpose", "other"),
  )
  def test_tells_the_parts_of_a_program(self, name, expected):
    self.assertEqual(origins.part(name), expected)


class PathsTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      "state.params['params']['Block_0']['Dense_0']['kernel']",
      ("Block_0", "Dense_0"),
      ("Block_0", "Dense_0", "kernel"),
    ),
    (
      "net.blocks[1].up.weight",
      ("blocks", "1", "up"),
      ("blocks", "1", "up", "weight"),
    ),
    (
      "params['mlp/~/linear_0']['w']",
      ("mlp", "linear_0"),
      ("mlp/~/linear_0", "w"),
    ),
    ("net.stem.kernel.value", ("stem",), ("stem", "kernel")),
    ("params['tokens']", ("tokens",), ("tokens",)),
    ("weights", (), ("weights",)),
  )
  def test_a_parameter_names_its_module(self, name, module, path):
    self.assertEqual(origins.module_of(name), module)
    self.assertEqual(origins.parameter_path(name), path)

  def test_keys_of_all_sorts(self):
    self.assertEqual(
      origins.keys("""s.a[0]['b c']["d'e"].f"""),
      ("s", "a", "0", "b c", "d'e", "f"),
    )


if __name__ == "__main__":
  absltest.main()
