"""Records scheduled HLO modules, as XLA shows them to the compiler hook.

    PYTHONPATH=. python tests/helpers/record_modules.py [NAME ...]

writes `testdata/NAME.hlo.gz` and `testdata/NAME.json` anew, for all modules
when none is named. Tests read them with `load`, and use `capture` for programs
of their own.
"""

import dataclasses
import functools
import gzip
import json
import os
import pathlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

import jaxmem
from benchmarks import zoo
from jaxmem import targets
from jaxmem.compiler import TracedStep, handling
from jaxmem.graph import from_hlo
from jaxmem.planning import reorder, request
from jaxmem.planning.decision import ModulePlan

_FOLDER = pathlib.Path(__file__).parents[1] / "testdata"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Captured:
  """A program as the hook saw it, and what XLA made of it.

  Attributes:
    module: The scheduled module, unchanged.
    platform: "cpu" or "cuda".
    temp_bytes: Temporaries, as `memory_analysis` reports them.
    compiled: The compiled program.
  """

  module: Module
  platform: str
  temp_bytes: int
  compiled: Any


def capture(
  function: Callable[..., Any],
  args: Sequence[Any],
  *,
  target: str | None = None,
  rewrite: Callable[[Module], Module] | None = None,
  **jit_kwargs: Any,
) -> Captured:
  """Compiles a function and returns the module that the hook was shown.

  Args:
    function: The function, not jitted.
    args: Its arguments or their shapes.
    target: A described device; None compiles for the default one.
    rewrite: Gives the module that XLA has to use instead.
    **jit_kwargs: Passed to `jax.jit`.
  """
  seen: list[tuple[bytes, str]] = []

  def handle(data: bytes, platform: str) -> bytes | None:
    seen.append((data, platform))
    if rewrite is None:
      return None
    return rewrite(Module.from_bytes(data)).to_bytes()

  jitted = jax.jit(function, **jit_kwargs)
  traced = targets.trace(jitted, args, target=target)
  with handling(handle) as options:
    compiled = TracedStep(traced, target).compile(options)
  ((data, platform),) = seen
  return Captured(
    module=Module.from_bytes(data),
    platform=platform,
    temp_bytes=temp_bytes(compiled),
    compiled=compiled,
  )


def temp_bytes(compiled: Any) -> int:
  """Returns a program's temporaries, as `memory_analysis` reports them."""
  return compiled.memory_analysis().temp_size_in_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """A step compiled as `jax.jit` and as `jaxmem.jit` do.

  Attributes:
    baseline: Compiled by `jax.jit`.
    planned: Compiled by `jaxmem.jit`.
    module: The module that was planned, unchanged.
    plan: What was decided for it.
  """

  baseline: Any
  planned: Any
  module: Module
  plan: ModulePlan

  @property
  def baseline_bytes(self) -> int:
    """Temporaries of XLA's own plan, measured."""
    return temp_bytes(self.baseline)

  @property
  def planned_bytes(self) -> int:
    """Temporaries of the plan, measured."""
    return temp_bytes(self.planned)


def compile_both(
  function: Callable[..., Any],
  args: Sequence[Any],
  kwargs: Mapping[str, Any] | None = None,
  *,
  target: str | None = None,
  compiler_options: Mapping[str, Any] | None = None,
  **jit_kwargs: Any,
) -> Pair:
  """Compiles a step with and without planning.

  Args:
    function: The step, not jitted.
    args: Its arguments or their shapes.
    kwargs: Its keyword arguments.
    target: A described device; None compiles for the default one.
    compiler_options: XLA's, for both.
    **jit_kwargs: Passed to `jax.jit` and `jaxmem.jit`.
  """
  seen: list[tuple[bytes, ModulePlan]] = []
  plan_module = reorder.plan_module

  def watch(module: Module, *args: Any) -> Any:
    data = module.to_bytes()
    planned = plan_module(module, *args)
    seen.append((data, planned.decision))
    return planned

  def compile_one(jit: Callable[..., Any]) -> Any:
    jitted = jit(function, **jit_kwargs)
    lowered = targets.lower(jitted, args, kwargs, target)
    options = {**targets.compile_options(target), **(compiler_options or {})}
    return lowered.compile(compiler_options=options)

  if target is not None:
    targets.get(target).topology()
  # What was compiled before would not be planned again.
  jax.clear_caches()
  baseline = compile_one(jax.jit)
  with mock.patch.object(request, "plan_module", watch):
    planned = compile_one(jaxmem.jit)
  ((data, plan),) = seen
  return Pair(
    baseline=baseline,
    planned=planned,
    module=Module.from_bytes(data),
    plan=plan,
  )


