"""Processes that share jax's persistent compilation cache."""

import subprocess
import sys

# `events` are those of jax's monitoring, cache hits among them.
_PREAMBLE = """
import sys
import jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import jaxmem
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))

def num_hits():
  return events.count("/jax/compilation_cache/cache_hits")
"""


def run(program: str, folder: str, *words: str) -> list[str]:
  """Runs a program in a process of its own; returns the lines it prints.

  Args:
    program: Its source; it finds jax, jnp, jaxmem, `events` and `num_hits`.
    folder: Of the cache; its `sys.argv[1]`.
    words: What follows there.
  """
  done = subprocess.run(
    [sys.executable, "-c", _PREAMBLE + program, folder, *words],
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise AssertionError(done.stderr)
  return done.stdout.splitlines()
