"""Runs a flat jaxpr in a planned order: under jit, or equation by equation."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from jaxmem.experimental.jaxpr_order.from_jaxpr import JaxprGraph, from_jaxpr
from jaxmem.graph import check_order
from jaxmem.jaxpr import internals, memory


def reorder(
  program: Callable[..., Any] | core.Jaxpr | JaxprGraph, order: Sequence[int]
) -> Callable[..., Any]:
  """Returns an equal function that evaluates in a planned order.

  XLA schedules the result anew when it is jitted: the order then decides what
  the compiler starts from. See `run_eager` for what follows it.

  Args:
    program: A function; or a jaxpr or its graph.
    order: A topological order of the nodes of the program's graph.

  Returns:
    For a function, one with its signature, which traces it at each call, with
    arguments of the types for which the order was planned. For a jaxpr, a
    function from its inputs, `fun(*flat_args)`, to the list of its outputs. It
    may be jitted, but custom derivatives are gone.

  Raises:
    ValidationError: If the order is not topological; for a function, when it
      is called.
  """
  order = tuple(order)
  if isinstance(program, JaxprGraph):
    return core.jaxpr_as_fun(program.ordered_jaxpr(order))
  if isinstance(program, core.Jaxpr):
    return reorder(from_jaxpr(program), order)
  fun = program

  def reordered(*args, **kwargs):
    trace = jax.make_jaxpr(fun, return_shape=True)
    jaxpr, shapes = trace(*args, **kwargs)
    results = reorder(jaxpr, order)(*jax.tree.leaves((args, kwargs)))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)

  return reordered


def run_eager(
  program: JaxprGraph,
  order: Sequence[int],
  args: list[Any],
  *,
  on_step: Callable[[int], None] | None = None,
) -> list[Any]:
  """Runs a program equation by equation, freeing each value at its last use.

  With a graph of the "eager" model, the bytes that jax holds while a node runs
  are the graph's live bytes; inside loops, jax compiles.

  Args:
    program: The program.
    order: A topological order of its nodes.
    args: The flat inputs. The list is emptied, so that it does not keep the
      donated ones, to which there should be no other reference.
    on_step: Called with each node when it has run and nothing is freed yet.

  Returns:
    The flat outputs.

  Raises:
    ValidationError: If the order is not topological.
    ValueError: If there are more or fewer args than inputs.
  """
  jaxpr = program.closed_jaxpr
  check_order(program.graph, order)
  if len(args) != len(jaxpr.invars):
    raise ValueError(
      f"args must be the {len(jaxpr.invars)} flat inputs, got {len(args)}."
    )
  values = dict(zip(jaxpr.constvars, jaxpr.consts, strict=True))
  values |= zip(jaxpr.invars, args, strict=True)
  args.clear()
  dying = _dying(program, order)
  for node in order:
    eqn = jaxpr.eqns[node]
    values |= zip(eqn.outvars, _run(eqn, values), strict=True)
    if on_step is not None:
      on_step(node)
    for var in dying[node]:
      values.pop(var, None)
  return [_read(atom, values) for atom in jaxpr.outvars]


def _read(atom: core.Var | core.Literal, values: dict[core.Var, Any]) -> Any:
  return values[atom] if isinstance(atom, core.Var) else atom.val


def _run(eqn: core.JaxprEqn, values: dict[core.Var, Any]) -> list[Any]:
  operands = [_read(atom, values) for atom in eqn.invars]
  if eqn.primitive.name in memory.IDENTITIES:
    return operands
  return internals.bind(eqn, operands)


def _dying(
  program: JaxprGraph, order: Sequence[int]
) -> dict[int, list[core.Var]]:
  """Returns for each node the variables of which it is the last toucher."""
  jaxpr = program.closed_jaxpr
  last: dict[core.Var, int] = {}
  for node in order:
    eqn = jaxpr.eqns[node]
    for atom in (*eqn.invars, *eqn.outvars):
      if isinstance(atom, core.Var):
        last[atom] = node
  kept = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
  dying: dict[int, list[core.Var]] = {node: [] for node in order}
  for var, node in last.items():
    if var not in kept:
      dying[node].append(var)
  return dying
