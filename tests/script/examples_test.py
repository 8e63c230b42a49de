"""The scripts in examples/: the same numbers planned as not, in fewer bytes."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import pytest
from absl.testing import absltest, parameterized

_EXAMPLES = next(
  folder / "examples"
  for folder in pathlib.Path(__file__).resolve().parents
  if (folder / "examples").is_dir()
)
# The libraries of each, beside jax and numpy. Any script that is not here
# fails the test of their names.
_PACKAGES = {
  "ahead_of_time": (),
  "equinox_donated": ("equinox", "optax"),
  "flax_linen": ("flax", "optax"),
  "flax_nnx": ("flax", "optax"),
  "fsdp": ("optax",),
  "haiku_mlp": ("haiku", "optax"),
  "keras_fit": ("keras",),
  "lora_optax": ("optax",),
  "shard_map": (),
}
# XLA's own order is the best one for the others, which are chains of matrices.
_CONVOLUTIONAL = (
  *("ahead_of_time", "equinox_donated", "flax_linen", "flax_nnx"),
  "keras_fit",
)
# All are float32. Under the limit these have layers recomputed from where they
# begin: another program, that XLA fuses otherwise, with other last bits.
_OTHER_KERNELS_UNDER_LIMIT = ("ahead_of_time", "equinox_donated")
_LIMIT_SHARE = 0.7


def _require(packages: tuple[str, ...]) -> None:
  """Skips a test without its packages; where CI=... is set it fails."""
  for package in packages:
    if importlib.util.find_spec(package) is not None:
      continue
    reason = f"{package} is not installed; it is one of .[test]."
    if os.environ.get("CI"):
      raise AssertionError(reason)
    raise unittest.SkipTest(reason)


def _run(*command: str) -> tuple[str, list[float], str]:
  """Returns the digest that a script printed, the losses, and stderr."""
  folders = [os.path.abspath(folder) for folder in filter(None, sys.path)]
  # As many devices as the script asks for.
  outside = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  done = subprocess.run(
    [sys.executable, *command],
    env={**outside, "PYTHONPATH": os.pathsep.join(folders)},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    raise AssertionError(f"{command} failed:\n{done.stderr}")
  *others, digest = done.stdout.splitlines()
  losses = re.findall(r"loss:? ([\d.]+)", "\n".join(others))
  return digest, [float(loss) for loss in losses], done.stderr


@pytest.mark.slow
class ExamplesTest(parameterized.TestCase):
  def test_all_are_tested_and_none_knows_jaxmem(self):
    scripts = {path.stem: path for path in _EXAMPLES.glob("*.py")}
    self.assertEqual(scripts.keys(), _PACKAGES.keys())
    for path in scripts.values():
      text = path.read_text(encoding="utf-8")
      self.assertNotIn("jaxmem", text)
      self.assertLess(len(text.splitlines()), 60)

  @parameterized.parameters(*_PACKAGES)
  def test_planned(self, name: str):
    _require(_PACKAGES[name])
    script = str(_EXAMPLES / f"{name}.py")
    digest, losses, _ = _run(script)
    self.assertLen(digest, 64)
    planned_digest, table, step = self._planned(script)
    self.assertEqual(planned_digest[0], digest)
    self.assertRegex(table, r"(?m)^train_step +1 ")
    self.assertLessEqual(step["planned_bytes"], step["xla_bytes"])
    if name in _CONVOLUTIONAL:
      self.assertLess(step["planned_bytes"], step["xla_bytes"])

    limit_bytes = int(_LIMIT_SHARE * step["xla_bytes"])
    limit = ("--only", "^train_step$", "--memory-limit", str(limit_bytes))
    (limited_digest, limited_losses), _, step = self._planned(script, *limit)
    self.assertEqual(step["limit_bytes"], limit_bytes)
    self.assertLessEqual(step["planned_bytes"], limit_bytes)
    if name not in _OTHER_KERNELS_UNDER_LIMIT:
      self.assertEqual(limited_digest, digest)
    self.assertLen(limited_losses, len(losses))
    for limited, loss in zip(limited_losses, losses, strict=True):
      self.assertAlmostEqual(limited, loss, places=5)

  def _planned(self, script: str, *options: str):
    """Returns digest and losses, the table, and the record of the step."""
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "records.json")
      words = ("--min-bytes", "0", "--json", str(path), *options, script)
      digest, losses, table = _run("-m", "jaxmem", "run", *words)
      records = json.loads(path.read_text(encoding="utf-8"))
    step = next(r for r in records if r["function"] == "train_step")
    return (digest, losses), table, step


if __name__ == "__main__":
  absltest.main()
