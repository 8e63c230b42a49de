"""Small problems of recompute choice, by hand and at random."""

import dataclasses
import itertools
import random
from collections.abc import Iterator

import budget_validate

from jaxmem.budget.problem import BudgetProblem, Step, StoredValue, Unit
from jaxmem.budget.profile import Event
from jaxmem.rewrite.edits import Edits, Value


def chain(
  num_layers: int, size_bytes: int = 10, seconds: float = 1.0
) -> BudgetProblem:
  """Builds forward and backward of a chain.

  Forward step k makes a_k from a_(k-1); backward step k, in reverse order,
  makes g_k from g_(k+1) and a_k. All values have one size; only forward steps
  may run again, each for `seconds`.
  """
  end = 2 * num_layers
  uses = [sorted({k + 1, end - 1 - k} - {k}) for k in range(num_layers)]
  values = [
    StoredValue(
      name=f"a{k}", size_bytes=size_bytes, producer=k, uses=tuple(uses[k])
    )
    for k in range(num_layers)
  ]
  for step in range(num_layers, end):
    is_last = step == end - 1
    values.append(
      StoredValue(
        name=f"g{end - 1 - step}",
        size_bytes=size_bytes,
        producer=step,
        uses=() if is_last else (step + 1,),
        is_result=is_last,
      )
    )
  units = [
    Unit(
      step=k,
      outputs=(k,),
      inputs=(k - 1,) if k else (),
      seconds=seconds,
      value=Value(instruction=100 + k),
    )
    for k in range(num_layers)
  ]
  steps = [
    Step(instruction=100 + s, seconds=seconds, name=f"s{s}") for s in range(end)
  ]
  return BudgetProblem(
    steps=tuple(steps), values=tuple(values), units=tuple(units)
  )


def common_inputs(num_inputs: int, num_values: int) -> BudgetProblem:
  """Builds values that are all made of the same inputs, and read in reverse.

  An input has 4 bytes, a value 10; the values may run again, for a second each.
  """
  forward = num_inputs + num_values
  end = forward + num_values
  values = [
    StoredValue(
      name=f"i{k}",
      size_bytes=4,
      producer=k,
      uses=tuple(range(num_inputs, forward)),
    )
    for k in range(num_inputs)
  ]
  values += [
    StoredValue(
      name=f"v{k}",
      size_bytes=10,
      producer=num_inputs + k,
      uses=(end - 1 - k,),
    )
    for k in range(num_values)
  ]
  units = [
    Unit(
      step=num_inputs + k,
      outputs=(num_inputs + k,),
      inputs=tuple(range(num_inputs)),
      seconds=1.0,
      value=Value(instruction=100 + num_inputs + k),
    )
    for k in range(num_values)
  ]
  steps = [Step(instruction=100 + s, name=f"s{s}") for s in range(end)]
  return BudgetProblem(
    steps=tuple(steps), values=tuple(values), units=tuple(units)
  )


def residual_chain(num_layers: int) -> BudgetProblem:
  """Builds forward and backward of residual blocks of two dense layers.

  Each block reads the sum `x` that it adds to twice, so that what runs again
  is fed in many ways; only steps of the forward pass may run again.
  """
  sizes: dict[str, int] = {}
  reads: list[list[int]] = []

  def step(name: str, size_bytes: int, *inputs: str) -> None:
    names = [*sizes]
    reads.append([names.index(each) for each in inputs])
    sizes[name] = size_bytes

  step("x0", 10)
  for k in range(num_layers):
    step(f"scale{k}", 1, f"x{k}")
    step(f"norm{k}", 10, f"x{k}", f"scale{k}")
    step(f"inner{k}", 40, f"norm{k}")
    step(f"act{k}", 40, f"inner{k}")
    step(f"x{k + 1}", 10, f"x{k}", f"act{k}")
  num_forward = len(sizes)
  step(f"g{num_layers}", 10, f"x{num_layers}")
  for k in reversed(range(num_layers)):
    step(f"outer_gradient{k}", 1, f"g{k + 1}", f"act{k}")
    step(f"d{k}", 40, f"g{k + 1}", f"inner{k}")
    step(f"inner_gradient{k}", 1, f"d{k}", f"norm{k}")
    step(f"g{k}", 10, f"g{k + 1}", f"d{k}", f"x{k}", f"scale{k}")
  values = []
  for value, (name, size_bytes) in enumerate(sizes.items()):
    uses = tuple(s for s, inputs in enumerate(reads) if value in inputs)
    values.append(
      StoredValue(
        name=name,
        size_bytes=size_bytes,
        producer=value,
        uses=uses,
        is_result=not uses,
      )
    )
  units = [
    Unit(
      step=s,
      outputs=(s,),
      inputs=tuple(reads[s]),
      seconds=1.0,
      value=Value(instruction=100 + s),
    )
    for s in range(num_forward)
  ]
  steps = [Step(instruction=100 + s, name=v.name) for s, v in enumerate(values)]
  return BudgetProblem(
    steps=tuple(steps), values=tuple(values), units=tuple(units)
  )


