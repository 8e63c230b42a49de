"""The three functions of jax's that jaxmem replaces, and nothing else of jax's.

Every program of a process is lowered by one of them and compiled by another,
whoever wrapped the function: there its jaxpr, shardings, mesh, donation and
options are known, and nothing of the user's is being traced. The third stages
a jitted function into an outer one, which takes no compiler options.

Which compile is planned, and how, travels as a compiler option named `jaxmem`:
jax's caches tell calls with different options apart, function names stay as
the user wrote them, and XLA never sees the option. What XLA sees is an
attribute of the module, by which the hook knows it again.

Written for jax 0.11.2 to 0.12.0.1. `what_moved` says which function a later jax
has moved; then nothing is replaced, and `jaxmem.jit` is `jax.jit`.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
from jax._src import compiler as _compiler
from jax._src import config as _config
from jax._src import core as _core
from jax._src import pjit as _pjit
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.interpreters import pxla as _pxla
from jax.extend import core
from jaxlib.mlir import ir as _ir
from jaxmem_hlo import compiler_hook

from jaxmem.compiler.compiling import Compiling, tagged
from jaxmem.compiler.persistent_cache import PersistentCache

OPTION = "jaxmem"
# Values of the option that begin so belong to `handling`: the hook shows these
# modules to somebody, and no cache knows them.
SHOWN = "shown"
# Values that end so belong to programs that run as they are scheduled: XLA is
# not to recompute anything after that, as it does on GPUs where a program is
# above a share of the device's memory.
AS_SCHEDULED = "-as-scheduled"
_REMATERIALIZATION = "rematerialization"
TOO_LARGE = (
  "XLA shows no program of 2 GiB or more, and arrays that a function captures"
  " are part of it; pass large ones as arguments"
)

_LOWER_PARAMETERS = (
  *("closed_jaxpr", "api_name", "fun_name", "in_shardings", "out_shardings"),
  *("in_layouts", "out_layouts", "donated_invars", "keep_unused"),
  *("context_mesh", "compiler_options_kvs", "lowering_platforms"),
  *("lowering_parameters", "pgle_profiler"),
)
_COMPILE_PARAMETERS = (
  *("backend", "computation", "devices", "compile_options", "host_callbacks"),
  *("executable_devices", "pgle_profiler"),
)
_WRITE_PARAMETERS = (
  *("cache_key", "compile_time_secs", "module_name", "backend", "executable"),
)
_STAGE_PARAMETERS = ("trace", "source_info", "args", "params")

# What programs are shown to in this thread; the caches tell the numbers apart.
_watch: contextvars.ContextVar[Callable[[Lowering], None] | None] = (
  contextvars.ContextVar("watch", default=None)
)
# What compiles of this thread with the option are shown to.
_compile_watch: contextvars.ContextVar[Callable[[Compiling], None] | None] = (
  contextvars.ContextVar("compile_watch", default=None)
)
_watch_number = jax.make_user_context()
_UNPLANNED = 0
_watch_numbers = itertools.count(_UNPLANNED + 1)
_install_lock = threading.Lock()
_is_installed = False
_policy: Policy | None = None


def what_moved() -> list[str]:
  """Says which of jax's functions are not as this file expects them.

  Returns:
    A sentence for each that moved; empty if all are where they were.
  """
  expected = (
    (_pxla, "lower_sharding_computation", _LOWER_PARAMETERS),
    (_compiler, "compile_or_get_cached", _COMPILE_PARAMETERS),
    (_compiler, "_cache_write", _WRITE_PARAMETERS),
    (_pjit, "pjit_staging_rule", _STAGE_PARAMETERS),
  )
  moved = []
  for module, name, parameters in expected:
    function = getattr(module, name, None)
    if function is None:
      moved.append(f"{module.__name__}.{name} is gone.")
      continue
    found = tuple(inspect.signature(function).parameters)
    if found != parameters:
      moved.append(
        f"{module.__name__}.{name} takes ({', '.join(found)}), expected"
        f" ({', '.join(parameters)})."
      )
  if _partial_eval.custom_staging_rules.get(_pjit.jit_p) is None:
    moved.append("jit has no staging rule.")
  return moved


class Policy(Protocol):
  """What is done at the doors; one object for the whole process."""

  def lower(self, lowering: Lowering) -> Any:
    """Returns what `lowering.lower` returned, for whichever jaxpr."""
    ...

  def compile(self, compiling: Compiling) -> Any:
    """Returns what `compiling.run` returned."""
    ...

  def stage(self, name: str) -> None:
    """Hears that a function of jaxmem's is called inside another's trace."""
    ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
  """A program that jax is about to lower.

  Attributes:
    jaxpr: The program.
    name: Of the function, as the user wrote it.
    option: The value of the compiler option `jaxmem`; None if it has none.
    donated: Of each input, whether the user donated it.
    num_devices: Over how many devices the inputs are spread.
    others: Names and values of the other compiler options.
    is_for_devices: Whether it is lowered for devices that are known. Exports
      for other platforms are not.
  """

  jaxpr: core.Jaxpr
  name: str
  option: str | None
  donated: tuple[bool, ...]
  num_devices: int
  others: tuple[tuple[str, Any], ...]
  is_for_devices: bool
  _lower: Callable[[core.Jaxpr, str | None], Any]

  def lower(
    self, jaxpr: core.Jaxpr | None = None, option: str | None = None
  ) -> Any:
    """Lowers the program, or another one in its place.

    Args:
      jaxpr: With the same inputs and outputs; None for the program itself.
      option: The value of the option `jaxmem` that it is compiled with; None
        for none.

    Returns:
      What jax's own function returns: its `compile` takes compiler options.
    """
    return self._lower(self.jaxpr if jaxpr is None else jaxpr, option)


def set_policy(policy: Policy) -> None:
  """Says what is done at the doors; until then programs pass as they are."""
  global _policy
  _policy = policy


def install() -> None:
  """Puts the doors into jax, once per process.

  Raises:
    RuntimeError: If one of jax's functions is not as expected.
  """
  global _is_installed
  with _install_lock:
    if _is_installed:
      return
    if moved := what_moved():
      raise RuntimeError(
        f"jaxmem does not know this version of jax: {' '.join(moved)}"
      )
    _pxla.lower_sharding_computation = _lowering_door(
      _pxla.lower_sharding_computation
    )
    _compiler.compile_or_get_cached = _compiling_door(
      _compiler.compile_or_get_cached
    )
    rules = _partial_eval.custom_staging_rules
    rules[_pjit.jit_p] = _staging_door(rules[_pjit.jit_p])
    _is_installed = True


def _split(
  options: Sequence[tuple[str, Any]],
) -> tuple[str | None, tuple[tuple[str, Any], ...]]:
  """Returns the value of our option, and all others."""
  values = [value for name, value in options if name == OPTION]
  others = tuple(pair for pair in options if pair[0] != OPTION)
  return (values[-1] if values else None), others


@contextlib.contextmanager
def watching(watch: Callable[[Lowering], None]) -> Iterator[None]:
  """Shows each program to a function that jax is about to lower.

  None comes from jax's caches, whatever ran before, and none is planned. What
  the function raises ends the call that led to the program. Only programs of
  this thread are shown.

  Raises:
    RuntimeError: If this version of jax is not known.
  """
  with _watched(watch, next(_watch_numbers)):
    yield


@contextlib.contextmanager
def unplanned() -> Iterator[None]:
  """Lets jax lower programs that nobody has asked to plan.

  Neither those of jaxmem.jit nor what `Policy` would plan.

  Raises:
    RuntimeError: If this version of jax is not known.
  """
  with _watched(lambda lowering: None, _UNPLANNED):
    yield


@contextlib.contextmanager
def _watched(watch: Callable[[Lowering], None], number: int) -> Iterator[None]:
  install()
  before = _watch.set(watch)
  try:
    with _watch_number(number):
      yield
  finally:
    _watch.reset(before)


@contextlib.contextmanager
def compiles_seen(watch: Callable[[Compiling], None]) -> Iterator[None]:
  """Shows each program of this thread to a function before XLA compiles it.

  Those with the option `jaxmem`.
  """
  before = _compile_watch.set(watch)
  try:
    yield
  finally:
    _compile_watch.reset(before)


def _most_devices(shardings: Sequence[Any]) -> int:
  """Returns the most devices that one of some shardings has, at least 1."""
  return max([1, *(getattr(each, "num_devices", 1) for each in shardings)])


def _lowering_door(original: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(original)
  def lower_sharding_computation(
    closed_jaxpr: Any, api_name: str, fun_name: str, *args: Any, **kwargs: Any
  ) -> Any:
    option, others = _split(kwargs["compiler_options_kvs"])

    def lower(jaxpr: Any, new_option: str | None) -> Any:
      ours = () if new_option is None else ((OPTION, new_option),)
      changed = {**kwargs, "compiler_options_kvs": (*others, *ours)}
      return original(jaxpr, api_name, fun_name, *args, **changed)

    given = dict(zip(_LOWER_PARAMETERS[3:], args, strict=False)) | kwargs
    lowering = Lowering(
      jaxpr=closed_jaxpr,
      name=fun_name,
      option=option,
      donated=tuple(given["donated_invars"]),
      num_devices=_most_devices(given["in_shardings"]),
      others=others,
      is_for_devices=given["lowering_platforms"] is None,
      _lower=lower,
    )
    watch = _watch.get()
    if watch is not None:
      watch(lowering)
      return lower(closed_jaxpr, None)
    if _policy is None:
      return lower(closed_jaxpr, option)
    return _policy.lower(lowering)

  return lower_sharding_computation


def _compiling_door(original: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(original)
  def compile_or_get_cached(
    backend: Any,
    computation: Any,
    devices: Any,
    compile_options: Any,
    host_callbacks: Any,
    executable_devices: Any,
    *args: Any,
    **kwargs: Any,
  ) -> Any:
    option, others = _split(compile_options.env_option_overrides)
    if option is not None:
      compile_options.env_option_overrides = list(others)
      if option.endswith(AS_SCHEDULED):
        _forbid_rematerialization(compile_options)

    def program(tag: str | None) -> Any:
      return computation if tag is None else tagged(computation, tag)

    @compiler_hook.interruptible
    def run(tag: str | None, use_cache: bool) -> Any:
      if not use_cache:
        return _compiler.backend_compile_and_load(
          *(backend, program(tag), executable_devices),
          *(compile_options, host_callbacks),
        )
      return original(
        *(backend, program(tag), devices, compile_options, host_callbacks),
        executable_devices,
        *args,
        **kwargs,
      )

    if option is None:
      return _unplanned(lambda: run(None, True))
    name = _ir.StringAttr(computation.operation.attributes["sym_name"]).value
    compiling = Compiling(
      name=name,
      option=option,
      module=computation,
      devices=tuple(devices.flat),
      settings=compile_options.SerializeAsString(),
      is_profiled=_is_profiled(),
      cache=PersistentCache(backend, devices, compile_options, name, program),
      _run=run,
    )
    watch = _compile_watch.get()
    if watch is not None:
      watch(compiling)
    if option.startswith(SHOWN):
      with compiler_hook.installed():
        return compiling.run(option, use_cache=False)
    if _policy is None:
      return compiling.run(None)
    return _policy.compile(compiling)

  return compile_or_get_cached


def _forbid_rematerialization(compile_options: Any) -> None:
  """Disables XLA's pass, besides those that the user disabled."""

  def with_ours(passes: str) -> str:
    return ",".join([*filter(None, passes.split(",")), _REMATERIALIZATION])

  debug_options = compile_options.executable_build_options.debug_options
  given = debug_options.xla_disable_hlo_passes
  debug_options.xla_disable_hlo_passes = with_ours(given)
  # What the user gave as a compiler option takes the place of the others.
  compile_options.env_option_overrides = [
    (name, with_ours(value) if name == "xla_disable_hlo_passes" else value)
    for name, value in compile_options.env_option_overrides
  ]


