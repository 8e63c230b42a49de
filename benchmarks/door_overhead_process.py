"""A process of many small compiles, with or without `jaxmem.enable`.

`door_overhead_benchmark` runs it; it prints one JSON object. Nothing of jaxmem
is imported where it is not enabled, and nothing of the benchmarks either way.

    python benchmarks/door_overhead_process.py enabled 1000
"""

import json
import pathlib
import resource
import sys
import time

_STATUS = pathlib.Path("/proc/self/status")


def cpu_s() -> float:
  """Returns seconds of CPU time of this process so far, of all its threads."""
  used = resource.getrusage(resource.RUSAGE_SELF)
  return used.ru_utime + used.ru_stime


def peak_bytes() -> int:
  """Returns the most resident memory that this process had.

  What getrusage says counts the memory of the process that started this one.
  """
  for line in _STATUS.read_text(encoding="ascii").splitlines():
    if line.startswith("VmHWM:"):
      return int(line.split()[1]) * 1024
  raise RuntimeError(f"{_STATUS} has no VmHWM; run this on Linux.")


def main(kind: str, num_compiles: int) -> None:
  """Compiles functions that differ by a constant, and prints what it took."""
  import jax

  # What both kinds do; the import of jaxmem is counted from here.
  jax.devices()
  start = time.perf_counter(), cpu_s()
  if kind == "enabled":
    import jaxmem

    jaxmem.enable()
  ready = time.perf_counter(), cpu_s()
  for i in range(num_compiles):
    jax.jit(lambda x, i=i: x * float(i) + 1.0)(1.0)
  done = time.perf_counter(), cpu_s()
  loaded = {name.partition(".")[0] for name in sys.modules}
  print(
    json.dumps(
      {
        "enable_s": ready[0] - start[0],
        "enable_cpu_s": ready[1] - start[1],
        "compiles_s": done[0] - ready[0],
        "compiles_cpu_s": done[1] - ready[1],
        "peak_bytes": peak_bytes(),
        "loaded": sorted(loaded & {"google", "jaxmem", "ortools", "pandas"}),
      }
    )
  )


if __name__ == "__main__":
  main(sys.argv[1], int(sys.argv[2]))
