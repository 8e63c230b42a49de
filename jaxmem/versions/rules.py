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


def may_run_again(eqn: core.JaxprEqn) -> bool:
  """Whether an equation, its callees included, may run a second time.

  Random bits that are drawn from a key are the same again. All devices run
  collectives again, as they run all else; what that takes is known by the bytes
  alone. The time of a kernel, or of a `while` loop, is not known here.
  """
  name, bodies = eqn.primitive.name, [*core.jaxprs_in_params(eqn.params)]
  if internals.has_side_effects(eqn) or name in _NOT_AGAIN:
    return False
  # What else works across devices is not known to give the same again.
  is_known = bodies or name in COLLECTIVES or name == "axis_index"
  if internals.has_named_axes(eqn) and not is_known:
    return False
  return all(may_run_again(inner) for body in bodies for inner in body.eqns)


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
