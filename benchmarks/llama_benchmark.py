"""Llama-3-8B's train step: MaxText's policies and plans at equal bytes, H200.

Nothing runs: programs are compiled for a described H200, bytes are those of
XLA's `memory_analysis`, seconds are estimates of the schedule that XLA ends
with. One row is for jax.jit, one for each policy of MaxText's around each
layer, and after it one for jaxmem on the step without any, with the bytes of
the policy's program as its limit; and one for each other limit.

    JAXMEM_CACHE_DIR="" python -m benchmarks.llama_benchmark \\
      --form=unrolled --layers=32 --output=benchmarks/results/llama.jsonl

`python -m benchmarks.llama_report` makes tables of the rows.
"""

import sys
import time
from typing import Any, cast

import jax
import jax.numpy as jnp
from absl import app, flags

import jaxmem
from benchmarks import llama, llama_rows
from benchmarks.row_output import emit_row

_FORM = flags.DEFINE_enum("form", "scanned", llama.FORMS, "Of the layers.")
_LAYERS = flags.DEFINE_integer("layers", 2, "How many; Llama-3-8B has 32.")
_ROWS = flags.DEFINE_list("rows", [*llama.POLICIES], "Which policies.")
_LIMITS_GB = flags.DEFINE_list("limits_gb", [], "Other limits, in GB.")
_TARGET = flags.DEFINE_string("target", "h200", "Device to compile for.")
_EFFORT = flags.DEFINE_enum(
  "effort", "normal", ["fast", "normal", "prove"], "Effort of the search."
)
_ATTENTION = flags.DEFINE_enum(
  "attention", "cudnn", ["cudnn", "xla"], "Implementation of attention."
)
_XLA_REMAT = flags.DEFINE_bool(
  "xla_remat", True, "Whether XLA may recompute what does not fit its share."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


def _load_planner() -> None:
  """Compiles something small for the target, so that all is loaded."""
  x = jnp.ones((8, 8))
  for limit in (None, "1GiB"):
    jaxmem.plan(
      lambda x: jnp.sin(x @ x) @ x,
      x,
      target=_TARGET.value,
      memory_limit=limit,
    )


def main(argv: list[str]) -> None:
  """Prints the rows of one step."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  jax.config.update("jax_compiler_enable_remat_pass", _XLA_REMAT.value)
  _load_planner()
  shape = llama.Shape(num_layers=_LAYERS.value)
  start_s = time.perf_counter()
  asked = llama_rows.Asked(
    shape=shape,
    form=cast(llama.Form, _FORM.value),
    policies=_ROWS.value,
    limits_bytes=[int(1e9 * float(limit)) for limit in _LIMITS_GB.value],
    target=_TARGET.value,
    effort=cast(Any, _EFFORT.value),
    attention=cast(llama.Attention, _ATTENTION.value),
    has_xla_remat=_XLA_REMAT.value,
  )
  for row in llama_rows.rows(asked):
    emit_row(row, _OUTPUT.value)
    elapsed_s = time.perf_counter() - start_s
    name = row.get("policy") or "no policy"
    print(
      f"{elapsed_s:6.0f} s: {row['kind']}, {name}", file=sys.stderr, flush=True
    )


if __name__ == "__main__":
  app.run(main)
