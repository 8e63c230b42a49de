"""The computation to run: tasks on devices, and the tensors between them.

TURNIP's TASKGRAPH: a dataflow graph whose vertices are kernel calls on a device
or copies from one device to another. Nothing is said here about where tensors
lie, or when they leave the device; `memgraph.build` decides that.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

TaskKind = Literal["compute", "copy"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
  """A value on one device.

  Attributes:
    name: What to call it in messages.
    size_bytes: Its bytes; may be zero.
    device: Index of the device where it is made and read.
  """

  name: str
  size_bytes: int
  device: int = 0

  def __post_init__(self):
    if self.size_bytes < 0:
      raise ValueError(
        f"Tensor {self.name!r}: size_bytes must not be negative, got"
        f" {self.size_bytes}."
      )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
  """A kernel call, or a copy between devices.

  Attributes:
    name: What to call it in messages.
    device: Where it runs; for a copy, where it copies from.
    inputs: Tensors that it reads, each once.
    outputs: Tensors that it writes.
    kind: "compute", or "copy" of one input to one output on another device.
    workspace_bytes: Scratch memory that it needs while it runs.
    accumulates: Whether it adds to its only output, to which other tasks add
      too: in any order, one at a time. Whoever comes first writes it.
    flops: Multiplications and additions, for time estimates.
    bytes_accessed: Bytes read and written in device memory, likewise.
    group: Number of the layer that it belongs to, ascending in the list of
      tasks; layer streaming goes by it.
    source: Where in the user's program it comes from.
  """

  name: str
  device: int = 0
  inputs: tuple[int, ...] = ()
  outputs: tuple[int, ...] = ()
  kind: TaskKind = "compute"
  workspace_bytes: int = 0
  accumulates: bool = False
  flops: float = 0.0
  bytes_accessed: float = 0.0
  group: int = 0
  source: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskGraph:
  """Tasks in an order that respects their dependencies.

  Attributes:
    tensors: What the tasks read and write.
    tasks: The tasks; an input of a task is written by tasks before it, or by
      none: then it is an input of the graph and starts in host memory.
    outputs: Tensors that are wanted at the end, on the device or the host.
    num_devices: How many devices there are.
  """

  tensors: tuple[Tensor, ...]
  tasks: tuple[Task, ...]
  outputs: tuple[int, ...]
  num_devices: int = 1

  def __post_init__(self):
    for tensor in self.tensors:
      if not 0 <= tensor.device < self.num_devices:
        raise ValueError(
          f"Tensor {tensor.name!r}: device must be below {self.num_devices},"
          f" got {tensor.device}."
        )
    for tensor in self.outputs:
      if not 0 <= tensor < len(self.tensors):
        raise ValueError(
          f"outputs must be tensors below {len(self.tensors)}, got {tensor}."
        )
    for task in self.tasks:
      self._check_task(task)
    self._check_order()

  def _check_task(self, task: Task) -> None:
    for tensor in (*task.inputs, *task.outputs):
      if not 0 <= tensor < len(self.tensors):
        raise _error(task, f"tensors must be below {len(self.tensors)}", tensor)
    if not 0 <= task.device < self.num_devices:
      raise _error(
        task, f"device must be below {self.num_devices}", task.device
      )
    if task.workspace_bytes < 0:
      raise _error(
        task, "workspace_bytes must not be negative", task.workspace_bytes
      )
    touched = (*task.inputs, *task.outputs)
    if len(set(touched)) != len(touched):
      raise _error(task, "a tensor may be named once", touched)
    if task.accumulates and len(task.outputs) != 1:
      raise _error(task, "one accumulated output is expected", task.outputs)
    if task.kind == "copy" and (len(task.inputs), len(task.outputs)) != (1, 1):
      raise _error(task, "a copy has one input and one output", touched)
    if task.kind == "copy" and task.accumulates:
      raise _error(task, "a copy does not accumulate", task.accumulates)
    there = [self.tensors[t].device for t in task.inputs]
    if task.kind == "compute":
      there += [self.tensors[t].device for t in task.outputs]
    if any(device != task.device for device in there):
      raise _error(task, f"tensors must be on its device {task.device}", there)

  def _check_order(self) -> None:
    last_writer: dict[int, int] = {}
    for position, task in enumerate(self.tasks):
      for tensor in task.outputs:
        before = last_writer.get(tensor)
        if before is not None and not (
          task.accumulates and self.tasks[before].accumulates
        ):
          raise _error(
            task,
            "only accumulations may write the same tensor",
            self.tensors[tensor].name,
          )
        last_writer[tensor] = position
    for position, task in enumerate(self.tasks):
      for tensor in task.inputs:
        if last_writer.get(tensor, -1) >= position:
          raise _error(
            task,
            "inputs must be written by tasks before it",
            self.tensors[tensor].name,
          )

  @functools.cached_property
  def writers(self) -> tuple[tuple[int, ...], ...]:
    """For each tensor, the tasks that write it; none for an input."""
    return self._touching([task.outputs for task in self.tasks])

  @functools.cached_property
  def readers(self) -> tuple[tuple[int, ...], ...]:
    """For each tensor, the tasks that read it, ascending."""
    return self._touching([task.inputs for task in self.tasks])

  @property
  def inputs(self) -> tuple[int, ...]:
    """The tensors that no task writes, ascending."""
    return tuple(t for t, writers in enumerate(self.writers) if not writers)

  @property
  def total_bytes(self) -> int:
    """The bytes of all tensors."""
    return sum(tensor.size_bytes for tensor in self.tensors)

  def _touching(
    self, tensors: Sequence[tuple[int, ...]]
  ) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in self.tensors]
    for task, touched in enumerate(tensors):
      for tensor in touched:
        found[tensor].append(task)
    return tuple(map(tuple, found))

  def reordered(self, order: Sequence[int]) -> TaskGraph:
    """Returns the same graph with its tasks listed in another order.

    Raises:
      ValueError: If the order is not a permutation, or reads come before
        writes in it.
    """
    if sorted(order) != list(range(len(self.tasks))):
      raise ValueError(
        f"order must be a permutation of {len(self.tasks)} tasks, got"
        f" {len(order)} entries."
      )
    return dataclasses.replace(self, tasks=tuple(self.tasks[i] for i in order))


class Builder:
  """Builds a task graph by hand, tensor by tensor.

      builder = Builder()
      x = builder.tensor("x", 1024)
      (y,) = builder.task("double", [x], [("y", 1024)])
      graph = builder.build(outputs=[y])

  Args:
    num_devices: How many devices there are.
  """

  def __init__(self, num_devices: int = 1):
    self._num_devices = num_devices
    self._tensors: list[Tensor] = []
    self._tasks: list[Task] = []

  def tensor(self, name: str, size_bytes: int, device: int = 0) -> int:
    """Adds a tensor and returns its index; an input until a task writes it."""
    self._tensors.append(
      Tensor(name=name, size_bytes=size_bytes, device=device)
    )
    return len(self._tensors) - 1

  def task(
    self,
    name: str,
    inputs: Sequence[int],
    outputs: Sequence[tuple[str, int]],
    *,
    device: int = 0,
    **fields,
  ) -> tuple[int, ...]:
    """Adds a kernel call and returns its new output tensors.

    Args:
      name: Of the task.
      inputs: Tensors that it reads.
      outputs: Name and bytes of each tensor that it makes.
      device: Where it runs.
      **fields: Further fields of `Task`.
    """
    made = tuple(self.tensor(*output, device) for output in outputs)
    self._add(name, inputs, made, device, **fields)
    return made

  def accumulate(
    self,
    name: str,
    inputs: Sequence[int],
    output: int,
    **fields,
  ) -> None:
    """Adds a kernel call that adds its result to a tensor."""
    device = self._tensors[output].device
    self._add(name, inputs, (output,), device, accumulates=True, **fields)

  def copy(self, tensor: int, device: int, **fields) -> int:
    """Adds a copy to another device and returns the tensor there."""
    source = self._tensors[tensor]
    name = f"{source.name}@{device}"
    copied = self.tensor(name, source.size_bytes, device)
    fields = {"bytes_accessed": source.size_bytes} | fields
    self._add(name, (tensor,), (copied,), source.device, kind="copy", **fields)
    return copied

  def build(self, outputs: Sequence[int]) -> TaskGraph:
    """Returns the graph; its tasks are in the order of the calls."""
    return TaskGraph(
      tensors=tuple(self._tensors),
      tasks=tuple(self._tasks),
      outputs=tuple(outputs),
      num_devices=self._num_devices,
    )

  def _add(
    self,
    name: str,
    inputs: Sequence[int],
    outputs: tuple[int, ...],
    device: int,
    **fields,
  ) -> None:
    self._tasks.append(
      Task(
        name=name,
        device=device,
        inputs=tuple(inputs),
        outputs=outputs,
        **fields,
      )
    )


def _error(task: Task, rule: str, got: object) -> ValueError:
  return ValueError(f"Task {task.name!r}: {rule}, got {got}.")
