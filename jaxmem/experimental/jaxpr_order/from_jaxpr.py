"""From a jaxpr to a Graph: one node per equation.

What a compiler makes of the equations is not known here: each is taken to write
its results to memory, unfused. `graph.from_hlo` reads the truth from a
compiled module; this serves where there is none, and reproduces the graphs that
planners in the literature were given: operators of a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
from jax.extend import core

from jaxmem.experimental.jaxpr_order.in_place import in_place
from jaxmem.graph import Buffer, Graph, Node, check_order, peak_bytes
from jaxmem.jaxpr import flatten, internals, memory

MemoryModel = Literal["xla", "eager"]

# The jaxprs of these run in registers or on-chip memory.
_KERNELS = frozenset({"pallas_call"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class JaxprGraph:
  """A jaxpr as a Graph, and the way back.

  Attributes:
    graph: One node per equation, in program order. Its base_bytes are those of
      the arguments and constants.
    closed_jaxpr: The flat jaxpr: equation i is node i.
    is_backward: Per node, whether it is part of a backward pass.
    is_donated: Per input of the jaxpr, whether it dies at its last use.
    callees: Per node, the loop bodies and branches that it runs.
    model: See `from_jaxpr`.
  """

  graph: Graph
  closed_jaxpr: core.Jaxpr
  is_backward: tuple[bool, ...]
  is_donated: tuple[bool, ...]
  callees: tuple[tuple[JaxprGraph, ...], ...]
  model: MemoryModel

  @property
  def program_order(self) -> tuple[int, ...]:
    """The order in which the function was traced."""
    return tuple(range(self.graph.num_nodes))

  def ordered_jaxpr(self, order: Sequence[int]) -> core.Jaxpr:
    """Returns the flat jaxpr with its equations in another order.

    Raises:
      ValidationError: If the order is not topological.
    """
    check_order(self.graph, order)
    eqns = self.closed_jaxpr.eqns
    return self.closed_jaxpr.replace(eqns=[eqns[node] for node in order])


def from_function(
  fun: Callable[..., Any],
  *args: Any,
  model: MemoryModel = "xla",
  jit_kwargs: dict[str, Any] | None = None,
  **kwargs: Any,
) -> JaxprGraph:
  """Builds the graph of a function; nothing is compiled or run.

  Args:
    fun: A function, jitted or not.
    *args: Its arguments: arrays or `jax.ShapeDtypeStruct`.
    model: See `from_jaxpr`.
    jit_kwargs: What `jax.jit` is to be told, such as `donate_argnums`, if the
      function is not jitted.
    **kwargs: Its keyword arguments.

  Raises:
    ValueError: If a value's size is not known, or a jitted function is given
      jit_kwargs.
  """
  if not hasattr(fun, "trace"):
    fun = jax.jit(fun, **(jit_kwargs or {}))
  elif jit_kwargs:
    raise ValueError(
      f"jit_kwargs must be None for a jitted function, got {jit_kwargs}. Pass"
      " them to jax.jit."
    )
  traced = fun.trace(*args, **kwargs)  # pyright: ignore
  jaxpr = traced.jaxpr
  donated = internals.donated_inputs(traced)
  return from_jaxpr(jaxpr, is_donated=donated, model=model)


def from_jaxpr(
  jaxpr: core.Jaxpr,
  *,
  is_donated: Sequence[bool] = (),
  model: MemoryModel = "xla",
) -> JaxprGraph:
  """Builds the graph of a jaxpr, calls inlined.

  Inputs and constants are live throughout, donated inputs until their last use,
  outputs from their definition to the end. Equations with effects keep their
  order. A loop or a branch is one node, which needs what its body needs in
  program order as extra bytes.

  Args:
    jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...).jaxpr`.
    is_donated: Per input; none if empty.
    model: "xla": reshapes cost nothing, and elementwise operations, updates
      and loops may write over operands that die. "eager": every equation gets
      memory for its results, as when jax runs it without jit.

  Raises:
    ValueError: If a value's size is not known, or is_donated has another length
      than the inputs.
  """
  return _build(jaxpr, is_donated, model).build()


def _build(
  jaxpr: core.Jaxpr, is_donated: Sequence[bool], model: MemoryModel
) -> _Builder:
  flat = flatten(jaxpr)
  donated = tuple(is_donated) or (False,) * len(flat.invars)
  if len(donated) != len(flat.invars):
    raise ValueError(
      f"is_donated must have one entry for each of the {len(flat.invars)}"
      f" inputs, got {len(donated)}."
    )
  return _Builder(flat, donated, model)


class _Callee(NamedTuple):
  """A loop body or branch.

  Attributes:
    jaxpr: What runs.
    is_donated: Per input, whether it dies at its last use.
    num_shared: The first inputs, which the caller holds meanwhile.
    num_results: The first outputs, for which the caller has memory.
  """

  jaxpr: core.Jaxpr
  is_donated: tuple[bool, ...]
  num_shared: int
  num_results: int


def _callees(eqn: core.JaxprEqn) -> list[_Callee]:
  """Returns what an equation runs, apart from functions of scalars."""
  name = eqn.primitive.name
  if name in _KERNELS:
    return []
  if name == "scan":
    num_consts, num_carry = internals.scan_counts(eqn)
    return [_loop(eqn.params["jaxpr"], num_consts, num_carry)]
  if name == "while":
    num_carry = len(eqn.outvars)
    body_consts = eqn.params["body_nconsts"]
    return [
      _whole(eqn.params["cond_jaxpr"]),
      _loop(eqn.params["body_jaxpr"], body_consts, num_carry),
    ]
  inner = core.jaxprs_in_params(eqn.params)
  return [_whole(jaxpr) for jaxpr in inner if not _is_scalar(jaxpr)]


def _whole(jaxpr: core.Jaxpr) -> _Callee:
  """The caller holds what it reads and has memory for what it returns."""
  num_inputs = len(jaxpr.invars)
  outputs = len(jaxpr.outvars)
  return _Callee(jaxpr, (False,) * num_inputs, num_inputs, outputs)


def _loop(jaxpr: core.Jaxpr, num_consts: int, num_carry: int) -> _Callee:
  """The caller holds the constants and one copy of the carry."""
  num_dying = len(jaxpr.invars) - num_consts
  donated = (False,) * num_consts + (True,) * num_dying
  return _Callee(jaxpr, donated, num_consts, num_carry)


def _is_scalar(jaxpr: core.Jaxpr) -> bool:
  """Whether it is what a reduction or a scatter does to two elements."""
  variables = [*jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]
  return all(not getattr(v.aval, "shape", ()) for v in variables)


@dataclasses.dataclass(kw_only=True)
class _Cell:
  """A buffer in the making."""

  name: str
  size_bytes: int
  definer: int | None
  live_at_end: bool
  source: str = ""
  touchers: set[int] = dataclasses.field(default_factory=set)

  def freeze(self) -> Buffer:
    return Buffer(
      name=self.name,
      size_bytes=self.size_bytes,
      touchers=tuple(sorted(self.touchers)),
      definer=self.definer,
      live_at_start=self.definer is None,
      live_at_end=self.live_at_end,
      source=self.source,
    )


class _Builder:
  """Turns a flat jaxpr into nodes and buffers."""

  def __init__(
    self,
    jaxpr: core.Jaxpr,
    is_donated: tuple[bool, ...],
    model: MemoryModel,
  ):
    self._jaxpr = jaxpr
    self._is_donated = is_donated
    self._model: MemoryModel = model
    self._outvars = {v for v in jaxpr.outvars if isinstance(v, core.Var)}
    self._cells: list[_Cell] = []
    self._cell_of: dict[core.Var, int] = {}
    self._definer: dict[core.Var, int] = {}
    self._last_effect: int | None = None

  def build(self) -> JaxprGraph:
    self._add_inputs()
    nodes, callees = [], []
    for index, eqn in enumerate(self._jaxpr.eqns):
      predecessors = self._predecessors(index, eqn)
      self._add_results(index, eqn)
      inner, extra_bytes = self._run_callees(eqn)
      callees.append(inner)
      nodes.append(
        Node(
          name=_node_name(index, eqn),
          predecessors=predecessors,
          extra_bytes=extra_bytes,
          shares=self._shares(index, eqn),
          source=internals.source(eqn),
        )
      )
    buffers = tuple(cell.freeze() for cell in self._cells)
    base_bytes = sum(b.size_bytes for b in buffers if b.live_at_start)
    return JaxprGraph(
      graph=Graph(nodes=tuple(nodes), buffers=buffers, base_bytes=base_bytes),
      closed_jaxpr=self._jaxpr,
      is_backward=tuple(map(internals.is_transposed, self._jaxpr.eqns)),
      is_donated=self._is_donated,
      callees=tuple(callees),
      model=self._model,
    )

  def owned_bytes(self, callee: _Callee) -> int:
    """Returns what the caller counts already, once it was built."""
    atoms = [
      *self._jaxpr.invars[: callee.num_shared],
      *self._jaxpr.outvars[: callee.num_results],
    ]
    cells = {self._cell_of[v] for v in atoms if isinstance(v, core.Var)}
    return sum(self._cells[cell].size_bytes for cell in cells)

  def _add_inputs(self) -> None:
    for number, var in enumerate(self._jaxpr.constvars):
      self._add_cell(var, f"const{number}", None, live_at_end=True)
    names = internals.argument_names(self._jaxpr)
    for var, name, donated in zip(
      self._jaxpr.invars, names, self._is_donated, strict=True
    ):
      live_at_end = not donated or var in self._outvars
      self._add_cell(var, name, None, live_at_end=live_at_end)

  def _add_cell(
    self,
    var: core.Var,
    name: str,
    definer: int | None,
    *,
    live_at_end: bool,
    source: str = "",
  ) -> None:
    self._cell_of[var] = len(self._cells)
    self._cells.append(
      _Cell(
        name=name,
        size_bytes=memory.size_bytes(var.aval),
        definer=definer,
        live_at_end=live_at_end,
        source=source,
        touchers=set() if definer is None else {definer},
      )
    )

  def _predecessors(self, index: int, eqn: core.JaxprEqn) -> tuple[int, ...]:
    found = set()
    for atom in eqn.invars:
      if isinstance(atom, core.Var):
        self._cells[self._cell_of[atom]].touchers.add(index)
        if atom in self._definer:
          found.add(self._definer[atom])
    if eqn.effects:
      if self._last_effect is not None:
        found.add(self._last_effect)
      self._last_effect = index
    return tuple(sorted(found))

  def _add_results(self, index: int, eqn: core.JaxprEqn) -> None:
    renamed = memory.renamed(eqn, views=self._model == "xla")
    for number, var in enumerate(eqn.outvars):
      self._definer[var] = index
      if renamed and self._can_alias(eqn.invars[number], var):
        cell = self._cell_of[eqn.invars[number]]  # pyright: ignore
        self._cell_of[var] = cell
        self._cells[cell].touchers.add(index)
        self._cells[cell].live_at_end |= var in self._outvars
        continue
      name = _node_name(index, eqn)
      self._add_cell(
        var,
        name if len(eqn.outvars) == 1 else f"{name}[{number}]",
        index,
        live_at_end=var in self._outvars,
        source=internals.source(eqn),
      )

  def _can_alias(self, operand: core.Var | core.Literal, var: core.Var) -> bool:
    """Whether an output would get memory that nothing else keeps."""
    if not isinstance(operand, core.Var):
      return False
    cell = self._cells[self._cell_of[operand]]
    return not (var in self._outvars and cell.live_at_end)

  def _shares(
    self, index: int, eqn: core.JaxprEqn
  ) -> tuple[tuple[int, int], ...]:
    if self._model == "eager":
      return ()
    pairs: dict[tuple[int, int], None] = {}
    for position, number in in_place(eqn):
      operand = eqn.invars[position]
      result = self._cell_of[eqn.outvars[number]]
      if isinstance(operand, core.Var):
        cell = self._cell_of[operand]
        if cell != result and self._cells[result].definer == index:
          pairs[cell, result] = None
    return tuple(pairs)

  def _run_callees(
    self, eqn: core.JaxprEqn
  ) -> tuple[tuple[JaxprGraph, ...], int]:
    inner, extra_bytes = [], 0
    for callee in _callees(eqn):
      builder = _build(callee.jaxpr, callee.is_donated, self._model)
      built = builder.build()
      peak = peak_bytes(built.graph, built.program_order)
      extra_bytes = max(extra_bytes, peak - builder.owned_bytes(callee))
      inner.append(built)
    return tuple(inner), extra_bytes


def _node_name(index: int, eqn: core.JaxprEqn) -> str:
  return f"{eqn.primitive.name}.{index}"
