"""What making values again takes besides products: estimated as XLA fuses it.

Between products and the like XLA fuses everything, so that only what a product
reads is written to memory: each such value is one kernel, which reads what the
value is made of. The rest is made where it is read, and costs nothing more.
"""

from collections.abc import Iterator

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.versions.blocks.keep import is_heavy_eqn
from jaxmem.versions.blocks.recipe import Group, Recipe
from jaxmem.versions.values import Values, num_bytes, operands, results

# What products look through: other orders and types of the same elements.
_VIEWS = frozenset("convert_element_type reshape squeeze transpose".split())


def fused_seconds(
  values: Values, group: Group, recipe: Recipe, rates: Rates
) -> float:
  """Estimates the seconds of kernels that make operands of products again.

  Args:
    values: Of the jaxpr.
    group: What is recomputed.
    recipe: How it is.
    rates: Of the device that will run the step.
  """
  fusions = _Fusions(values, group, recipe)
  return sum(
    rates.seconds({}, 0.0, sum(num_bytes(v) for v in (var, *sources)))
    for var, sources in fusions.kernels()
  )


class _Fusions:
  """The kernels between the products of a recipe."""

  def __init__(self, values: Values, group: Group, recipe: Recipe):
    self._values = values
    self._end = group.end
    self._again = frozenset(recipe.eqns)
    eqns = values.jaxpr.eqns
    # An equation may make again what stays; then that is an operand.
    self._made = {
      v: index
      for index in recipe.eqns
      if not is_heavy_eqn(eqns[index])
      for v in results(eqns[index])
    }
    for var in recipe.operands:
      self._made.pop(var, None)
    self._written = frozenset(
      v
      for v, index in self._made.items()
      if eqns[index].primitive.name not in _VIEWS and self._is_operand(v)
    )

  def kernels(self) -> Iterator[tuple[core.Var, list[core.Var]]]:
    """Yields what is written, and what is read for it, each once."""
    for var in self._made:
      if var in self._written:
        yield var, [*self._sources(var)]

  def _is_operand(self, var: core.Var) -> bool:
    """Whether a product of the recipe or the backward pass reads a value."""
    eqns = self._values.jaxpr.eqns
    for index in self._values.readers.get(var, ()):
      if index not in self._again and not self._end <= index < len(eqns):
        continue
      if is_heavy_eqn(eqns[index]):
        return True
      if eqns[index].primitive.name in _VIEWS and any(
        self._is_operand(v) for v in results(eqns[index])
      ):
        return True
    return False

  def _sources(self, var: core.Var) -> Iterator[core.Var]:
    seen = {var}
    pending = [var]
    while pending:
      eqn = self._values.jaxpr.eqns[self._made[pending.pop()]]
      for operand in operands(eqn):
        if operand in seen:
          continue
        seen.add(operand)
        if operand in self._made and operand not in self._written:
          pending.append(operand)
        else:
          yield operand
