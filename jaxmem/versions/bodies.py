"""What loops, branches and calls run: jaxprs within an equation."""

import math

from jax.extend import core

from jaxmem.jaxpr import internals

# Where equations keep what they run.
_PARAMETERS = {
  "cond": "branches",
  "while": "body_jaxpr",
  **dict.fromkeys(("jit", "pjit", "scan", "shard_map"), "jaxpr"),
}


def bodies(eqn: core.JaxprEqn) -> tuple[core.Jaxpr, ...]:
  """Returns what an equation runs; of branches, all."""
  value = eqn.params.get(_PARAMETERS.get(eqn.primitive.name, ""), ())
  return value if isinstance(value, tuple) else (value,)


def with_body(
  eqn: core.JaxprEqn, place: int, body: core.Jaxpr
) -> core.JaxprEqn:
  """Returns the equation with another one of its bodies."""
  parameter = _PARAMETERS[eqn.primitive.name]
  value = eqn.params[parameter]
  changed = (
    (*value[:place], body, *value[place + 1 :])
    if isinstance(value, tuple)
    else body
  )
  return eqn.replace(params={**eqn.params, parameter: changed})


def num_runs(eqn: core.JaxprEqn) -> int:
  """Returns how often an equation runs its bodies; once where unknown."""
  return eqn.params["length"] if eqn.primitive.name == "scan" else 1


def num_constants(eqn: core.JaxprEqn) -> int:
  """Returns how many first inputs of its body a loop never changes."""
  if eqn.primitive.name == "scan":
    return internals.scan_counts(eqn)[0]
  return eqn.params.get("body_nconsts", 0)  # Of `while`.


def num_shards(eqn: core.JaxprEqn) -> int:
  """Returns on how many devices each has values of its own in the bodies."""
  axes = eqn.params.get("newly_manual_axes", ())  # Of `shard_map`.
  return math.prod(eqn.params["mesh"].shape[axis] for axis in axes)
