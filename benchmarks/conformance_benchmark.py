r"""Other projects' own tests with every compile planned, beside jax alone.

Runs each test file twice, in processes of their own: as it is, and with
`benchmarks.conformance_plugin`. A row for each file says how many tests passed
either way, which ended otherwise, and how many modules were planned and given
another plan than XLA's.

    make conformance JAX_TESTS=~/jax
    python -m benchmarks.conformance_benchmark --checkout=$HOME/jax \
      --files=tests/jet_test.py --output=benchmarks/results/conformance.jsonl

The checkout should be that of the version of jax that is installed. `python -m
benchmarks.conformance_report` fills docs/conformance.md from the rows.
"""

import pathlib

from absl import app, flags

from benchmarks.conformance_runs import Runs
from benchmarks.row_output import emit_row

# Where jaxmem stands between a program and its results: how jax traces, lowers,
# compiles, differentiates, caches, shards and exports.
JAX_FILES = [
  f"tests/{name}_test.py"
  for name in """
  aot api checkify compilation_cache custom_root debug_nans export jet
  lax_autodiff lax_control_flow lax_scipy linalg memories multi_device
  mutable_array nn ode pjit pmap random scipy_optimize shard_map state
  """.split()
]
_CHECKOUT = flags.DEFINE_string(
  "checkout", None, "Where the tests are: a checkout of jax.", required=True
)
_FILES = flags.DEFINE_list("files", JAX_FILES, "Test files, from there.")
_SELECT = flags.DEFINE_string("select", "", "What pytest's -k takes.")
_TIMEOUT_S = flags.DEFINE_float("timeout_s", 3600.0, "Seconds for one run.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


def main(argv: list[str]) -> None:
  """Runs all files."""
  del argv
  checkout = pathlib.Path(_CHECKOUT.value).expanduser()
  for file in _FILES.value:
    if not (checkout / file).exists():
      raise app.UsageError(
        f"{checkout} has no {file}; --checkout must be a checkout of jax, such"
        " as git clone https://github.com/jax-ml/jax makes."
      )
  runs = Runs(
    checkout=checkout, select=_SELECT.value, timeout_s=_TIMEOUT_S.value
  )
  for file in _FILES.value:
    emit_row(runs.measure(file), _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
