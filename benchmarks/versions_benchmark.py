"""What versions of a step take without edits, and were thought to take.

A step's blocks are recomputed with more and more kept (kind "blocks"), or its
loops stack less and less ("loops"), on a described device or a CPU. Each is
compiled up to its schedule and ordered. Temporaries are predicted; seconds are
estimates of whole schedules, and beside them stands what was estimated of each
version that keeps something from the one that keeps nothing.

    python -m benchmarks.versions_benchmark --output=rows.jsonl
    python -m benchmarks.versions_benchmark --kind=loops \
      --cases=scan_transformer:h200 --output=rows.jsonl
    python -m benchmarks.versions_benchmark --held_out \
      --cases=translation:cpu,sam_mlp:h200 --output=rows.jsonl

The tables of docs/blocks.md and docs/scan.md are made of
benchmarks/results/versions.jsonl by `python -m benchmarks.versions_report`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from absl import app, flags

import jaxmem
from benchmarks import held_out, zoo
from benchmarks.row_output import emit_row, versions
from jaxmem import targets
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.planning import LimitPlanner, Request
from jaxmem.versions import (
  BlockVersion,
  Version,
  blocks,
  keeping,
  scan,
)

_CASES = flags.DEFINE_list(
  "cases",
  ["gpt2_small:h200", "gpt2_small:cpu", "vit_b16:h200", "resnet50:h200"],
  "Models of the zoo, and what they are planned for.",
)
_HELD_OUT = flags.DEFINE_bool(
  "held_out", False, "Take steps of benchmarks/held_out, at their own batch."
)
_KIND = flags.DEFINE_enum("kind", "blocks", ["blocks", "loops"], "Versions.")
_BATCH = flags.DEFINE_integer("batch", 0, "Examples a step; 0: as in the docs.")
_SIZE = flags.DEFINE_enum("size", "full", zoo.SIZES, "Size of the models.")
_SHARES = flags.DEFINE_list(
  "shares", ["0.1", "0.25", "0.5", "0.75", "1"], "Kept, of what is worth it."
)
_SAVED_MB = flags.DEFINE_list(
  "saved_mb", ["1000", "3000", "5000", "6000", "all"], "What loops stack less."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_BATCHES = {"gpt2_small": 8, "scan_transformer": 8}
_USUAL_BATCH = 32


class _Case:
  """A step, and what it is planned for."""

  def __init__(self, model: str, target_name: str):
    self._target = targets.get(target_name)
    self._request = Request(options=jaxmem.Options(), target=self._target)
    self._device = self._request.device(self._target.platform)
    if _HELD_OUT.value:
      step = held_out.STEPS[model]()
      args, batch = jax.eval_shape(step.make_args), None
    else:
      batch = _BATCH.value or _BATCHES.get(model, _USUAL_BATCH)
      step = zoo.build(model, batch, size=_SIZE.value)
      args = step.args
    jitted = jax.jit(step.function, **step.jit_kwargs)
    traced = targets.trace(jitted, args, {}, self._target)
    self._written = TracedStep(traced, self._target)
    self._known = {
      "kind": _KIND.value,
      "model": model,
      "batch": batch,
      "size": _SIZE.value,
      "target": target_name,
      "versions": versions("jax", "jaxlib", "jaxmem"),
    }

  def rows(self) -> Iterator[dict[str, Any]]:
    """Yields the step as it is written, then its versions."""
    written = self._planner(Version(step=self._written))
    self._step_s = written.step_s
    yield self._row(written)
    yield from self._blocks() if _KIND.value == "blocks" else self._loops()

  def _blocks(self) -> Iterator[dict[str, Any]]:
    step, rates = blocks.BlockStep(self._written.jaxpr), self._device.rates
    written = Version(step=self._written)
    first = BlockVersion.every(written, step, self._device)
    every = self._planner(first.version)
    yield self._row(every, share=0.0, kept_bytes=0)
    nothing = blocks.BlockChoice(num_groups=step.blocks.number)
    everything = dataclasses.replace(
      nothing, keep_bytes=first.recomputed.dropped_bytes
    )
    most_bytes = step.recompute(everything, rates).kept_bytes
    shares = [float(share) for share in _SHARES.value]
    for kept in keeping(
      *(written, step, nothing, first.recomputed),
      amounts=[int(share * most_bytes) for share in shares],
      added_s=every.step_s - self._step_s,
      device=self._device,
    ):
      choice = kept.version.choice
      assert choice is not None
      yield self._row(
        self._planner(kept.version),
        share=round(choice.keep_bytes / most_bytes, 3),
        kept_bytes=kept.recomputed.kept_bytes,
        estimated_extra=round(kept.added_s / self._step_s, 5),
      )

  def _loops(self) -> Iterator[dict[str, Any]]:
    for text in _SAVED_MB.value:
      asked = "all" if text == "all" else int(1e6 * float(text))
      for keep_bits in (True, False):
        rewritten = scan.rewrite_step(
          self._written.jaxpr, asked, self._device.rates, keep_bits=keep_bits
        )
        step = self._written.with_jaxpr(rewritten.closed_jaxpr)
        yield self._row(
          self._planner(Version(step=step)),
          asked_bytes=asked,
          saved_bytes=rewritten.saved_bytes,
          keep_bits=keep_bits,
        )

  def _planner(self, version: Version) -> LimitPlanner:
    """Compiles a version up to its schedule, and orders it."""
    with ScheduleCapture(self._request) as schedules:
      module = schedules.module(version.step)
    return self._request.planner(module, self._target.platform)

  def _row(self, planner: LimitPlanner, **found: Any) -> dict[str, Any]:
    return {
      **self._known,
      **found,
      "xla_temp_bytes": planner.xla_bytes - planner.fixed_bytes,
      "temp_bytes": planner.total_bytes - planner.fixed_bytes,
      "step_s": planner.step_s,
      "extra": round(planner.step_s / self._step_s - 1, 5),
    }


def main(argv: list[str]) -> None:
  """Prints the rows of all cases."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  for case in _CASES.value:
    model, _, target = case.partition(":")
    for row in _Case(model, target).rows():
      emit_row(row, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
