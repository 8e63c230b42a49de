"""All that is read of jaxprs beyond jax's documented interface.

Written for jax 0.11.2 to 0.12, in which:
- `Jaxpr` and `ClosedJaxpr` are one class, whose constants are attached to it;
- `scan` says what its operands are by `ft_in`, a tree of constants, carry and
  scanned operands (before: `num_consts` and `num_carry`);
- an effect on an operand names the operand's variable (before: its position),
  and equations with collectives have a `NamedAxisEffect`;
- a name stack is a tuple of scopes and transforms;
- a `shard_map` says by `mesh`, `newly_manual_axes` and `check_vma` how it runs,
  and types of arrays say by `nospec` how residuals leave it;
- what `jax.jit(...).trace(...)` returns keeps all that it lowers in `_params`.

No private module is imported: what follows reads attributes of objects that
`jax.make_jaxpr` and `jax.jit(...).trace` return. A later jax that changes them
fails in this file.
"""

import copy
import functools
import itertools
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core, source_info_util

_INSTALLED = tuple(
  sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")
)
# Generated code, as that of wrappers in flax and jax, lies in "<string>".
_GENERATED_CODE = "<"


@functools.cache
def barrier_primitive() -> core.Primitive:
  """Returns the primitive of `jax.lax.optimization_barrier`."""
  jaxpr = jax.make_jaxpr(jax.lax.optimization_barrier)(0.0)
  return jaxpr.eqns[0].primitive


def barrier(like: core.JaxprEqn, operands: Sequence[core.Var]) -> core.JaxprEqn:
  """Returns an optimization barrier, with the scopes of another equation."""
  return like.replace(
    primitive=barrier_primitive(),
    params={},
    invars=[*operands],
    outvars=[core.Var(operand.aval) for operand in operands],
    effects=core.no_effects,
  )


def scan_counts(eqn: core.JaxprEqn) -> tuple[int, int]:
  """Returns how many constants and how many carries a scan has."""
  consts, carry, _ = eqn.params["ft_in"].unpack()
  return len(consts), len(carry)


def residual_spec(
  eqn: core.JaxprEqn, var: core.Var
) -> jax.sharding.PartitionSpec:
  """Returns how a value leaves a `shard_map` that nothing says it of.

  As jax lets residuals leave: what differs between devices lies side by side.

  Args:
    eqn: The `shard_map`.
    var: A value of its body.
  """
  mesh, manual = eqn.params["mesh"], eqn.params["newly_manual_axes"]
  names = tuple(name for name in mesh.axis_names if name in manual)
  aval: Any = var.aval
  return aval.nospec(mesh, eqn.params["check_vma"], names)


def shape_of(aval: Any) -> jax.ShapeDtypeStruct:
  """Returns what to trace a function with for an argument of a type.

  Where axes of the mesh are explicit, types say how arrays are spread.
  """
  explicit = None if aval.sharding.mesh.empty else aval.sharding
  return jax.ShapeDtypeStruct(
    aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=explicit
  )


def name_stack(eqn: core.JaxprEqn) -> Any:
  """Returns the equation's scopes within its own jaxpr; they add up."""
  return eqn.source_info.name_stack


def with_name_stack(eqn: core.JaxprEqn, stack: Any) -> core.JaxprEqn:
  """Returns the equation in other scopes."""
  return eqn.replace(source_info=eqn.source_info.replace(name_stack=stack))


def empty_name_stack() -> Any:
  """Returns the scopes of a whole program: none."""
  return source_info_util.new_name_stack()


def within_scopes(eqn: core.JaxprEqn, outer: core.JaxprEqn) -> core.JaxprEqn:
  """Returns an equation as one of what `outer` runs.

  Its scopes are those within it, if they began with those of `outer`.
  """
  scopes, first = name_stack(eqn).stack, name_stack(outer).stack
  if scopes[: len(first)] != first:
    return eqn
  inner = name_stack(eqn)[len(first) :]
  return with_name_stack(eqn, inner)


