"""Where CP-SAT proves an order optimal, and where only it does.

Plans train steps of growing depth, as graphs of jaxprs ("jaxpr", with XLA's
in-place operations, and "eager", without) and of modules compiled for the CPU
("hlo"), and random graphs, contracted: by the search with its minimum cuts
alone, by destructive probing, and by three programs of CP-SAT, all from the
search's order and bound. Prints a JSON row per graph; nothing is run.

    python -m benchmarks.exact_benchmark --output=benchmarks/results/exact.jsonl
"""

import contextlib
import platform
import random
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import linen as nn
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from benchmarks.row_output import emit_row
from benchmarks.synthetic import random_graph
from benchmarks.zoo import layers, training, vision
from jaxmem import cpsat, extract, jaxpr, olla
from jaxmem.graph import Graph
from jaxmem.order import contract, cpsat_order, refute, search
from jaxmem.version import __version__

_SOURCES = flags.DEFINE_list(
  "sources", ["eager", "jaxpr", "hlo", "random"], "Kinds of graphs."
)
_DEPTHS = flags.DEFINE_list(
  "depths", ["1", "2", "3", "4", "6", "8", "12"], "Layers."
)
_LIMIT = flags.DEFINE_float("limit", 0.5, "Deterministic time of a program.")
_MAX_NODES = flags.DEFINE_integer("max_nodes", 200, "Contracted, for CP-SAT.")
_MAX_FLOWS = flags.DEFINE_integer("max_flows", 5000, "Of the probing.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


class Mlp(nn.Module):
  """Dense layers, wide and narrow by turns."""

  depth: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for layer in range(self.depth):
      x = nn.tanh(nn.Dense(256 if layer % 2 else 64)(x))
    return nn.Dense(10)(x)


class Wired(nn.Module):
  """Small layers of random widths, wired at random: two for each of depth."""

  depth: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    generator = random.Random(self.depth)
    values = [x]
    unread = {0}
    for _ in range(2 * self.depth):
      sources = sorted({generator.randrange(len(values)) for _ in range(2)})
      unread -= {*sources}
      unread.add(len(values))
      joined = jnp.concatenate([values[s] for s in sources], axis=-1)
      width = 16 * generator.randint(1, 16)
      values.append(nn.tanh(nn.Dense(width)(joined)))
    last = jnp.concatenate([values[s] for s in sorted(unread)], axis=-1)
    return nn.Dense(10)(last)


class Attention(nn.Module):
  """Transformer blocks."""

  depth: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for _ in range(self.depth):
      x = layers.Block(2, causal=True)(x)
    return nn.Dense(10)(x.mean(1))


class Convolutions(nn.Module):
  """Residual bottlenecks."""

  depth: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for _ in range(self.depth):
      x = vision.Bottleneck(8, 1)(x)
    return nn.Dense(10)(x.mean((1, 2)))


_MODELS: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
  "mlp": (Mlp, (64, 32)),
  "wired": (Wired, (64, 32)),
  "attention": (Attention, (8, 16, 32)),
  "convolutions": (Convolutions, (8, 16, 16, 32)),
}


# Of the random graphs, in place of models.
_SEEDS = ("0", "1", "2")


def build(model: str, depth: int) -> training.Step:
  """Builds a train step of so many layers."""
  module, shape = _MODELS[model]
  return training.make_step(
    f"{model}_{depth}",
    module(depth),
    [
      jax.ShapeDtypeStruct(shape, jnp.float32),
      jax.ShapeDtypeStruct(shape[:1], jnp.int32),
    ],
    num_classes=10,
    optimizer=optax.sgd(0.1, momentum=0.9),
  )


