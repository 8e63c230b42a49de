"""What making values again takes besides products: estimated as XLA fuses it.

Between products and the like XLA fuses everything, so that only what a product
reads is written to memory: each such value is one kernel, which reads what the
value is made of. The rest is made where it is read, and costs nothing more.
"""

from collections.abc import Collection

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.versions.blocks.recipe import Recipe
from jaxmem.versions.equation_cost import is_heavy_eqn, scalar_flops
from jaxmem.versions.values import (
  VIEWS,
  Values,
  num_bytes,
  operands,
  results,
  walk,
)


def fused_seconds(recipe: Recipe, rates: Rates) -> float:
  """Estimates the seconds of kernels that make operands of products again."""
  values = recipe.group.values
  known = {*recipe.operands}
  # An equation may make again what stays; then that is an operand.
  made = {
    v: values.eqns[index]
    for index in recipe.eqns
    if not is_heavy_eqn(values.eqns[index])
    for v in results(values.eqns[index])
    if v not in known
  }
  readers = {*recipe.eqns, *range(recipe.group.end, len(values.eqns))}
  written = [
    v
    for v, eqn in made.items()
    if eqn.primitive.name not in VIEWS and _is_operand(values, readers, v)
  ]
  within = made.keys() - {*written}

  def seconds(kernel: core.Var) -> float:
    def is_inside(var: core.Var) -> bool:
      return var is kernel or var in within

    def sources(var: core.Var) -> Collection[core.Var]:
      return operands(made[var]) if is_inside(var) else ()

    touched = [*walk([kernel], sources)]
    num_touched = sum(num_bytes(v) for v in touched if v not in within)
    # What two kernels read of it, both make.
    eqns = {id(made[v]): made[v] for v in touched if is_inside(v)}
    scalar = sum(scalar_flops(eqn, rates) for eqn in eqns.values())
    return rates.seconds({}, scalar, num_touched)

  return sum(seconds(v) for v in written)


def _is_operand(
  values: Values, readers: Collection[int], var: core.Var
) -> bool:
  """Whether a product among some equations reads a value."""
  eqns = [values.eqns[r] for r in values.readers.get(var, ()) if r in readers]
  return any(
    is_heavy_eqn(eqn)
    or (
      eqn.primitive.name in VIEWS
      and any(_is_operand(values, readers, v) for v in results(eqn))
    )
    for eqn in eqns
  )