def is_transposed(eqn: core.JaxprEqn) -> bool:
  """Whether the equation is part of a backward pass."""
  return any(derivatives(eqn))


def derivatives(eqn: core.JaxprEqn) -> list[bool]:
  """Returns whether each derivative is transposed that made the equation.

  The outermost comes first: in the backward pass of a function that takes
  gradients itself, its own forward pass is `transpose(jvp(jvp()))`, which gives
  [True, False], and its own backward pass [True, True].
  """
  # A scope that the user calls "transpose" is not a transform.
  names = [
    element.name
    for element in name_stack(eqn).stack
    if type(element).__name__ == "Transform"
  ]
  # A transposed derivative is written as a transform of its "jvp".
  return [
    name == "transpose"
    for before, name in itertools.pairwise(["", *names])
    if name == "transpose" or (name == "jvp" and before != "transpose")
  ]


def source(eqn: core.JaxprEqn) -> str:
  """Returns "file:line" of the user's code, or the name scope.

  The innermost frame outside of installed packages counts.
  """
  traceback = eqn.source_info.traceback
  for frame in traceback.frames if traceback else ():
    if _is_users(frame.file_name):
      return f"{frame.file_name}:{frame.line_num}"
  return str(name_stack(eqn))


@functools.cache
def _is_users(file_name: str) -> bool:
  return not file_name.startswith((*_INSTALLED, _GENERATED_CODE))


def argument_names(jaxpr: core.Jaxpr) -> list[str]:
  """Returns a name for each input of a jaxpr."""
  names = jaxpr.debug_info.arg_names or ()
  if len(names) != len(jaxpr.invars):
    names = [None] * len(jaxpr.invars)
  return [name or f"arg{index}" for index, name in enumerate(names)]


def donated_inputs(traced: jax.stages.Traced) -> tuple[bool, ...]:
  """Returns which inputs of a traced function's jaxpr are donated.

  Args:
    traced: From `jax.jit(fun, ...).trace(...)`.
  """
  infos = jax.tree.leaves(
    traced.args_info, is_leaf=lambda node: hasattr(node, "donated")
  )
  donated = [bool(info.donated) for info in infos]
  # Constants that jax passes as arguments come first.
  return (*[False] * (len(traced.jaxpr.invars) - len(donated)), *donated)


def with_jaxpr(
  traced: jax.stages.Traced, jaxpr: core.Jaxpr
) -> jax.stages.Traced:
  """Returns a traced function that runs another jaxpr.

  Donation, shardings, layouts and the trees of arguments and results stay.

  Args:
    traced: From `jax.jit(fun, ...).trace(...)`.
    jaxpr: With the inputs and outputs of the function's own.
  """
  changed: Any = copy.copy(traced)
  changed._params = {**changed._params, "jaxpr": jaxpr}
  # These were derived from the parameters that changed.
  changed._lojax = None
  changed._closure_converted = None
  return changed


def rename_effects(
  effects: Iterable[Any], atoms: Mapping[core.Var, core.Var | core.Literal]
) -> set[Any]:
  """Returns the effects with the variables that they name replaced."""
  return {
    effect.replace(input=atoms[effect.input])
    if getattr(effect, "input", None) in atoms
    else effect
    for effect in effects
  }


def joint_effects(
  eqns: Iterable[core.JaxprEqn], invars: Sequence[core.Var]
) -> set[Any]:
  """Returns the effects that the caller of these equations can see."""
  found = {effect for eqn in eqns for effect in eqn.effects}
  return {e for e in found if getattr(e, "input", None) in (None, *invars)}


def has_named_axes(eqn: core.JaxprEqn) -> bool:
  """Whether an equation, or one in it, works across devices of named axes."""
  return any(map(_is_of_axis, eqn.effects))