# Planning comes before code generation, so tests of what a plan computes need
# not wait for LLVM's optimisations.
_QUICK = {
  "xla_backend_optimization_level": 0,
  "xla_llvm_disable_expensive_passes": True,
}


@functools.cache
def zoo_pair(name: str, target: str | None = None) -> Pair:
  """Compiles the tiny step of a zoo model, batch 2; once in a process."""
  step = zoo.build(name, 2, size="tiny")
  return compile_both(
    step.function,
    step.args,
    target=target,
    compiler_options=_QUICK if target is None else None,
    **step.jit_kwargs,
  )


def shuffled(module: Module, platform: str, seed: int) -> dict[int, list[int]]:
  """Returns other valid orders of everything that a module's schedule runs.

  Args:
    module: A scheduled module.
    platform: "cpu" or "cuda".
    seed: The same for the same orders.

  Returns:
    Computation id -> instruction ids in execution order.
  """
  generator = random.Random(seed)
  model = AssignmentModel(module, platform)
  orders = {}
  for computation in model.analysis.dataflow.computations:
    found = from_hlo(model, computation)
    waiting = [set(node.predecessors) for node in found.graph.nodes]
    ready = [n for n, before in enumerate(waiting) if not before]
    order = []
    while ready:
      node = ready.pop(generator.randrange(len(ready)))
      order.append(node)
      for successor in found.graph.successors[node]:
        waiting[successor].discard(node)
        if not waiting[successor]:
          ready.append(successor)
    orders[computation.id] = found.schedule(order)
  return orders


# The recorded programs.


def mlp(weights, momenta, x):
  """A train step of three dense layers, with momentum."""

  def loss(weights):
    y = x
    for w in weights:
      y = jnp.tanh(y @ w)
    return jnp.mean(y**2)

  gradients = jax.grad(loss)(weights)
  momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
  weights = [w - 0.1 * m for w, m in zip(weights, momenta, strict=True)]
  return weights, momenta


def scan(weights, x):
  """A train step of layers that a loop runs over."""

  def loss(weights):
    def layer(y, w):
      return jnp.tanh(y @ w), jnp.sum(y)

    y, sums = jax.lax.scan(layer, x, weights)
    return jnp.mean(y**2) + jnp.mean(sums**2)

  return weights - 0.1 * jax.grad(loss)(weights)


def branch(table, index, x, flag):
  """A conditional, a scatter into a donated table, and a sort."""
  y = jax.lax.cond(
    flag,
    lambda y: jnp.tanh(y @ y),
    lambda y: jnp.cumsum(y, axis=0) @ y,
    x,
  )
  table = table.at[index].add(y[: index.shape[0], : table.shape[1]])
  order = jnp.sort(y, axis=0)
  return table, order[0] + jnp.sum(y @ order)


def convolutions(kernels, images):
  """A train step of convolutions, a normalization and a pooling."""

  def loss(kernels):
    y = images
    for kernel in kernels:
      y = jax.lax.conv_general_dilated(
        y, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
      )
      y = (y - y.mean((0, 1, 2))) * jax.lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
      y = jax.nn.relu(y)
    y = jax.lax.reduce_window(
      y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
    )
    return jnp.mean(y**2)

  gradients = jax.grad(loss)(kernels)
  return [k - 0.1 * g for k, g in zip(kernels, gradients, strict=True)]


