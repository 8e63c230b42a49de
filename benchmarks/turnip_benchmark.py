"""Memory graphs: event-driven runs against fixed orders and layer streaming.

Prints a JSON row per case. "simulate": LLaMA prefill and LoRA training on the
paper's servers, in virtual time. "sweep": one of these in less and less memory.
"run": small models on this machine, within 40 % of the memory that the plain
step takes. "overhead": what the runtime adds per vertex. "scale": a graph of
more than 100,000 vertices.

    python -m benchmarks.turnip_benchmark --output=rows.jsonl
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks import turnip_graphs, turnip_models
from benchmarks.paired import median_interval
from benchmarks.row_output import emit_row, versions
from jaxmem.cost import Precision
from jaxmem.experimental import memgraph
from jaxmem.experimental.memgraph import TaskGraph

_MODES = flags.DEFINE_list(
  "modes",
  ["simulate", "sweep", "run", "overhead", "scale"],
  "What to measure.",
)
_REPEATS = flags.DEFINE_integer("repeats", 30, "Runs per schedule.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Draws of times per simulation.")
_ONLY = flags.DEFINE_string(
  "only", "", "Simulated cases that begin with this, as in 'a100x8 lora 7b 8x'."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_SCHEDULES: dict[str, Callable[[memgraph.MemGraph], memgraph.MemGraph]] = {
  "event": lambda graph: graph,
  "fixed": memgraph.fixed_order,
  "streaming": memgraph.layer_streaming,
}
# No measurements of these exist for the paper's servers; what they do to the
# order of schedules is the question.
_NOISES = {
  "none": memgraph.Noise(),
  "mild": memgraph.Noise(compute_sigma=0.05, transfer_sigma=0.3),
  "stalls": memgraph.Noise(
    compute_sigma=0.05,
    transfer_sigma=0.3,
    stall_probability=0.02,
    stall_factor=10.0,
  ),
}
_MODELS = {"7b": turnip_models.LLAMA_7B, "65b": turnip_models.LLAMA_65B}


# Model, batch and length. Graphs of eight devices have up to 85,000 vertices.
_SHAPES = {
  ("prefill", "p100x4"): (
    *(("7b", 1, length) for length in (1024, 4096, 16_384)),
    *(("7b", 8, length) for length in (1024, 4096)),
    *(("65b", 1, length) for length in (1024, 4096, 16_384)),
    ("65b", 8, 1024),
  ),
  ("lora", "p100x4"): (
    *(("7b", *shape) for shape in ((8, 1024), (8, 2048), (32, 1024))),
    ("65b", 8, 1024),
  ),
  ("prefill", "a100x8"): (("7b", 1, 4096), ("7b", 8, 4096), ("65b", 1, 4096)),
  ("lora", "a100x8"): (("7b", 8, 1024),),
}
_SWEPT = {
  "step": "lora",
  "model": "7b",
  "server": "p100x4",
  "batch": 8,
  "length": 1024,
}
_SWEEP_PERCENT = (100, 80, 60, 50, 40, 30, 25, 20)


def _simulated_cases() -> Iterator[dict[str, Any]]:
  for (step, server), shapes in _SHAPES.items():
    for model, batch, length in shapes:
      yield {
        "step": step,
        "model": model,
        "server": server,
        "batch": batch,
        "length": length,
      }


def _simulated_graph(case: dict[str, Any]) -> TaskGraph:
  is_training = case["step"] == "lora"
  workload = turnip_graphs.Workload(
    config=_MODELS[case["model"]],
    batch=case["batch"],
    length=case["length"],
    num_devices=memgraph.SERVERS[case["server"]].num_devices,
    # The paper trains in single precision, and infers in half.
    itemsize=4 if is_training else 2,
  )
  make = turnip_graphs.lora_training if is_training else turnip_graphs.prefill
  return make(workload)


def simulate(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
  """Yields rows: the memory of the device, and 40 % of what would be needed.

  The latter only if the device has that much.
  """
  graph = _simulated_graph(case)
  needed_bytes = turnip_graphs.resident_bytes(graph)
  available_bytes = memgraph.SERVERS[case["server"]].memory_bytes
  for name, capacity_bytes in (
    ("device", available_bytes),
    ("40 %", int(0.4 * needed_bytes)),
  ):
    if capacity_bytes > available_bytes:
      continue
    about = {"mode": "simulate", "memory": name, "needed_bytes": needed_bytes}
    yield from _simulate(graph, case | about, capacity_bytes)


def sweep() -> Iterator[dict[str, Any]]:
  """Yields rows of one step in less and less memory."""
  graph = _simulated_graph(_SWEPT)
  needed_bytes = turnip_graphs.resident_bytes(graph)
  for percent in _SWEEP_PERCENT:
    about = {"mode": "sweep", "percent": percent, "needed_bytes": needed_bytes}
    yield from _simulate(graph, _SWEPT | about, needed_bytes * percent // 100)


def _simulate(
  graph: TaskGraph, row: dict[str, Any], capacity_bytes: int
) -> Iterator[dict[str, Any]]:
  """Yields a row per precision at which products may run."""
  row = row | {"capacity_bytes": capacity_bytes}
  start = time.process_time()
  try:
    built = memgraph.build_memgraph(graph, capacity_bytes)
  except memgraph.InfeasibleMemoryError as error:
    yield row | {"error": str(error)}
    return
  build_s = time.process_time() - start
  memgraph.check(built)
  row |= {
    "num_vertices": built.num_vertices,
    "num_memory_edges": built.num_memory_edges,
    "offload_bytes": built.bytes_moved("offload"),
    "reload_bytes": built.bytes_moved("reload"),
    "build_s": round(build_s, 2),
  }
  for precision in _precisions(row["step"], row["server"]):
    yield (
      row | {"precision": precision} | _race(built, row["server"], precision)
    )


def _precisions(step: str, server: str) -> tuple[Precision, ...]:
  """The paper does not say whether its products of float32 are exact."""
  if step == "prefill":
    return ("bf16",)
  return ("tf32", "fp32") if server == "a100x8" else ("tf32",)


def _race(
  built: memgraph.MemGraph, server: str, precision: Precision
) -> dict[str, Any]:
  """Returns the times of all schedules under all kinds of noise."""
  row: dict[str, Any] = {}
  for schedule, change in _SCHEDULES.items():
    changed = change(built)
    expected_s = memgraph.expected_times(
      changed, memgraph.SERVERS[server], precision=precision
    )
    for noise_name, noise in _NOISES.items():
      spans = []
      for seed in range(_SEEDS.value if noise_name != "none" else 1):
        times = memgraph.draw_times(changed, expected_s, noise, seed)
        spans.append(memgraph.simulate(changed, times).makespan_s)
      row[f"{schedule}_s.{noise_name}"] = round(statistics.fmean(spans), 6)
  for other in ("fixed", "streaming"):
    for noise_name in _NOISES:
      ratio = row[f"{other}_s.{noise_name}"] / row[f"event_s.{noise_name}"]
      row[f"gain_over_{other}.{noise_name}"] = round(ratio - 1, 4)
  return row


def _run_cases() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
  config = turnip_models.SMALL
  params = turnip_models.init(config, jax.random.key(0))
  lora = turnip_models.init_lora(config, jax.random.key(1))
  tokens = jax.random.randint(jax.random.key(2), (2, 513), 0, config.vocab)
  prefill = functools.partial(turnip_models.prefill, config)
  for length in (64, 128, 256):
    yield f"prefill {length}", prefill, (params, tokens[:, :length])
  step = functools.partial(turnip_models.lora_step, config)
  for length in (64, 128):
    yield f"lora {length}", step, (params, lora, tokens[:, : length + 1])


def run(
  name: str, step: Callable[..., Any], args: tuple[Any, ...]
) -> dict[str, Any]:
  """Runs a step in 40 % of its memory, schedules by turns."""
  plain = jax.jit(step)
  analysis: Any = plain.lower(*args).compile().memory_analysis()
  needed_bytes = (
    analysis.argument_size_in_bytes
    + analysis.output_size_in_bytes
    + analysis.temp_size_in_bytes
  )
  limit_bytes = int(0.4 * needed_bytes)
  expected = jax.tree.leaves(plain(*args))
  try:
    steps = {
      schedule: memgraph.offload(
        step, *args, memory_limit=limit_bytes, schedule=schedule
      )
      for schedule in ("event", "fixed", "streaming")
    }
  except memgraph.InfeasibleMemoryError as error:
    return {"mode": "run", "step": name, "error": str(error)}
  seconds: dict[str, list[float]] = {"plain": []} | {s: [] for s in steps}
  is_equal, is_close = True, True
  order = list(steps)
  for _ in range(_REPEATS.value):
    start = time.perf_counter()
    jax.block_until_ready(plain(*args))
    seconds["plain"].append(time.perf_counter() - start)
    # Whoever comes after the plain step may find the machine busy.
    order = [*order[1:], order[0]]
    for schedule in order:
      each = steps[schedule]
      outputs = jax.tree.leaves(each(*args))
      if each.last_run is not None:
        seconds[schedule].append(each.last_run.elapsed_s)
      for a, b in zip(outputs, expected, strict=True):
        is_equal &= bool(np.array_equal(a, b))
        is_close &= bool(np.allclose(a, b, rtol=1e-4, atol=1e-5))
  medians = {name: statistics.median(s) for name, s in seconds.items()}
  graph = steps["event"].memgraph
  runs = [each.last_run for each in steps.values() if each.last_run]
  return {
    "mode": "run",
    "step": name,
    "needed_bytes": needed_bytes,
    "limit_bytes": limit_bytes,
    "peak_bytes": max(r.peak_bytes[0] for r in runs),
    "host_peak_bytes": max(r.host_peak_bytes for r in runs),
    "num_tasks": len(graph.task_graph.tasks),
    "num_vertices": graph.num_vertices,
    "offload_bytes": graph.bytes_moved("offload"),
    "reload_bytes": graph.bytes_moved("reload"),
    "is_bit_equal": is_equal,
    "is_close": is_close,
    **{f"{name}_s": round(s, 6) for name, s in medians.items()},
    **_gains(seconds, "fixed"),
    **_gains(seconds, "streaming"),
  }


def _gains(
  seconds: Mapping[str, Sequence[float]], other: str
) -> dict[str, Any]:
  """Compares another schedule with the event-driven one, run by run."""
  event = seconds["event"]
  gains = [b / a - 1 for a, b in zip(event, seconds[other], strict=True)]
  low, high = median_interval(gains)
  fast = np.quantile(seconds[other], 0.2) / np.quantile(event, 0.2) - 1
  return {
    f"gain_over_{other}": round(statistics.median(gains), 4),
    f"gain_over_{other}_interval": (round(low, 4), round(high, 4)),
    # Disturbances only ever add time: the fast runs tell the most.
    f"fast_gain_over_{other}": round(float(fast), 4),
  }


def overhead(num_tasks: int = 2000) -> dict[str, Any]:
  """Runs a chain of tiny kernels: all but their own time is overhead."""
  builder = memgraph.Builder()
  x = first = builder.tensor("x", 32)
  for i in range(num_tasks):
    (x,) = builder.task(f"t{i}", [x], [(f"x{i}", 32)])
  kernel = jax.jit(lambda x: [x + 1]).lower(np.zeros(8, "f4")).compile()
  built = memgraph.build_memgraph(builder.build([x]), 10**6)
  runtime = memgraph.Runtime(built, [kernel] * num_tasks)
  inputs = {first: np.zeros(8, "f4")}
  results = [runtime.run(inputs) for _ in range(5)]
  spent_s = [r.elapsed_s - np.sum(r.end_s - r.start_s) for r in results]
  return {
    "mode": "overhead",
    "num_vertices": built.num_vertices,
    "vertex_us": round(
      1e6 * min(r.elapsed_s for r in results) / built.num_vertices, 1
    ),
    "overhead_us": round(1e6 * min(spent_s) / built.num_vertices, 1),
    "overhead_median_us": round(
      1e6 * statistics.median(spent_s) / built.num_vertices, 1
    ),
  }


def scale(num_tasks: int = 95_000) -> dict[str, Any]:
  """Builds, checks and simulates a wide graph in short memory."""
  rng = np.random.default_rng(0)
  builder = memgraph.Builder(4)
  recent = [
    [builder.tensor(f"in{d}.{i}", 1000, d) for i in range(20)] for d in range(4)
  ]
  for i in range(num_tasks):
    d = int(rng.integers(4))
    inputs = [recent[d][int(k)] for k in rng.choice(20, 2, replace=False)]
    size_bytes = int(rng.integers(500, 1500))
    (made,) = builder.task(
      f"t{i}", inputs, [(f"x{i}", size_bytes)], device=d, flops=1e9
    )
    recent[d][int(rng.integers(20))] = made
  graph = builder.build([])
  seconds = []
  clock = time.process_time
  start = clock()
  built = memgraph.build_memgraph(graph, 20_000, alignment_bytes=1)
  seconds.append(clock() - start)
  start = clock()
  memgraph.check(built)
  seconds.append(clock() - start)
  start = clock()
  times = memgraph.expected_times(built, memgraph.SERVERS["a100x8"])
  memgraph.simulate(built, times)
  seconds.append(clock() - start)
  names = ("build_s", "check_s", "simulate_s")
  return {
    "mode": "scale",
    "num_vertices": built.num_vertices,
    "num_offloads": sum(v.kind == "offload" for v in built.vertices),
    **dict(zip(names, (round(s, 2) for s in seconds), strict=True)),
  }


def _rows() -> Iterator[dict[str, Any]]:
  if "overhead" in _MODES.value:
    yield overhead()
  if "scale" in _MODES.value:
    yield scale()
  if "run" in _MODES.value:
    for case in _run_cases():
      yield run(*case)
  if "simulate" in _MODES.value:
    for case in _simulated_cases():
      name = " ".join(case[key] for key in ("server", "step", "model"))
      name += f" {case['batch']}x{case['length']}"
      if name.startswith(_ONLY.value):
        yield from simulate(case)
  if "sweep" in _MODES.value:
    yield from sweep()


def main(argv: list[str]) -> None:
  """Measures all cases."""
  del argv
  measured_with = versions("python", "jax")
  measured_with["device"] = jax.devices()[0].device_kind
  for row in _rows():
    emit_row(row | {"versions": measured_with}, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
