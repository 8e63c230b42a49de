"""Settings for every test process: plan on the CPU, over four devices.

Set before jax is imported anywhere, since jax reads them once. Plans are not
remembered: tests plan, and leave nothing in anybody's home folder.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAXMEM_CACHE_DIR"] = ""
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
).strip()