def has_side_effects(eqn: core.JaxprEqn) -> bool:
  """Whether an equation does more than return values, each time that it runs.

  That it works across devices of named axes is an effect to jax, too.
  """
  return not all(map(_is_of_axis, eqn.effects))


def _is_of_axis(effect: Any) -> bool:
  return type(effect).__name__ == "NamedAxisEffect"


def has_placement(eqn: core.JaxprEqn) -> bool:
  """Whether an inner jit says more than which equations to run."""
  params = eqn.params
  shardings = (*params["in_shardings"], *params["out_shardings"])
  layouts = (*params["in_layouts"], *params["out_layouts"])
  return (
    any(type(each).__name__ != "UnspecifiedValue" for each in shardings)
    or any(each is not None for each in layouts)
    or bool(params["compiler_options_kvs"])
  )


def bind(eqn: core.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
  """Runs one equation on arrays, or traces it on tracers."""
  stack = source_info_util.current_name_stack() + name_stack(eqn)
  params = eqn.primitive.get_bind_params(eqn.params)
  with (
    source_info_util.user_context(eqn.source_info.traceback, name_stack=stack),
    eqn.ctx.manager,
  ):
    results = eqn.primitive.bind(*operands, **params)
  return [*results] if eqn.primitive.multiple_results else [results]


def result_avals(
  eqn: core.JaxprEqn,
  operands: Sequence[core.Var | core.Literal],
  params: Mapping[str, Any],
) -> list[Any]:
  """Returns the types of an equation's results for other operands."""
  avals, _ = eqn.primitive.abstract_eval(
    *(operand.aval for operand in operands), **params
  )
  return [*avals] if eqn.primitive.multiple_results else [avals]


@functools.cache
def scan_trees(
  num_consts: int, num_carry: int, num_scanned: int, num_stacked: int
) -> tuple[Any, Any]:
  """Returns the parameters `ft_in` and `ft_out` of a scan.

  They say how many operands and results of each kind there are. They are read
  from a scan of scalars, since their type is not public.
  """
  total = num_consts + num_carry + num_scanned

  def loop(consts, carry, scanned):
    def body(carry, slices):
      everything = sum([*consts, *carry, *slices], 0.0)
      return [everything] * num_carry, [everything] * num_stacked

    return jax.lax.scan(body, carry, scanned, length=2)

  args = [0.0] * num_consts, [0.0] * num_carry, [np.zeros(2)] * num_scanned
  jaxpr = jax.make_jaxpr(loop)(*args)
  (eqn,) = (e for e in jaxpr.eqns if e.primitive.name == "scan")
  if len(eqn.invars) != total or scan_counts(eqn) != (num_consts, num_carry):
    raise RuntimeError(
      f"jax {jax.__version__} traced a scan of {num_consts} constants,"
      f" {num_carry} carries and {num_scanned} slices in another form."
    )
  return eqn.params["ft_in"], eqn.params["ft_out"]


def with_scan_body(
  eqn: core.JaxprEqn,
  body: core.Jaxpr,
  operands: Sequence[core.Var | core.Literal],
  outvars: Sequence[core.Var],
  num_consts: int,
  num_carry: int,
) -> core.JaxprEqn:
  """Returns a scan with another body and operands.

  Args:
    eqn: The scan.
    body: Its new body: constants, carry and slices to carry and slices.
    operands: What it is given, in the order of the body's inputs.
    outvars: Its first results; further ones get variables of their own.
    num_consts: How many operands are constants.
    num_carry: How many are carried.
  """
  ft_in, ft_out = scan_trees(
    num_consts,
    num_carry,
    len(operands) - num_consts - num_carry,
    len(body.outvars) - num_carry,
  )
  params = {**eqn.params, "jaxpr": body, "ft_in": ft_in, "ft_out": ft_out}
  avals = result_avals(eqn, operands, params)
  added = [core.Var(aval) for aval in avals[len(outvars) :]]
  return eqn.replace(
    invars=[*operands], outvars=[*outvars, *added], params=params
  )
