"""Seeded task graphs for the tests of memory graphs."""

import random

from jaxmem.experimental.memgraph import Builder, TaskGraph


def random_graph(seed: int) -> TaskGraph:
  """Returns a graph of a few tasks on one to three devices.

  It has kernels with scratch memory, copies, accumulations, tensors without
  bytes or readers, and outputs of all kinds.
  """
  rng = random.Random(seed)
  num_devices = rng.choice([1, 1, 2, 3])
  builder = Builder(num_devices)
  there = [
    [
      builder.tensor(f"input{device}.{i}", rng.randrange(6), device)
      for i in range(rng.randrange(1, 4))
    ]
    for device in range(num_devices)
  ]
  for number in range(rng.randrange(3, 14)):
    device = rng.randrange(num_devices)
    known = there[device]
    inputs = rng.sample(known, min(len(known), rng.randrange(1, 4)))
    choice = rng.random()
    if num_devices > 1 and choice < 0.2:
      target = rng.choice([d for d in range(num_devices) if d != device])
      there[target].append(builder.copy(inputs[0], target))
    elif choice < 0.35:
      there[device].append(_add_sum(builder, rng, number, known, device))
    else:
      outputs = [
        (f"x{number}.{i}", rng.randrange(6)) for i in range(rng.randrange(1, 3))
      ]
      there[device] += builder.task(
        f"t{number}",
        inputs,
        outputs,
        device=device,
        workspace_bytes=rng.choice([0, 0, 0, 3]),
      )
  tensors = [tensor for known in there for tensor in known]
  wanted = rng.sample(tensors, min(len(tensors), rng.randrange(1, 4)))
  return builder.build(wanted)


def _add_sum(
  builder: Builder, rng: random.Random, number: int, known: list[int], device
) -> int:
  total = builder.tensor(f"sum{number}", rng.randrange(1, 6), device)
  for i in range(rng.randrange(1, 4)):
    builder.accumulate(
      f"add{number}.{i}",
      rng.sample(known, 1),
      total,
      workspace_bytes=rng.choice([0, 0, 2]),
    )
  return total


def needed_bytes(graph: TaskGraph) -> int:
  """Returns the least capacity with which every task fits by itself."""
  return max(
    sum(graph.tensors[t].size_bytes for t in (*task.inputs, *task.outputs))
    + task.workspace_bytes
    for task in graph.tasks
  )


def chain_with_offload() -> TaskGraph:
  """a is needed at the end only, and two tensors fit into two bytes."""
  builder = Builder()
  (a,) = builder.task("t1", [], [("a", 1)])
  (b,) = builder.task("t2", [], [("b", 1)])
  (c,) = builder.task("t3", [b], [("c", 1)])
  builder.task("t4", [c], [("d", 1)])
  (e,) = builder.task("t5", [a], [("e", 1)])
  return builder.build([e])
