"""The policies of `jax.checkpoint` by hand that plans are compared with."""

from collections.abc import Callable

import jax

POLICIES = (
  "nothing_saveable",
  "dots_saveable",
  "dots_with_no_batch_dims_saveable",
)


def policy_named(name: str) -> Callable[..., bool]:
  """Returns a policy of `jax.checkpoint_policies`."""
  return getattr(jax.checkpoint_policies, name)
