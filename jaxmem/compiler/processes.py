"""What the processes of one program tell each other, through jax's service.

`jax.distributed` runs a store of keys and values beside every program of
several processes; this file alone knows where jax keeps its client.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax._src import distributed as _distributed


def spanned(devices: Iterable[Any]) -> tuple[int, ...]:
  """Returns the processes that a program runs in, if this is one of several.

  Args:
    devices: That it runs on. Those that are only described run nowhere.
  """
  found = sorted({device.process_index for device in devices})
  is_shared = len(found) > 1 and _client() is not None
  return tuple(found) if is_shared else ()


def tell(key: str, value: str) -> None:
  """Stores a value under this process's number."""
  _client().key_value_set(f"jaxmem/{key}/{jax.process_index()}", value)


def ask(key: str, process: int, timeout_s: float) -> str | None:
  """Returns what a process told, once it did; None if it takes too long."""
  name = f"jaxmem/{key}/{process}"
  try:
    return _client().blocking_key_value_get(name, int(1000 * timeout_s))
  except jax.errors.JaxRuntimeError as error:
    if "DEADLINE_EXCEEDED" not in str(error):
      raise
    return None


def _client() -> Any:
  return _distributed.global_state.client
