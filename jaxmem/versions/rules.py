"""Which equations may run a second time, in the backward pass, and how."""

from collections.abc import Mapping, Sequence

from jax.extend import core

from jaxmem.jaxpr import Atom, Inliner, internals

# The name scope of equations that run again; profiles show it.
RECOMPUTE_SCOPE = "recompute"

_HOST_CALLS = "debug_callback debug_print io_callback pure_callback"
_KERNELS = "custom_call ffi_call pallas_call"
_COLLECTIVES = """
  all_gather all_gather_invariant all_gather_reduced all_to_all pgather pmax
  pmin ppermute psum psum2 psum_invariant psum_scatter ragged_all_to_all
  reduce_scatter unreduced_psum
"""
# `rng_uniform` draws other numbers when it runs again.
_NOT_AGAIN = frozenset(
  f"{_HOST_CALLS} {_KERNELS} {_COLLECTIVES} rng_uniform while".split()
)


def may_run_again(eqn: core.JaxprEqn) -> bool:
  """Whether an equation, its callees included, may run a second time.

  Random bits that are drawn from a key are the same again. A collective would
  be right as well, but the time that it takes is not known here; nor is that of
  a kernel, or of a `while` loop.
  """
  return (
    not eqn.effects
    and eqn.primitive.name not in _NOT_AGAIN
    and all(
      may_run_again(inner)
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
