"""Large values that loops are given, though a small one says it all.

Autodiff takes what does not depend on the iteration out of a loop: a mask that
was broadcast to all heads is then held from before the forward loop to the end
of the backward one. Broadcast within the bodies, it is fused with its reader.
"""

import dataclasses
from collections.abc import Mapping

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, Atom, Inliner, internals, memory
from jaxmem.versions.values import Values, num_bytes, variables

# A broadcast that grows its operand less is not worth a barrier.
_MIN_BROADCAST_RATIO = 8
_SCOPE = "broadcast"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hoisted:
  """A broadcast that only two loops read, whole.

  Attributes:
    name: Unique within a program.
    eqn: The broadcast.
    size_bytes: What goes if the loops broadcast themselves.
  """

  name: str
  eqn: core.JaxprEqn
  size_bytes: int


def find_hoisted(
  values: Values, name: str, loops: tuple[int, int]
) -> tuple[Hoisted, ...]:
  """Finds the broadcasts that are constants of two loops and nothing else.

  The name of the pair is prefixed to all names.
  """
  eqns = values.eqns
  constants: list[Atom] = []
  others: set[core.Var] = set()
  for loop in loops:
    num_consts, _ = internals.scan_counts(eqns[loop])
    constants += eqns[loop].invars[:num_consts]
    others.update(variables(eqns[loop].invars[num_consts:]))
  found = []
  for var in variables(constants):
    if var not in values.definers:
      continue
    definition = eqns[values.definers[var]]
    size_bytes = _gain_bytes(definition)
    if size_bytes and {*values.readers[var]} <= {*loops} and var not in others:
      label = f"{name}:constant[{len(found)}]"
      found.append(Hoisted(name=label, eqn=definition, size_bytes=size_bytes))
  return tuple(found)


def _gain_bytes(eqn: core.JaxprEqn) -> int:
  """Returns how much larger the result of a broadcast is; 0 if not much.

  Broadcasts of scalars do not count: most are constants, which XLA moves into
  loops by itself.
  """
  if eqn.primitive.name != "broadcast_in_dim" or len(eqn.invars) != 1:
    return 0
  if not getattr(eqn.invars[0].aval, "shape", ()):
    return 0
  before = memory.size_bytes(eqn.invars[0].aval)
  after = memory.size_bytes(eqn.outvars[0].aval)
  return after - before if after >= _MIN_BROADCAST_RATIO * before else 0


def sink(
  eqn: core.JaxprEqn, broadcasts: Mapping[core.Var, core.JaxprEqn]
) -> core.JaxprEqn:
  """Returns a loop that broadcasts some of its constants itself.

  What is broadcast passes a barrier together with something that changes with
  each iteration; XLA would take the broadcast out of the loop otherwise.
  """
  num_consts, num_carry = internals.scan_counts(eqn)
  body = eqn.params["jaxpr"]
  fresh = [core.Var(v.aval) for v in body.invars]
  tie = min(fresh[num_consts:], key=num_bytes, default=None)
  stack = internals.empty_name_stack().extend(_SCOPE)
  inliner = Inliner(CUSTOM_DERIVATIVES)
  operands: list[Atom] = [*fresh]
  outer: list[Atom] = [*eqn.invars]
  inner = [*fresh]
  for position, atom in enumerate(eqn.invars[:num_consts]):
    if not isinstance(atom, core.Var) or atom not in broadcasts or not tie:
      continue
    definition = internals.with_name_stack(broadcasts[atom], stack)
    outer[position] = definition.invars[0]
    inner[position] = core.Var(definition.invars[0].aval)
    barrier = internals.barrier(definition, [inner[position], tie])
    result = core.Var(definition.outvars[0].aval)
    inliner.eqns += [
      barrier,
      definition.replace(invars=[barrier.outvars[0]], outvars=[result]),
    ]
    operands[position] = result
  if not inliner.eqns:
    return eqn
  outvars = inliner.inline(body, operands, internals.empty_name_stack())
  return internals.with_scan_body(
    eqn,
    inliner.finish(body, inner, outvars),
    outer,
    eqn.outvars,
    num_consts,
    num_carry,
  )
