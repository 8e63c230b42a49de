"""JAX's CUDA plugin: XLA's GPU compiler, loaded where there is no GPU."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from jax.experimental import topologies

_PLUGINS = ("xla_cuda13", "xla_cuda12")
_SKIP_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"


def find_plugin() -> str | None:
  """Returns the module of the installed CUDA plugin, None if there is none."""
  for plugin in _PLUGINS:
    try:
      if importlib.util.find_spec(f"jax_plugins.{plugin}") is not None:
        return f"jax_plugins.{plugin}"
    except ModuleNotFoundError:
      return None
  return None


def _pip_command() -> str:
  try:
    version = f"=={importlib.metadata.version('jaxlib')}"
  except importlib.metadata.PackageNotFoundError:
    version = ""
  return f"pip install 'jax-cuda13-plugin{version}'"


@functools.cache
def topology(
  config_text: str, shape: str = "1x1x1"
) -> topologies.TopologyDescription:
  """Returns the topology of described GPUs; see `Target.topology`.

  Args:
    config_text: The description of one of them.
    shape: The number of partitions of a cluster, of hosts in each, and of
      devices in each host.
  """
  import jax
  from jax.experimental import topologies

  plugin = find_plugin()
  if plugin is None:
    raise RuntimeError(
      "compiling for a GPU target needs JAX's CUDA plugin, which is not "
      f"installed; run: {_pip_command()} (no GPU and no CUDA is needed)."
    )
  build = functools.partial(
    topologies.get_topology_desc,
    platform="cuda",
    target_config=config_text,
    topology=shape,
  )
  with _without_cuda_library_check():
    try:
      try:
        return build()
      except NotImplementedError:
        # jax already tried the plugin, with the check, and gave it up. It may
        # be registered late; the backends that run are not touched.
        importlib.import_module(plugin).initialize()
        return build()
    except jax.errors.JaxRuntimeError as error:
      if "Failed to parse" not in str(error):
        raise _load_error(plugin, error) from error
      raise ValueError(
        "target must be a GpuTargetConfigProto in text form, got "
        f"{config_text[:60]!r}...; XLA logged which line it could not read."
      ) from error
    except Exception as error:
      raise _load_error(plugin, error) from error


def _load_error(plugin: str, error: Exception) -> RuntimeError:
  return RuntimeError(
    f"JAX's CUDA plugin ({plugin}) did not load: {error}. It must have the "
    f"version of jaxlib; run: {_pip_command()}. If it has, set "
    f"{_SKIP_CHECK}=1 and JAX_PLATFORMS=cpu in the environment, before "
    "anything uses jax, and start again."
  )


@contextlib.contextmanager
def _without_cuda_library_check() -> Iterator[None]:
  """Lets the plugin register without NVIDIA's libraries.

  They run programs; compiling one does not need them. The plugin reads the
  variable when it registers, so it is set only that long: a program that does
  use a GPU keeps its check.
  """
  before = os.environ.get(_SKIP_CHECK)
  os.environ[_SKIP_CHECK] = before or "1"
  try:
    yield
  finally:
    if before is None:
      del os.environ[_SKIP_CHECK]
    else:
      os.environ[_SKIP_CHECK] = before
