"""The policies of `jax.checkpoint` by hand that plans are compared with."""

from collections.abc import Callable

import jax

OFFLOAD_POLICY = "offload_dot_with_no_batch_dims"

POLICIES = (
  "nothing_saveable",
  "dots_saveable",
  "dots_with_no_batch_dims_saveable",
)


def policy_named(name: str) -> Callable[..., bool]:
  """Returns a policy of `jax.checkpoint_policies`.

  Args:
    name: One of `POLICIES`, or `OFFLOAD_POLICY`, which offloads to the host.
  """
  policy = getattr(jax.checkpoint_policies, name)
  if name == OFFLOAD_POLICY:
    return policy("device", "pinned_host")
  return policy


def policies_on(platform: str) -> tuple[str, ...]:
  """Returns the names of policies; one that offloads only on GPUs."""
  return (*POLICIES, OFFLOAD_POLICY) if platform == "cuda" else POLICIES