def build_graph(step: training.Step, source: str) -> Graph:
  """Returns the graph of a step: of its jaxpr, or compiled for the CPU."""
  jit_kwargs = dict(step.jit_kwargs)
  if source in ("eager", "jaxpr"):
    memory: jaxpr.MemoryModel = "eager" if source == "eager" else "xla"
    return jaxpr.from_function(
      step.function, *step.args, jit_kwargs=jit_kwargs, model=memory
    ).graph
  lowered = jax.jit(step.function, **jit_kwargs).lower(*step.args)
  compiled = lowered.compile()
  executable = compiled.runtime_executable()
  assert executable is not None, "XLA:CPU keeps its modules."
  module = executable.hlo_modules()[0]
  parsed = Module.from_bytes(module.as_serialized_hlo_module_proto())
  model = AssignmentModel(parsed, "cpu")
  return extract.from_hlo(model, parsed.entry).graph


def measure(model: str, depth: int, source: str) -> dict[str, Any]:
  """Returns the row of one graph; random ones have 10 nodes for each layer."""
  if source == "random":
    whole = random_graph(10 * depth, seed=int(model))
  else:
    whole = build_graph(build(model, depth), source)
  contraction = contract(whole)
  graph = contraction.graph
  start_s = time.process_time()
  found = search(graph, contraction.shrink(tuple(range(whole.num_nodes))))
  seconds = time.process_time() - start_s
  order, bound = found.order, found.lower_bound_bytes
  row: dict[str, Any] = {
    "source": source,
    "model": model,
    "depth": depth,
    "num_nodes": whole.num_nodes,
    "num_contracted": graph.num_nodes,
    "num_shares": len(graph.arrays.shares),
    "search": _answer(found.peak_bytes, bound, seconds),
  }
  if bound == found.peak_bytes:
    return row
  start_s = time.process_time()
  refuted = refute(graph, found.peak_bytes - 1, max_flows=_MAX_FLOWS.value)
  row["probing"] = _answer(
    found.peak_bytes,
    found.peak_bytes if refuted.refuted else bound,
    time.process_time() - start_s,
  )
  if graph.num_nodes > _MAX_NODES.value:
    return row
  row["done"] = _solve(
    lambda: _bytes(
      cpsat_order(
        graph,
        order,
        lower_bound_bytes=bound,
        max_deterministic_time=_LIMIT.value,
      )
    )
  )
  # OLLA's edges cannot share: its programs are about the graph without, whose
  # optimum may be higher.
  if not row["num_shares"]:
    for formulation in ("boolean", "interval"):
      options = olla.Options(
        formulation=formulation, max_deterministic_time=_LIMIT.value
      )
      row[formulation] = _solve(
        lambda options=options: _values(olla.solve_order(graph, order, options))
      )
  return row


def _bytes(result: Any) -> tuple[int, int]:
  return result.peak_bytes, result.lower_bound_bytes


def _values(solution: Any) -> tuple[int, int]:
  return solution.value_bytes, solution.lower_bound_bytes


def _solve(run: Callable[[], tuple[int, int]]) -> dict[str, Any]:
  start_s = time.process_time()
  with _count_work() as work:
    peak_bytes, bound_bytes = run()
  answer = _answer(peak_bytes, bound_bytes, time.process_time() - start_s)
  return answer | {"deterministic": round(sum(work), 3)}


def _answer(peak_bytes: int, bound: int, seconds: float) -> dict[str, Any]:
  return {
    "peak_bytes": peak_bytes,
    "lower_bound_bytes": bound,
    "is_proven": peak_bytes == bound,
    "cpu_s": round(seconds, 2),
  }


@contextlib.contextmanager
def _count_work() -> Iterator[list[float]]:
  """Collects the deterministic time of every call of CP-SAT."""
  work: list[float] = []
  solve = cpsat.solve

  def counted(solver, model):
    status = solve(solver, model)
    work.append(solver.response_proto.deterministic_time)
    return status

  with mock.patch.object(cpsat, "solve", counted):
    yield work


def main(argv: list[str]) -> None:
  """Measures all graphs."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  versions = {
    "jax": jax.__version__,
    "jaxmem": __version__,
    "python": platform.python_version(),
  }
  for source in _SOURCES.value:
    for model in _SEEDS if source == "random" else _MODELS:
      for depth in map(int, _DEPTHS.value):
        row = measure(model, depth, source) | {"limit": _LIMIT.value}
        emit_row(row | {"versions": versions}, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
