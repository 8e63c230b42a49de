"""The public functions: `jit` and `plan`. Orchestration, no algorithms."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jaxlib.version
from jaxmem_hlo import replay, transform
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import donation, dump, layout, signature, targets, units
from jaxmem.module_plan import ModulePlan, plan_module
from jaxmem.options import Options
from jaxmem.plan import InfeasibleError, Plan
from jaxmem.progress import Progress
from jaxmem.version import __version__

_JIT_KEYWORDS = frozenset(inspect.signature(jax.jit).parameters) - {"fun"}
_plan_numbers = itertools.count()
_NOT_GIVEN: Any = object()


def jit(
  fun: Callable[..., Any] = _NOT_GIVEN,
  /,
  *,
  options: Options | None = None,
  **jit_kwargs: Any,
) -> Any:
  """Compiles like `jax.jit`, with the order of operations planned.

  Planning happens inside compilation, on XLA's scheduled program: the result
  is an ordinary jitted function with the same kernels and the same numbers.
  Where no order saves enough, or planning fails, XLA's own plan runs.

      @jaxmem.jit(donate_argnums=(0, 1))
      def train_step(params, opt_state, batch): ...

  Args:
    fun: The function; leave it out to use `jit` as a decorator with arguments.
    options: Planning options.
    **jit_kwargs: Everything that `jax.jit` takes, with the same meaning.

  Returns:
    What `jax.jit` returns (or a decorator, without `fun`).

  Raises:
    TypeError: If `fun` is not callable or a keyword is not one of jax.jit's.
  """
  options = options or Options()
  _check_jit_keywords(jit_kwargs)
  if fun is _NOT_GIVEN:
    return functools.partial(jit, options=options, **jit_kwargs)
  _check_callable(fun)
  tag = options.tag(__version__)
  transform.add_handler(tag, functools.partial(_rewrite, options))
  return jax.jit(_marked(fun, tag), **jit_kwargs)


def plan(
  fun: Callable[..., Any],
  /,
  *args: Any,
  target: targets.Target | str | os.PathLike[str] | None = None,
  memory_limit: int | float | str | None = None,
  options: Options | None = None,
  **kwargs: Any,
) -> Plan:
  """Plans a step and measures the plan, without running anything.

  Compiles the step twice, as `jax.jit` and as `jaxmem.jit` would.

  Args:
    fun: The step, not jitted.
    *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
    target: A device to plan for that need not be here: "h200", "h100",
      "a100-80", the path or text of a GpuTargetConfigProto, or "cpu". None
      plans for the device jax would use.
    memory_limit: Most bytes of device memory that the program may take:
      arguments, outputs and temporaries. Bytes, "24GiB", or, with a target,
      a share of its memory ("80%" or 0.8).
    options: Planning options.
    **kwargs: jax.jit's keywords (donate_argnums, static_argnums, ...); any
      other is passed to `fun`.

  Returns:
    The plan.

  Raises:
    InfeasibleError: If the plan does not fit `memory_limit`.
    TypeError: If `fun` is not a plain function that jax can trace.
    ValueError: On an unknown target or a malformed limit.
    RuntimeError: If the target cannot be compiled for here.
  """
  _check_callable(fun)
  if hasattr(fun, "lower") and hasattr(fun, "trace"):
    raise TypeError(
      f"plan needs the function itself, got a jitted one: {fun!r}. Pass the"
      " undecorated function, and jit's keywords to plan."
    )
  device = None if target is None else targets.get(target)
  limit = _limit_bytes(memory_limit, device)
  jit_kwargs = {k: v for k, v in kwargs.items() if k in _JIT_KEYWORDS}
  call_kwargs = {k: v for k, v in kwargs.items() if k not in _JIT_KEYWORDS}
  session = _Session(fun, jit_kwargs, device, options or Options())
  result = session.run(args, call_kwargs)
  if limit is not None and result.total_bytes > limit:
    _raise_infeasible(result, limit)
  return result


def _check_callable(fun: Any) -> None:
  if not callable(fun):
    raise TypeError(f"fun must be callable, got {fun!r}.")


def _check_jit_keywords(jit_kwargs: dict[str, Any]) -> None:
  unknown = sorted(jit_kwargs.keys() - _JIT_KEYWORDS)
  if unknown:
    raise TypeError(
      f"jit got an unexpected keyword {unknown[0]!r}; it takes options= and"
      f" those of jax.jit: {', '.join(sorted(_JIT_KEYWORDS))}."
    )


def _limit_bytes(
  limit: int | float | str | None, device: targets.Target | None
) -> int | None:
  if limit is None:
    return None
  total = device.memory_bytes if device is not None else None
  return units.parse_bytes(limit, total_bytes=total)


def _raise_infeasible(result: Plan, limit: int) -> None:
  fixed = result.total_bytes - result.temp_bytes
  bound = fixed + result.lower_bound_bytes
  top = ", ".join(
    f"{b.name} ({units.format_bytes(b.size_bytes)})"
    for b in result.after.at_peak()[:3]
  )
  raise InfeasibleError(
    f"No order of {result.name} fits memory_limit"
    f" {units.format_bytes(limit)}: the smallest plan found takes"
    f" {units.format_bytes(result.total_bytes)}, and no order takes less than"
    f" {units.format_bytes(bound)}. Largest at its peak: {top}. Donate"
    " arguments, shrink the batch, or use jax.checkpoint.",
    smallest_bytes=result.total_bytes,
    lower_bound_bytes=bound,
  )


def _marked(fun: Callable[..., Any], tag: str) -> Callable[..., Any]:
  """Wraps a function so that its modules carry a mark.

  The compiler hook is installed when jax first traces the function: no
  earlier, since that initialises jax's backends, and always before a compile.
  """

  @functools.wraps(fun)
  def step(*args: Any, **kwargs: Any) -> Any:
    transform.install()
    return fun(*args, **kwargs)

  name = getattr(fun, "__name__", type(fun).__name__)
  step.__name__ = transform.mark(name, tag)
  return step


def _rewrite(options: Options, data: bytes, platform: str) -> bytes | None:
  module = Module.from_bytes(data)
  return _apply(module, plan_module(module, platform, options))


def _apply(module: Module, decided: ModulePlan) -> bytes | None:
  return decided.apply(module).to_bytes() if decided.is_changed else None


def _new_tag() -> str:
  """A tag that no other process or call uses.

  It makes the module's name, and with it the key in a persistent compilation
  cache, new: a cached program would not pass by the hook.
  """
  return f"plan{os.getpid()}n{next(_plan_numbers)}t{time.time_ns()}"


def _memory(compiled: jax.stages.Compiled) -> Any:
  memory = compiled.memory_analysis()
  if memory is None:
    raise RuntimeError(
      "XLA reports no memory figures for this platform; plan for the CPU or an"
      " NVIDIA GPU."
    )
  return memory


def _without_data(leaf: Any) -> Any:
  """An array's shape and type in its place, so that its memory can go."""
  if not isinstance(leaf, jax.Array):
    return leaf
  return jax.ShapeDtypeStruct(
    leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=leaf.weak_type
  )


