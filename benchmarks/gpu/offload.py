"""An optimizer's state on the host: seconds hidden and seconds exposed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jaxmem
from benchmarks import zoo
from benchmarks.gpu import models, ways
from benchmarks.gpu.case import Context, Part, Row, cases, megabytes, number
from benchmarks.paired import Runner, run_round

_STATE = 1  # The optimizer's, among the arguments and among the results.
_NUM_ROUNDS, _NUM_REHEARSED = 14, 4
_NUM_MOVES = 3
_OF_COPIES = (
  "to_host_s",
  "from_host_s",
  "exposed_s",
  "hidden_s",
  "estimated_exposed_s",
)
_ONE_MEMORY = "a CPU has one memory: nothing is copied"
_TITLES = (
  "step",
  "way",
  "device MB",
  "step ms",
  "copies alone, out and in, ms",
  "hidden ms",
  "exposed ms",
  "exposed by estimate ms",
)


def _run(context: Context) -> None:
  """Times the step with its state on the device, and on the host."""
  name = context.case.name

  def build() -> zoo.Step:
    return models.build(name, is_rehearsal=context.is_rehearsal)

  step = on_host(build())
  plan = jaxmem.plan(step.function, *step.args, **step.jit_kwargs)
  found = [
    ways.by_jax(build(), "state on the device, jax.jit"),
    ways.by_jax(on_host(build()), "state on the host, jax.jit"),
    ways.by_jaxmem(on_host(build()), "state on the host, jaxmem"),
  ]
  runners = []
  for i, way in enumerate(found):
    # Their own arguments, and no copies of them, which leave the host.
    runner = Runner(way.compiled, ())
    runner.args = _arguments(way.step, is_on_host=i > 0)
    runners.append(runner)
  is_rehearsal = context.is_rehearsal
  for i in range(_NUM_REHEARSED if is_rehearsal else _NUM_ROUNDS):
    run_round(runners, i)
  state = runners[-1].args[_STATE]
  state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
  times = [ways.time_row(runner, runners[0]) for runner in runners]
  moves = _moving(state)
  for way, taken in zip(found, times, strict=True):
    row: Row = {"model": name, "state_bytes": state_bytes, **way.row(), **taken}
    if way is not found[0]:
      row |= _hidden(moves, taken["wall_s"] - times[0]["wall_s"])
    if way is found[-1] and plan.host is not None:
      row["estimated_exposed_s"] = plan.host.waiting_s
      row["estimated_s"] = plan.host.step_s
    context.emit(row)


def _hidden(moves: tuple[float, float] | None, longer_s: float) -> Row:
  """Returns how much of the copies' time a step does not take.

  Args:
    moves: Seconds to the host and back, with nothing else running.
    longer_s: By which the step takes longer than with its state on the device.
  """
  if moves is None:
    return ways.reasons(True, _ONE_MEMORY, *_OF_COPIES)
  return {
    "to_host_s": moves[0],
    "from_host_s": moves[1],
    "exposed_s": longer_s,
    "hidden_s": max(0.0, sum(moves) - longer_s),
  }


def on_host(step: zoo.Step) -> zoo.Step:
  """Returns a step whose optimizer's state is on the host."""
  function = jaxmem.on_host(step.function, _STATE, _STATE)
  args = list(step.args)
  args[_STATE] = jax.tree.map(_host_shape, args[_STATE])
  return dataclasses.replace(step, function=function, args=tuple(args))


def _host_shape(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  """Returns the shape of an array as it lies on the host, if there is one."""
  device = jax.devices()[0]
  if device.platform == "cpu":
    return leaf
  place = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)


def _arguments(step: zoo.Step, *, is_on_host: bool) -> list[Any]:
  args = list(zoo.concrete(step))
  if is_on_host:
    args[_STATE] = jaxmem.to_host(args[_STATE])
  return args


def _moving(state: Any) -> tuple[float, float] | None:
  """Returns the seconds a state takes to the host and back, alone."""
  if jax.default_backend() == "cpu":
    return None
  to_host_s, from_host_s = [], []
  for _ in range(_NUM_MOVES):
    start_s = time.perf_counter()
    here = jax.block_until_ready(jax.device_put(state, jax.memory.Space.Device))
    from_host_s.append(time.perf_counter() - start_s)
    start_s = time.perf_counter()
    jax.block_until_ready(jaxmem.to_host(here))
    to_host_s.append(time.perf_counter() - start_s)
  return float(np.median(to_host_s)), float(np.median(from_host_s))


def _cells(row: Row) -> Sequence[object]:
  moves = (row.get("to_host_s"), row.get("from_host_s"))
  return [
    row["model"],
    row["way"],
    megabytes(row["total_bytes"]),
    number(row["wall_s"], 1e3),
    " and ".join(filter(None, (number(move_s, 1e3) for move_s in moves))),
    number(row.get("hidden_s"), 1e3),
    number(row.get("exposed_s"), 1e3),
    number(row.get("estimated_exposed_s"), 1e3),
  ]


PART = Part(
  name="offload",
  question=(
    "With the optimizer's state on the host: how many seconds of its copies are"
    " hidden behind kernels, and how many does the step take longer?"
  ),
  cases=cases(
    ["gpt2_small", "llama_stack"],
    70,
    rehearsed=["llama_stack"],
    rehearsed_s=20,
  ),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