def _is_profiled() -> bool:
  """Whether jax gives XLA profiles of earlier runs, or expects some."""
  expects = _config.compilation_cache_expect_pgle.value
  return bool(_config.enable_pgle.value or expects)


def _staging_door(original: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(original)
  def stage(trace: Any, source_info: Any, *args: Any, **params: Any) -> Any:
    option, others = _split(params["compiler_options_kvs"])
    if option is not None:
      params = {**params, "compiler_options_kvs": others}
      if _policy is not None:
        _policy.stage(params["name"])
    return original(trace, source_info, *args, **params)

  return stage


def _unplanned[T](run: Callable[[], T]) -> T:
  """Compiles what nobody asked to plan.

  While another thread's program is planned, XLA serializes every module for
  the hook, which fails above 2 GiB: then it is compiled without the hook.
  """
  try:
    return run()
  except jax.errors.JaxRuntimeError as error:
    if not (is_too_large(error) and compiler_hook.is_installed()):
      raise
    with compiler_hook.taken_out():
      return run()


def is_too_large(error: Exception) -> bool:
  """Whether XLA could not show a module, as it takes 2 GiB or more."""
  return "serialize" in str(error)


def devices(lowered: Any) -> list[Any]:
  """Returns the devices that `Lowering.lower`'s result is to run on."""
  return list(lowered._device_list)


def program(lowered: Any) -> Any:
  """Returns the module of what was lowered; jax keeps one for what is alike."""
  return lowered._hlo


def executable(compiled: Any) -> Any:
  """Returns XLA's executable of what `Lowering.lower`'s result compiles to."""
  return compiled.xla_executable


def is_jitted(fun: Any) -> bool:
  """Whether jax itself jitted a function, or something that traces as jax."""
  owner = getattr(getattr(fun, "trace", None), "__self__", None)
  return isinstance(owner, type(jax.jit(_most_devices)))


def is_tracing() -> bool:
  """Whether something is being traced in this thread."""
  return not _core.trace_state_clean()


def trace_context() -> Any:
  """Returns all settings and contexts that jax's trace cache tells apart."""
  return _config.trace_context()
