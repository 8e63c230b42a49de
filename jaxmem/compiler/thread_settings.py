"""What jax is told in one thread, told to another.

`with jax.enable_x64(): ...` and its like hold for their thread alone, and some
of them reach XLA. This file alone knows where jax keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax._src import config as _config


def of_this_thread() -> Mapping[str, Any]:
  """Returns jax's settings of this thread, by name, those that are not set too.

  What stands for a setting that is not set is jax's own.
  """
  states = _config.config_states.items()
  return {name: state.get_local() for name, state in states}


def apply(settings: Mapping[str, Any]) -> None:
  """Makes settings those of this thread, which has none of its own so far.

  Args:
    settings: From `of_this_thread`, in another thread.
  """
  for name, value in settings.items():
    state = _config.config_states[name]
    if state.get_local() is not value:
      state.set_local(value)
