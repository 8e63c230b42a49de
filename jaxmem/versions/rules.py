"""Which equations may run a second time, in the backward loop."""

from jax.extend import core

_HOST_CALLS = frozenset(
  {"pure_callback", "io_callback", "debug_callback", "debug_print"}
)
_KERNELS = frozenset({"pallas_call", "ffi_call", "custom_call"})
_COLLECTIVES = frozenset(
  """
  all_gather all_gather_invariant all_gather_reduced all_to_all pgather pmax
  pmin ppermute psum psum2 psum_invariant psum_scatter ragged_all_to_all
  reduce_scatter unreduced_psum
  """.split()
)


def why_not_again(eqn: core.JaxprEqn) -> str:
  """Returns why an equation must not run a second time, or "".

  Random bits that are drawn from a key are the same again. A collective would
  be right as well, but the time that it takes is not known here.
  """
  name = eqn.primitive.name
  if eqn.effects:
    return f"{name} has effects"
  if name in _HOST_CALLS:
    return f"{name} calls the host"
  if name == "rng_uniform":
    return "rng_uniform draws other numbers when it runs again"
  if name in _COLLECTIVES:
    return f"{name} communicates between devices"
  if name in _KERNELS:
    return f"what {name} costs is not known"
  if name == "while":
    return "it comes from a while loop of unknown length"
  for body in core.jaxprs_in_params(eqn.params):
    for inner in body.eqns:
      reason = why_not_again(inner)
      if reason:
        return reason
  return ""