def random_problem(seed: int, num_steps: int) -> BudgetProblem:
  """Builds a problem with in-place writes, sharing, and several outputs."""
  source = random.Random(seed)
  producers: list[int | None] = [None]
  reads: list[list[int]] = []
  made: list[list[int]] = []
  for step in range(num_steps):
    count = min(len(producers), source.choice((1, 1, 2)))
    reads.append(source.sample(range(len(producers)), count))
    made.append([])
    for _ in range(source.choice((1, 1, 1, 2))):
      made[-1].append(len(producers))
      producers.append(step)
  sizes = [source.randint(1, 9) for _ in producers]
  uses = [
    tuple(s for s in range(num_steps) if value in reads[s])
    for value in range(len(producers))
  ]
  is_result = [source.random() < (0.6 if not used else 0.05) for used in uses]
  is_split = [len(m) > 1 and source.random() < 0.6 for m in made]
  values = tuple(
    StoredValue(
      name=f"v{value}",
      size_bytes=sizes[value],
      producer=producer,
      uses=uses[value],
      is_result=is_result[value],
      overwritten_at=_overwriter(
        source, producer, uses[value], is_result[value], num_steps
      ),
      is_droppable=bool(
        producer is not None and is_split[producer] and uses[value]
      ),
    )
    for value, producer in enumerate(producers)
  )
  shares = [
    tuple(
      (a, b) for a in reads[step] for b in made[step] if source.random() < 0.4
    )
    for step in range(num_steps)
  ]
  return BudgetProblem(
    steps=tuple(
      Step(
        instruction=100 + step,
        seconds=1.0,
        extra_bytes=source.choice((0, 0, 0, 3)),
        shares=shares[step],
        name=f"s{step}",
      )
      for step in range(num_steps)
    ),
    values=values,
    units=tuple(
      _units(source, values, reads, made, shares, is_split, num_steps)
    ),
  )


def _overwriter(
  source: random.Random,
  producer: int | None,
  uses: tuple[int, ...],
  is_result: bool,
  num_steps: int,
) -> int | None:
  first = max([-1 if producer is None else producer + 1, *uses])
  if is_result or first >= num_steps or source.random() < 0.7:
    return None
  return source.randint(max(first, 0), num_steps - 1)


def _units(
  source: random.Random,
  values: tuple[StoredValue, ...],
  reads: list[list[int]],
  made: list[list[int]],
  shares: list[tuple[tuple[int, int], ...]],
  is_split: list[bool],
  num_steps: int,
) -> Iterator[Unit]:
  for step in range(num_steps):
    groups = [made[step]]
    if is_split[step]:
      groups = [[v] for v in made[step]]
    for number, group in enumerate(groups):
      if any(values[v].is_result for v in group) or source.random() < 0.15:
        continue
      yield Unit(
        step=step,
        outputs=tuple(group),
        inputs=tuple(reads[step]),
        seconds=float(source.randint(1, 9)),
        value=Value(
          instruction=100 + step, output=number if is_split[step] else None
        ),
        shares=tuple(p for p in shares[step] if p[1] in group),
      )


def movable(problem: BudgetProblem) -> BudgetProblem:
  """Lets every value but results and those of the start go to the host."""
  return dataclasses.replace(
    problem,
    values=tuple(
      dataclasses.replace(v, moves_as=Value(instruction=1000 + n))
      if v.producer is not None and not v.is_result
      else v
      for n, v in enumerate(problem.values)
    ),
  )


def every_event(problem: BudgetProblem) -> list[Event]:
  """Returns all runs that do not come before what they repeat."""
  return [
    (unit, before)
    for unit, made in enumerate(problem.units)
    for before in range(made.step + 1, problem.num_steps)
  ]


def all_plans(
  problem: BudgetProblem, most_events: int
) -> list[tuple[int, float, tuple[Event, ...]]]:
  """Returns (peak, seconds, events) of every plan without faults."""
  events = every_event(problem)
  plans = []
  for count in range(min(most_events, len(events)) + 1):
    for chosen in itertools.combinations(events, count):
      edits = Edits(recomputes=problem.as_edits(chosen))
      seen = budget_validate.check(problem, edits)
      if not seen.faults:
        plans.append((seen.peak_bytes, seen.seconds, chosen))
  return plans
