"""What the zoo's steps cost under the allocators of the literature.

The table of `python -m jaxmem memcost` for every model, the whole step and its
forward pass: one JSON row each. Steps are traced; nothing is compiled or run.
With --granularity=coarse, the equations of a layer are one operator, as in the
frameworks whose allocators these are; "fine" takes some ten seconds for large
models.

    python -m benchmarks.memcost_benchmark --output=rows.jsonl
"""

import dataclasses
import time
from typing import Any

from absl import app, flags

from benchmarks import zoo
from benchmarks.row_output import emit_row, versions
from jaxmem.experimental import jaxpr_order
from jaxmem.experimental.allocators import memcost

_MODELS = flags.DEFINE_list("models", [], "Models of the zoo; all if empty.")
_BATCHES = flags.DEFINE_list("batches", ["1", "32"], "Examples per step.")
_SIZE = flags.DEFINE_enum("size", "full", zoo.SIZES, "Size of the models.")
_GRANULARITY = flags.DEFINE_enum(
  "granularity", "coarse", ["coarse", "fine"], "What an operator is."
)
_DEVICE_GIB = flags.DEFINE_integer("device_gib", 80, "Memory of the device.", 1)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


def measure(model: str, batch: int) -> list[dict[str, Any]]:
  """Returns the rows of one step: the whole of it, and its forward pass."""
  step = zoo.build(model, batch, size=_SIZE.value)
  program = jaxpr_order.from_function(
    step.function, *step.args, jit_kwargs=dict(step.jit_kwargs)
  )
  allocators = memcost.strategies(_DEVICE_GIB.value << 30)
  extensions = memcost.Extensions(is_coarse=_GRANULARITY.value == "coarse")
  rows = []
  start = time.process_time()
  for table in memcost.tables(program, allocators, extensions):
    row = dataclasses.asdict(table)
    costs = row.pop("costs")
    reserved = {c["strategy"]: c["reserved_bytes"] for c in costs}
    baseline = reserved[memcost.BASELINE]
    rows.append(
      {
        "model": model,
        "batch": batch,
        "size": _SIZE.value,
        "granularity": _GRANULARITY.value,
        **row,
        "mxnet_share": reserved["mxnet in-place + sharing"] / baseline,
        "jaxmem_share": reserved["jaxmem placement, in-place"] / baseline,
        "reserved_bytes": reserved,
        "num_added_edges": {c["strategy"]: c["num_added_edges"] for c in costs},
        "cpu_s": round(time.process_time() - start, 2),
        "versions": versions("jax", "jaxmem"),
      }
    )
    start = time.process_time()
  return rows


def main(argv: list[str]) -> None:
  """Measures all cases."""
  del argv
  for model in _MODELS.value or zoo.MODELS:
    for batch in map(int, _BATCHES.value):
      for row in measure(model, batch):
        emit_row(row, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
