"""Settings for every test process: plan on the CPU, over four devices.

Set before jax is imported anywhere, since jax reads them once. Plans are not
remembered: tests plan, and leave nothing in anybody's home folder.

Shells have what they run in the background ignore Ctrl-C, and programs pass
that on to what they start: tests that interrupt need it as at a terminal.
"""

import os
import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAXMEM_CACHE_DIR"] = ""
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
).strip()