def _shape(*dimensions: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(dimensions, dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Program:
  function: Callable[..., Any]
  args: tuple[Any, ...]
  donate: tuple[int, ...]
  target: str | None = None


_WEIGHTS = [_shape(96, 128), _shape(128, 128), _shape(128, 64)]
_MLP = (_WEIGHTS, _WEIGHTS, _shape(256, 96))
_SCAN = (_shape(6, 64, 64), _shape(32, 64))

PROGRAMS = {
  "mlp_cpu": _Program(function=mlp, args=_MLP, donate=(0, 1)),
  "scan_cpu": _Program(function=scan, args=_SCAN, donate=(0,)),
  "branch_cpu": _Program(
    function=branch,
    args=(
      _shape(40, 16),
      _shape(8, dtype=jnp.int32),
      _shape(32, 32),
      _shape(dtype=jnp.bool_),
    ),
    donate=(0,),
  ),
  "mlp_h200": _Program(function=mlp, args=_MLP, donate=(0, 1), target="h200"),
  "scan_h200": _Program(function=scan, args=_SCAN, donate=(0,), target="h200"),
  "convolutions_h200": _Program(
    function=convolutions,
    args=(
      [_shape(3, 3, 4, 16), _shape(3, 3, 16, 16)],
      _shape(4, 32, 32, 4),
    ),
    donate=(0,),
    target="h200",
  ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
  """A recorded module.

  Attributes:
    data: The serialized module.
    platform: "cpu" or "cuda".
    temp_bytes: Temporaries that XLA reported for its own schedule.
    shuffled_temp_bytes: The same, compiled with `orders`.
    orders: A shuffled schedule: computation id -> instruction ids.
  """

  data: bytes
  platform: str
  temp_bytes: int
  shuffled_temp_bytes: int
  orders: dict[int, list[int]]

  @property
  def module(self) -> Module:
    """A new copy of the module."""
    return Module.from_bytes(self.data)


@functools.cache
def load(name: str) -> Recorded:
  """Returns a recorded module and what XLA made of it."""
  data = gzip.decompress((_FOLDER / f"{name}.hlo.gz").read_bytes())
  fields = json.loads((_FOLDER / f"{name}.json").read_text())
  by_name = {c.name: c for c in Module.from_bytes(data).computations}
  orders = {}
  for computation, names in fields["orders"].items():
    ids = {i.name: i.id for i in by_name[computation].instructions}
    orders[by_name[computation].id] = [ids[n] for n in names]
  return Recorded(
    data=data,
    platform=fields["platform"],
    temp_bytes=fields["temp_bytes"],
    shuffled_temp_bytes=fields["shuffled_temp_bytes"],
    orders=orders,
  )


def _record(name: str) -> None:
  program = PROGRAMS[name]
  compile_it = functools.partial(
    capture,
    program.function,
    program.args,
    target=program.target,
    donate_argnums=program.donate,
  )
  own = compile_it()
  module = own.module
  orders = shuffled(module, own.platform, seed=0)
  other = compile_it(rewrite=lambda module: module.with_schedules(orders))
  _drop_folders(module)
  data = gzip.compress(module.to_bytes(), mtime=0)
  (_FOLDER / f"{name}.hlo.gz").write_bytes(data)
  fields = {
    "jax": jax.__version__,
    "platform": own.platform,
    "temp_bytes": own.temp_bytes,
    "shuffled_temp_bytes": other.temp_bytes,
    "orders": {
      module.by_id[key].name: [module.instruction(i).name for i in ids]
      for key, ids in orders.items()
    },
  }
  text = json.dumps(fields, indent=0) + "\n"
  (_FOLDER / f"{name}.json").write_text(text)
  print(f"{name}: {len(data)} bytes")


def _drop_folders(module: Module) -> None:
  """Keeps the names of source files, not where they lay."""
  names = module.proto.stack_frame_index.file_names
  names[:] = [os.path.basename(n) for n in names]
  for computation in module.computations:
    for instruction in computation.instructions:
      metadata = instruction.proto.metadata
      if metadata.source_file:
        metadata.source_file = os.path.basename(metadata.source_file)


if __name__ == "__main__":
  for wanted in sys.argv[1:] or PROGRAMS:
    _record(wanted)