@dataclasses.dataclass(kw_only=True)
class _Captured:
  """What the hook saw and decided."""

  data: bytes = b""
  platform: str = ""
  plan: ModulePlan | None = None
  error: Exception | None = None


class _Session:
  """One call of `plan`."""

  def __init__(
    self,
    fun: Callable[..., Any],
    jit_kwargs: dict[str, Any],
    device: targets.Target | None,
    options: Options,
  ):
    self._fun = fun
    self._jit_kwargs = jit_kwargs
    self._device = device
    self._options = options
    self._captured = _Captured()

  def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    tag = _new_tag()
    progress = Progress()
    if self._device is not None and self._device.platform == "cuda":
      self._device.topology()
    transform.install()
    transform.add_handler(tag, self._handle)
    start = time.perf_counter()
    try:
      progress.show("compiling XLA's own plan")
      baseline = self._compile(self._fun, args, kwargs)
      progress.show("planning and compiling the plan")
      planned = self._compile(_marked(self._fun, tag), args, kwargs)
    finally:
      transform.remove_handler(tag)
      progress.close()
    result = self._result(baseline, planned, time.perf_counter() - start)
    structs = jax.tree.map(_without_data, (args, kwargs))
    again = functools.partial(self._replay, *structs)
    return dataclasses.replace(result, replay=again)

  def _handle(self, data: bytes, platform: str) -> bytes | None:
    captured = self._captured
    captured.data, captured.platform = data, platform
    try:
      module = Module.from_bytes(data)
      captured.plan = plan_module(module, platform, self._options)
      return _apply(module, captured.plan)
    except Exception as error:  # Reported by plan itself, in _result.
      captured.error = error
      return None

  def _lower(
    self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
  ) -> jax.stages.Lowered:
    jitted = jax.jit(fun, **self._jit_kwargs)
    if self._device is None:
      return jitted.lower(*args, **kwargs)
    return targets.lower(jitted, args, kwargs, self._device)

  def _compiler_options(self) -> dict[str, Any] | None:
    return targets.compile_options(self._device) if self._device else None

  def _compile(
    self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
  ) -> jax.stages.Compiled:
    lowered = self._lower(fun, args, kwargs)
    return lowered.compile(compiler_options=self._compiler_options())

  def _replay(
    self, args: tuple[Any, ...], kwargs: dict[str, Any]
  ) -> replay.ReplayReport:
    """Compiles the plan again and replays it on XLA's real assignment."""
    tag = _new_tag()
    handler = functools.partial(_rewrite, self._options)
    transform.add_handler(tag, handler)
    try:
      lowered = self._lower(_marked(self._fun, tag), args, kwargs)
      real = dump.compile_and_read(lowered, self._compiler_options())
    finally:
      transform.remove_handler(tag)
    return replay.check_assignment(
      Module(real.hlo_module), real.buffer_assignment, self._captured.platform
    )

  def _result(
    self,
    baseline: jax.stages.Compiled,
    planned: jax.stages.Compiled,
    compile_s: float,
  ) -> Plan:
    captured = self._captured
    if captured.plan is None:
      raise RuntimeError(
        "The step was compiled, but could not be planned. Its module holds"
        " something jaxmem does not understand; jaxmem.jit would leave it to"
        " XLA's own plan."
      ) from captured.error
    module = Module.from_bytes(captured.data)
    model = AssignmentModel(module, captured.platform)
    memory = _memory(planned)
    before = _memory(baseline).temp_size_in_bytes
    after = memory.temp_size_in_bytes
    decided = captured.plan
    planned_module = decided.apply(module)
    planned_model = AssignmentModel(planned_module, captured.platform)
    return Plan(
      name=getattr(self._fun, "__name__", type(self._fun).__name__),
      target=self._device.name if self._device else jax.default_backend(),
      status=decided.status,
      method=decided.method,
      is_order_proved=decided.search_proved,
      baseline_temp_bytes=before,
      temp_bytes=after,
      predicted_temp_bytes=decided.planned_bytes,
      baseline_predicted_bytes=decided.baseline_bytes,
      lower_bound_bytes=min(decided.lower_bound_bytes, after),
      argument_bytes=memory.argument_size_in_bytes,
      output_bytes=memory.output_size_in_bytes,
      alias_bytes=memory.alias_size_in_bytes,
      num_instructions=decided.num_instructions,
      num_removed_copies=len(decided.removed_copies),
      kept_copy_bytes=dict(decided.kept_copy_bytes),
      num_pinned=decided.num_pinned,
      planning_s=decided.seconds,
      compile_s=compile_s,
      versions={
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "jaxmem": __version__,
      },
      order=tuple(
        i.name for i in planned_module.schedule(planned_module.entry.id)
      ),
      donation=donation.advise(
        module, signature.read(planned, self._fun, self._jit_kwargs)
      ),
      before=layout.describe(module, model.assign()),
      after=layout.describe(planned_module, planned_model.assign()),
    )
