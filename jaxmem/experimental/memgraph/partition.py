"""Cuts a step into segments that become the tasks of a task graph.

The flat jaxpr is cut into runs of consecutive equations; hence the segments
depend on each other forwards only. A run of one layer or scope is one segment.
What is in no scope, such as the update of weights, goes to the last segment
that makes one of its operands. Segments that touch too much are cut again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from jaxmem.experimental.memgraph import cutting
from jaxmem.experimental.memgraph.task_graph import Task, TaskGraph, Tensor
from jaxmem.jaxpr import flatten, internals, memory

Assign = Callable[[int, int], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition:
  """A step as a task graph.

  Attributes:
    task_graph: One task per segment, and one per copy between devices.
    jaxprs: Per task, what it runs on its inputs; None for copies.
    constants: Values of the input tensors that are constants of the step.
    arguments: Per flat argument of the step, its input tensors: one for each
      device that reads it.
    results: Per flat result, the tensor, the position of the argument, or the
      value that it is.
    out_tree: How the flat results are put together.
  """

  task_graph: TaskGraph
  jaxprs: tuple[core.Jaxpr | None, ...]
  constants: dict[int, Any]
  arguments: tuple[tuple[int, ...], ...]
  results: tuple[Result, ...]
  out_tree: Any

  def bind(self, flat_args: Sequence[Any]) -> dict[int, Any]:
    """Returns the values of all input tensors, given the flat arguments."""
    values = dict(self.constants)
    for tensors, arg in zip(self.arguments, flat_args, strict=True):
      values.update(dict.fromkeys(tensors, arg))
    return values

  def unbind(self, outputs: Sequence[Any], flat_args: Sequence[Any]) -> Any:
    """Returns the step's results.

    Args:
      outputs: Values of the task graph's outputs.
      flat_args: The flat arguments.
    """
    values = dict(zip(self.task_graph.outputs, outputs, strict=True))
    flat = []
    for result in self.results:
      if result.tensor is not None:
        flat.append(values[result.tensor])
      elif result.argument is not None:
        flat.append(flat_args[result.argument])
      else:
        flat.append(result.value)
    return jax.tree.unflatten(self.out_tree, flat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """Where a result of the step comes from; one of these.

  Attributes:
    tensor: An output of the task graph.
    argument: The position of an argument that is returned as it is.
    value: A constant.
  """

  tensor: int | None = None
  argument: int | None = None
  value: Any = None


def partition(
  step: Callable[..., Any],
  *args: Any,
  by: cutting.By = "layer",
  depth: int = 1,
  segment_bytes: int | None = None,
  max_segment_bytes: int | None = None,
  num_devices: int = 1,
  assign: Assign | None = None,
  **kwargs: Any,
) -> Partition:
  """Traces a step and cuts it into tasks.

  Args:
    step: The function.
    *args: Its arguments: arrays or `jax.ShapeDtypeStruct`.
    by: "layer": by the first name scope that has a number, such as
      "layers_3", apart for the backward pass. "scope": by the first `depth`
      scopes. "size": whenever the results of a segment exceed segment_bytes.
    depth: How many scopes count.
    segment_bytes: A sixteenth of all results if None.
    max_segment_bytes: Segments that need more than that are cut: what they
      read, and what of their results is live at once, nothing fused.
    num_devices: How many devices the segments are spread over.
    assign: From the number of a segment and their count to a device; in equal
      parts, one after another, if None.
    **kwargs: Keyword arguments of the step.

  Raises:
    ValueError: If the step has effects, or no scope has a number where layers
      are asked for.
  """
  jaxpr, shapes = jax.make_jaxpr(step, return_shape=True)(*args, **kwargs)
  jaxpr = cutting.without_identities(flatten(jaxpr))
  if jaxpr.effects:
    raise ValueError(
      f"The step must have no effects, got {jaxpr.effects}. Take prints and"
      " callbacks out."
    )
  segments = cutting.cut(jaxpr, by, depth, segment_bytes)
  if max_segment_bytes is not None:
    segments = cutting.cut_large(segments, jaxpr.outvars, max_segment_bytes)
  devices = [
    assign(i, len(segments)) if assign else i * num_devices // len(segments)
    for i in range(len(segments))
  ]
  builder = _Builder(jaxpr, segments, devices, num_devices)
  return builder.build(jax.tree.structure(shapes))


class _Builder:
  """Makes tensors of variables, and tasks of segments."""

  def __init__(
    self,
    jaxpr: core.Jaxpr,
    segments: Sequence[cutting.Segment],
    devices: Sequence[int],
    num_devices: int,
  ):
    self._jaxpr = jaxpr
    self._segments = segments
    self._devices = devices
    self._num_devices = num_devices
    self._tensors: list[Tensor] = []
    self._tasks: list[Task] = []
    self._jaxprs: list[core.Jaxpr | None] = []
    self._tensor_of: dict[tuple[core.Var, int], int] = {}
    self._home: dict[core.Var, int] = {}
    names = internals.argument_names(jaxpr)
    self._input_names = dict(zip(jaxpr.invars, names, strict=True))
    self._input_names |= {
      var: f"const{i}" for i, var in enumerate(jaxpr.constvars)
    }

  def build(self, out_tree: Any) -> Partition:
    readers = self._readers()
    for number, segment in enumerate(self._segments):
      self._add_segment(number, segment, readers)
    results = tuple(map(self._result, self._jaxpr.outvars))
    outputs = dict.fromkeys(r.tensor for r in results if r.tensor is not None)
    graph = TaskGraph(
      tensors=tuple(self._tensors),
      tasks=tuple(self._tasks),
      outputs=tuple(outputs),
      num_devices=self._num_devices,
    )
    consts = zip(self._jaxpr.constvars, self._jaxpr.consts, strict=True)
    return Partition(
      task_graph=graph,
      jaxprs=tuple(self._jaxprs),
      constants={t: c for var, c in consts for t in self._copies(var)},
      arguments=tuple(map(self._copies, self._jaxpr.invars)),
      results=results,
      out_tree=out_tree,
    )

  def _readers(self) -> dict[core.Var, int]:
    """Returns the last segment that reads each variable."""
    last: dict[core.Var, int] = {}
    for number, segment in enumerate(self._segments):
      for eqn in segment.eqns:
        last |= dict.fromkeys(cutting.variables(eqn.invars), number)
    return last | dict.fromkeys(
      cutting.variables(self._jaxpr.outvars), len(self._segments)
    )

  def _add_segment(
    self, number: int, segment: cutting.Segment, readers: dict[core.Var, int]
  ) -> None:
    device = self._devices[number]
    made = [var for eqn in segment.eqns for var in eqn.outvars]
    inside = set(made)
    read = dict.fromkeys(
      var
      for eqn in segment.eqns
      for var in cutting.variables(eqn.invars)
      if var not in inside
    )
    written = [var for var in made if readers.get(var, -1) > number]
    inputs = tuple(self._fetch(var, device, number) for var in read)
    for var in written:
      self._home[var] = device
      self._add_tensor(var, f"{segment.name}:{len(self._tensors)}", device)
    self._jaxprs.append(_sub_jaxpr(self._jaxpr, segment.eqns, read, written))
    self._tasks.append(
      Task(
        name=segment.name,
        device=device,
        inputs=inputs,
        outputs=tuple(self._tensor_of[var, device] for var in written),
        group=number,
        source=internals.source(segment.eqns[0]),
      )
    )

  def _fetch(self, var: core.Var, device: int, number: int) -> int:
    """Returns the tensor of a variable on a device, copied if need be."""
    if (var, device) in self._tensor_of:
      return self._tensor_of[var, device]
    if var in self._input_names:
      return self._add_tensor(var, self._input_names[var], device)
    there = self._tensor_of[var, self._home[var]]
    here = self._add_tensor(
      var, f"{self._tensors[there].name}@{device}", device
    )
    self._jaxprs.append(None)
    self._tasks.append(
      Task(
        name=f"copy {self._tensors[here].name}",
        device=self._home[var],
        inputs=(there,),
        outputs=(here,),
        kind="copy",
        group=number,
      )
    )
    return here

  def _add_tensor(self, var: core.Var, name: str, device: int) -> int:
    size_bytes = memory.size_bytes(var.aval)
    self._tensor_of[var, device] = len(self._tensors)
    self._tensors.append(
      Tensor(name=name, size_bytes=size_bytes, device=device)
    )
    return len(self._tensors) - 1

  def _copies(self, var: core.Var) -> tuple[int, ...]:
    keys = [(var, device) for device in range(self._num_devices)]
    return tuple(self._tensor_of[k] for k in keys if k in self._tensor_of)

  def _result(self, atom: core.Var | core.Literal) -> Result:
    if isinstance(atom, core.Literal):
      return Result(value=atom.val)
    if atom in self._home:
      return Result(tensor=self._tensor_of[atom, self._home[atom]])
    if atom in self._jaxpr.invars:
      return Result(argument=self._jaxpr.invars.index(atom))
    constants = zip(self._jaxpr.constvars, self._jaxpr.consts, strict=True)
    return Result(value=dict(constants)[atom])


def _sub_jaxpr(
  jaxpr: core.Jaxpr,
  eqns: Sequence[core.JaxprEqn],
  read: Any,
  written: Sequence[core.Var],
) -> core.Jaxpr:
  """Returns a jaxpr of some equations, without constants."""
  return jaxpr.replace(
    constvars=[],
    consts=[],
    invars=list(read),
    outvars=list(written),
    eqns=list(eqns),
    debug_info=jaxpr.debug_info.with_unknown_names(),
  )
