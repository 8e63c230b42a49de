"""Which equations may run a second time, in the backward pass, and how."""

from collections.abc import Mapping, Sequence

from jax.extend import core

from jaxmem.jaxpr import Atom, Inliner, internals
from jaxmem.versions.equation_cost import COLLECTIVES

# The name scope of equations that run again; profiles show it.
RECOMPUTE_SCOPE = "recompute"

_HOST_CALLS = "debug_callback debug_print io_callback pure_callback"
_KERNELS = "custom_call ffi_call pallas_call"
# `rng_uniform` draws other numbers when it runs again.
_NOT_AGAIN = frozenset(f"{_HOST_CALLS} {_KERNELS} rng_uniform while".split())


def may_run_again(
  eqn: core.JaxprEqn, *, with_collectives: bool = False
) -> bool:
  """Whether an equation, its callees included, may run a second time.

  Random bits that are drawn from a key are the same again. The time of a
  kernel, or of a `while` loop, is not known here.

  Args:
    eqn: The equation.
    with_collectives: Whether collectives may. All devices run them again, as
      they run all else; what that takes is known by the bytes alone.
  """
  name = eqn.primitive.name
  return (
    not eqn.effects
    and name not in _NOT_AGAIN
    and (with_collectives or name not in COLLECTIVES)
    and all(
      may_run_again(inner, with_collectives=with_collectives)
      for body in core.jaxprs_in_params(eqn.params)
      for inner in body.eqns
    )
  )


def run_again(
  inliner: Inliner,
  part: core.Jaxpr,
  known: Mapping[core.Var, Atom],
  wanted: Sequence[Atom],
) -> list[Atom]:
  """Appends equations once more, in a name scope that profiles show.

  Args:
    inliner: Collects them.
    part: A jaxpr with these equations.
    known: What stands for the values that they read and do not make.
    wanted: What is returned of what they read or make.
  """
  part = part.replace(invars=[*known], outvars=[*wanted])
  stack = internals.empty_name_stack().extend(RECOMPUTE_SCOPE)
  return inliner.inline(part, [*known.values()], stack)
