"""Inlines the calls of a jaxpr, so that one list of equations remains."""

from collections.abc import Sequence
from typing import Any

from jax.extend import core

from jaxmem.jaxpr import internals

Atom = core.Var | core.Literal

# Where each call keeps what it calls.
_CALLS = {
  "call": "call_jaxpr",
  "checkpoint": "jaxpr",
  "closed_call": "call_jaxpr",
  "core_call": "call_jaxpr",
  "custom_jvp_call": "call_jaxpr",
  "custom_vjp_call": "call_jaxpr",
  "eval_jaxpr": "call_jaxpr",
  "jit": "jaxpr",
  "pjit": "jaxpr",
  "remat": "jaxpr",
  "remat2": "jaxpr",
}
_JITS = frozenset({"jit", "pjit"})
# Without them, a function can no longer be differentiated as its author meant.
CUSTOM_DERIVATIVES = frozenset({"custom_jvp_call", "custom_vjp_call"})


def flatten(
  jaxpr: core.Jaxpr, *, keep: frozenset[str] = frozenset()
) -> core.Jaxpr:
  """Returns an equal jaxpr without calls and without dead equations.

  Inlined are inner jits, custom derivatives, `jax.checkpoint` and closed calls;
  an inner jit that sets shardings, layouts or compiler options stays. What a
  differentiated `jax.checkpoint` recomputes reads its operands through an
  optimization barrier, as jax would lower it: without one, XLA would merge the
  recomputation with the original.

  Custom derivatives are gone afterwards, unless they are kept: flatten what is
  to be run, not what is still to be differentiated.

  Args:
    jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...).jaxpr`.
    keep: Names of calls that stay, such as `CUSTOM_DERIVATIVES`.

  Returns:
    A jaxpr with the same inputs, and each constant once. Arrays among the
    literals become constants.
  """
  inliner = Inliner(keep)
  outvars = inliner.inline(jaxpr, jaxpr.invars, internals.empty_name_stack())
  flat = inliner.finish(jaxpr, jaxpr.invars, outvars)
  return flat.replace(debug_info=jaxpr.debug_info)


def inlined_body(eqn: core.JaxprEqn) -> core.Jaxpr | None:
  """Returns what an equation calls, if it does nothing else; else None."""
  name = eqn.primitive.name
  body = eqn.params.get(_CALLS.get(name, ""))
  if not isinstance(body, core.Jaxpr) or len(body.invars) != len(eqn.invars):
    return None
  if name in _JITS and internals.has_placement(eqn):
    return None
  return body


class Inliner:
  """Collects equations over fresh variables, of one jaxpr after another.

  Attributes:
    eqns: The equations so far.
    constants: The constants so far, with their variables.
  """

  def __init__(self, keep: frozenset[str] = frozenset()):
    self.eqns: list[core.JaxprEqn] = []
    self.constants: list[tuple[core.Var, Any]] = []
    self._constant_of: dict[int, core.Var] = {}
    self._keep = keep

  def finish(
    self,
    jaxpr: core.Jaxpr,
    invars: Sequence[core.Var],
    outvars: Sequence[Atom],
  ) -> core.Jaxpr:
    """Returns what was collected, without dead equations.

    Args:
      jaxpr: What the result is a version of, for its debug information.
      invars: The inputs.
      outvars: The results.
    """
    eqns = _live_equations(self.eqns, outvars)
    read = {v for eqn in eqns for v in eqn.invars if isinstance(v, core.Var)}
    read |= {v for v in outvars if isinstance(v, core.Var)}
    constants = [(var, value) for var, value in self.constants if var in read]
    return jaxpr.replace(
      constvars=[var for var, _ in constants],
      consts=[value for _, value in constants],
      invars=[*invars],
      outvars=[*outvars],
      eqns=eqns,
      effects=internals.joint_effects(eqns, invars),
    )

  def inline(
    self, jaxpr: core.Jaxpr, operands: Sequence[Atom], stack: Any
  ) -> list[Atom]:
    """Appends the equations of a jaxpr; returns what stands for its results.

    Args:
      jaxpr: What to inline.
      operands: What stands for its inputs.
      stack: The name scopes of the call.
    """
    atoms: dict[core.Var, Atom] = dict(zip(jaxpr.invars, operands, strict=True))
    for var, value in zip(jaxpr.constvars, jaxpr.consts, strict=True):
      atoms[var] = self._constant(value, var.aval)
    for eqn in jaxpr.eqns:
      inputs = [self._read(atom, atoms) for atom in eqn.invars]
      inner = stack + internals.name_stack(eqn)
      kept = eqn.primitive.name in self._keep
      body = None if kept else inlined_body(eqn)
      if body is None:
        outputs = self._append(eqn, inputs, inner, atoms)
      else:
        if eqn.primitive.name in _JITS:
          inner = inner.extend(eqn.params["name"])
        inputs = self._guard(eqn, inputs, inner)
        outputs = self.inline(body, inputs, inner)
      atoms.update(zip(eqn.outvars, outputs, strict=True))
    return [self._read(atom, atoms) for atom in jaxpr.outvars]

  def _read(self, atom: Atom, atoms: dict[core.Var, Atom]) -> Atom:
    if isinstance(atom, core.Var):
      return atoms[atom]
    if getattr(atom.aval, "shape", ()):
      return self._constant(atom.val, atom.aval)
    return atom

  def _constant(self, value: Any, aval: Any) -> core.Var:
    # The list keeps the value alive, so that its id stays its own.
    if id(value) not in self._constant_of:
      self._constant_of[id(value)] = core.Var(aval)
      self.constants.append((self._constant_of[id(value)], value))
    return self._constant_of[id(value)]

  def _append(
    self,
    eqn: core.JaxprEqn,
    inputs: Sequence[Atom],
    stack: Any,
    atoms: dict[core.Var, Atom],
  ) -> list[core.Var]:
    outputs = [
      v if isinstance(v, core.DropVar) else core.Var(v.aval)
      for v in eqn.outvars
    ]
    self.eqns.append(
      internals.with_name_stack(eqn, stack).replace(
        invars=[*inputs],
        outvars=outputs,
        effects=internals.rename_effects(eqn.effects, atoms),
      )
    )
    return outputs

  def _guard(
    self, eqn: core.JaxprEqn, inputs: list[Atom], stack: Any
  ) -> list[Atom]:
    """Puts what a recomputation reads behind a barrier."""
    guarded = eqn.params.get("prevent_cse", False)
    if not eqn.params.get("differentiated", False) or not guarded:
      return inputs
    if isinstance(guarded, bool):
      guarded = (guarded,) * len(inputs)
    operands = {
      position: atom
      for position, atom in enumerate(inputs)
      if guarded[position] and isinstance(atom, core.Var)
    }
    if not operands:
      return inputs
    barrier = internals.barrier(eqn, [*operands.values()])
    self.eqns.append(internals.with_name_stack(barrier, stack))
    inputs = [*inputs]
    for position, var in zip(operands, barrier.outvars, strict=True):
      inputs[position] = var
    return inputs


def _live_equations(
  eqns: Sequence[core.JaxprEqn], outvars: Sequence[Atom]
) -> list[core.JaxprEqn]:
  """Returns the equations that an output or an effect needs."""
  live = {v for v in outvars if isinstance(v, core.Var)}
  kept = []
  for eqn in reversed(eqns):
    if eqn.effects or not live.isdisjoint(eqn.outvars):
      kept.append(eqn)
      live |= {v for v in eqn.invars if isinstance(v, core.Var)}
  return kept[::-1]
