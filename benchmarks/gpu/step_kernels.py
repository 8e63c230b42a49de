"""What the kernels of a whole step take, against what they are taken to."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence

from jaxmem_hlo.module import Instruction, Module

import jaxmem
from benchmarks import compiled_programs, zoo
from benchmarks.gpu import models, ways
from benchmarks.gpu.case import Context, Part, Row, cases, error_text, number
from benchmarks.gpu.device_time import Ran, kernels_of
from jaxmem import cost
from jaxmem.planning import Request

_SHARE = 0.5
_POLICY = "nothing_saveable"
_NUM_STEPS = 3
_CLASSES = ("products", "reductions", "others")
# Kernels of libraries, which are not named after an instruction.
_LIBRARY = re.compile("gemm|cutlass|splitk|xmma|nvjet|cudnn|conv", re.I)
_NO_KERNELS = "a CPU has no kernels that its profile names"
_TITLES = ("step", "way", "kernels", "of", "measured ms", "estimated ms", "")


def _run(context: Context) -> None:
  """Looks at a step under jax.jit, under a limit, and with a policy."""
  name = context.case.name

  def build(policy: str | None = None) -> zoo.Step:
    return models.build(name, is_rehearsal=context.is_rehearsal, policy=policy)

  plain = ways.by_jax(build())
  limit_bytes = plain.limit_at(_SHARE)
  for way_name, compile_way in (
    (plain.name, lambda: plain),
    (
      f"jaxmem, {_SHARE:.0%}",
      lambda: ways.by_jaxmem(build(), f"jaxmem, {_SHARE:.0%}", limit_bytes),
    ),
    (_POLICY, lambda: ways.by_jax(build(_POLICY), _POLICY)),
  ):
    try:
      for row in _rows(compile_way()):
        context.emit({"model": name, **row})
    except ways.FAILURES as error:
      context.emit({"model": name, "way": way_name, "error": error_text(error)})


def _rows(way: ways.Way) -> list[Row]:
  """Returns a row for each class of a step's kernels, and one for all."""
  module = compiled_programs.final_module(way.compiled)
  classes = _Classes(module)
  estimated = classes.estimated()
  args = ways.run_steps(way, 1)
  ran = kernels_of(lambda: ways.run_steps(way, _NUM_STEPS, args))
  measured, counts = classes.measured(k for k in ran if k.module == module.name)
  return [
    {
      "way": way.name,
      "class": group,
      "num_kernels": sum(counts[c] for c in chosen) / _NUM_STEPS,
      "measured_s": sum(measured[c] for c in chosen) / _NUM_STEPS
      if ran
      else None,
      "estimated_s": sum(estimated[c] for c in chosen),
      **ways.reasons(not ran, _NO_KERNELS),
    }
    for group, chosen in (*((c, [c]) for c in _CLASSES), ("all", _CLASSES))
  ]


class _Classes:
  """Tells which class a kernel of a module belongs to.

  Args:
    module: The module, as it was compiled.
  """

  def __init__(self, module: Module):
    self._module = module
    self._flops = cost.FlopCounter(module)
    self._of = {
      _kernel_name(i): self._class(i)
      for c in module.scheduled_ids
      for i in module.by_id[c].instructions
    }

  def estimated(self) -> dict[str, float]:
    """Returns estimated seconds of one run, by class."""
    found: dict[str, float] = collections.defaultdict(float)
    here = Request(options=jaxmem.Options())
    rates = here.device(here.platform).rates
    seconds = cost.instruction_seconds(self._module, rates)
    for instruction in self._module.entry.instructions:
      found[self._of[_kernel_name(instruction)]] += seconds[instruction.id]
    return found

  def measured(
    self, ran: Iterable[Ran]
  ) -> tuple[dict[str, float], collections.Counter[str]]:
    """Returns measured seconds, and how many kernels they are of, by class."""
    seconds: dict[str, float] = collections.defaultdict(float)
    counts: collections.Counter[str] = collections.Counter()
    for kernel in ran:
      of_library = "products" if _LIBRARY.search(kernel.name) else "others"
      group = self._of.get(kernel.name, of_library)
      seconds[group] += kernel.seconds
      counts[group] += 1
    return seconds, counts

  def _class(self, instruction: Instruction) -> str:
    if any(self._flops.count(instruction).products.values()):
      return "products"
    bodies = (self._module.by_id[c] for c in instruction.callees)
    opcodes = {i.opcode for body in bodies for i in body.instructions}
    return "reductions" if "reduce" in opcodes else "others"


def _kernel_name(instruction: Instruction) -> str:
  """Returns what XLA calls the kernel of an instruction."""
  return re.sub(r"\W", "_", instruction.name)


def _cells(row: Row) -> Sequence[object]:
  if "error" in row:
    return [row["model"], row["way"], row["error"], *[""] * 4]
  measured_s, estimated_s = row["measured_s"], row["estimated_s"]
  return [
    row["model"],
    row["way"],
    f"{row['num_kernels']:.0f}",
    row["class"],
    number(measured_s, 1e3, 2),
    number(estimated_s, 1e3, 2),
    number(measured_s, 1 / estimated_s, 2) if estimated_s else "",
  ]


PART = Part(
  name="step",
  question=(
    "What do the kernels of a step take, by the card's own clock, and what are"
    " they taken to by estimate?"
  ),
  cases=cases(list(models.MODELS), 60, rehearsed=["unet"], rehearsed_s=20),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
