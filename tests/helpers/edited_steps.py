"""Edits of real steps: random valid ones, and compiles that make them."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import record_modules
from jaxmem_hlo import replay
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module
from jaxmem_hlo.module.opcodes import RENAMES
from jaxmem_hlo.replay.placed_values import Fault

from jaxmem import targets
from jaxmem.rewrite import (
  RecomputeError,
  RecomputeRules,
  apply_edits,
  recomputable,
)
from jaxmem.rewrite.edits import Edits, Recompute, Value

Edit = Callable[[Module, str], Module]


@dataclasses.dataclass(kw_only=True)
class Edited:
  """A step that was edited while it was compiled.

  Attributes:
    compiled: The program.
    before: The module that XLA gave.
    after: The module that XLA got back.
    predicted_bytes: Temporaries of that, by the assignment model.
    predicted_host_bytes: Those in the host's memory.
    faults: What a replay of the predicted assignment found.
  """

  compiled: Any
  before: Module
  after: Module
  predicted_bytes: int
  predicted_host_bytes: int
  faults: tuple[Fault, ...]

  @property
  def temp_bytes(self) -> int:
    return record_modules.temp_bytes(self.compiled)

  @property
  def host_bytes(self) -> int:
    return self.compiled.memory_analysis().host_temp_size_in_bytes


def compile_edited(
  step: Callable[..., Any],
  args: Sequence[Any],
  edit: Edit,
  *,
  target: str | None = None,
  **jit_kwargs: Any,
) -> Edited:
  """Compiles a step and edits its scheduled module in XLA's hook."""
  platform = targets.get(target).platform
  after: list[Module] = []
  errors: list[Exception] = []

  def rewrite(module: Module) -> Module:
    try:
      after.append(edit(module, platform))
    except Exception as error:
      # The hook would keep XLA's plan, and the caller would not know why.
      errors.append(error)
      raise
    return after[0]

  captured = record_modules.capture(
    step, args, target=target, rewrite=rewrite, **jit_kwargs
  )
  if errors:
    raise errors[0]
  assignment = AssignmentModel(after[0], platform).assign()
  report = replay.check_assignment(after[0], assignment.to_proto(), platform)
  return Edited(
    compiled=captured.compiled,
    before=captured.module,
    after=after[0],
    predicted_bytes=assignment.temp_bytes,
    predicted_host_bytes=sum(
      a.size_bytes for a in assignment.allocations if a.memory_space == 5
    ),
    faults=report.faults,
  )


def values(module: Module, rules: RecomputeRules) -> list[Value]:
  """Returns all values of the entry that may be made again."""
  found = []
  for instruction in module.schedule(module.entry.id):
    count = len(instruction.shape.tuple_shapes)
    for output in range(count) if count else (None,):
      value = Value(instruction=instruction.id, output=output)
      if not rules.why_not(value):
        found.append(value)
  return found


def random_recomputes(
  module: Module, rules: RecomputeRules, seed: int, count: int
) -> Edits:
  """Returns recomputes at random places, mostly before uses of the value.

  Those that the rewriter refuses, given the ones before, are left out.
  """
  generator = random.Random(seed)
  schedule = module.schedule(module.entry.id)
  times = {i.id: t for t, i in enumerate(schedule)}
  candidates = values(module, rules)
  trees = rules.analysis.dataflow.trees
  chosen: tuple[Recompute, ...] = ()
  for _ in range(count if candidates else 0):
    value = generator.choice(candidates)
    made = times[value.instruction]
    index = () if value.output is None else (value.output,)
    uses = [
      times[use.instruction.id]
      for use in trees[value.instruction][index].uses
      if use.instruction.id in times
      and use.instruction.opcode not in RENAMES
      and times[use.instruction.id] > made
    ]
    if generator.random() < 0.3 or not uses:
      uses = range(made + 1, len(schedule))
    before = schedule[generator.choice(uses)].id
    more = (*chosen, Recompute(value=value, before=before))
    try:
      apply_edits(module, Edits(recomputes=more), rules=rules)
    except RecomputeError:
      continue
    chosen = more
  return Edits(recomputes=chosen)


def edit_randomly(
  seed: int, count: int, made: list[Edits] | None = None
) -> Edit:
  """Returns an edit of random recomputes; `made` takes what they were."""

  def edit(module: Module, platform: str) -> Module:
    del platform
    rules = recomputable(module)
    edits = random_recomputes(module, rules, seed, count)
    if made is not None:
      made.append(edits)
    return apply_edits(module, edits, rules=rules)

  return edit
