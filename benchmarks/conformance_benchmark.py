r"""Other projects' own tests with every compile planned, beside jax alone.

Runs each test file twice, in processes of their own: as it is, and with
`benchmarks.conformance_plugin`. A row for each file says how many tests passed
either way, which ended otherwise, and how many modules were planned and given
another plan than XLA's.

    make conformance JAX_TESTS=~/jax
    python -m benchmarks.conformance_benchmark --checkout=$HOME/jax \
      --files=tests/jet_test.py --output=benchmarks/results/conformance.jsonl
    python -m benchmarks.conformance_benchmark --package=optax
    python -m benchmarks.conformance_benchmark --checkout=$HOME/flax \
      --project=flax --files=tests/nnx,tests/linen

The checkout should be that of the version that is installed. `python -m
benchmarks.conformance_report` fills docs/conformance.md from the rows.
"""

import importlib.util
import pathlib

from absl import app, flags

from benchmarks.conformance_runs import JAX_FILES, Runs
from benchmarks.row_output import emit_row

_CHECKOUT = flags.DEFINE_string(
  "checkout", None, "Where the tests are: a checkout of jax, or a library's."
)
_PACKAGE = flags.DEFINE_string(
  "package", None, "Or an installed package that holds its tests."
)
_PROJECT = flags.DEFINE_string("project", "jax", "Whose the checkout is.")
_FILES = flags.DEFINE_list(
  "files",
  None,
  "Test files and folders, from there. By default those of jax that docs/"
  "conformance.md names, or the whole package.",
)
_SELECT = flags.DEFINE_string("select", "", "What pytest's -k takes.")
_ENVIRONMENT = flags.DEFINE_list(
  "environment", [], "Variables for the tests: NAME=value."
)
_TIMEOUT_S = flags.DEFINE_float("timeout_s", 3600.0, "Seconds for one run.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


def _folder_of(package: str) -> pathlib.Path:
  """Returns the folder that an installed package is in."""
  spec = importlib.util.find_spec(package)
  if spec is None or not spec.submodule_search_locations:
    raise app.UsageError(f"--package={package}: pip install {package}")
  return pathlib.Path(spec.submodule_search_locations[0]).parent


def main(argv: list[str]) -> None:
  """Runs all files."""
  del argv
  package, checkout = _PACKAGE.value, _CHECKOUT.value
  if bool(package) == bool(checkout):
    raise app.UsageError("Name either a --checkout or a --package.")
  if checkout:
    folder = pathlib.Path(checkout).expanduser()
    if _PROJECT.value != "jax" and not _FILES.value:
      raise app.UsageError(
        f"Say with --files where the tests of {_PROJECT.value} are, such as"
        " --files=tests."
      )
  else:
    folder = _folder_of(package or "")
  files = _FILES.value or ([package] if package else JAX_FILES)
  for file in files:
    if not (folder / file).exists():
      raise app.UsageError(
        f"{folder} has no {file}; --checkout must be a checkout of jax, such"
        " as git clone https://github.com/jax-ml/jax makes."
      )
  runs = Runs(
    checkout=folder,
    project=package or _PROJECT.value,
    is_installed=package is not None,
    select=_SELECT.value,
    environment=dict(each.split("=", 1) for each in _ENVIRONMENT.value),
    timeout_s=_TIMEOUT_S.value,
  )
  for file in files:
    emit_row(runs.measure(file), _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
