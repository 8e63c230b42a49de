"""Plans as XProf reads them: modules with XLA's buffer assignments.

XProf's memory viewer takes both out of a trace, where profilers put them as
metadata of a plane of its own (tsl/profiler/utils/xplane_schema.cc). Here the
trace holds nothing else.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping

from jaxmem_hlo.proto import hlo_pb2, xplane_pb2

_PLANE = "/host:metadata"
_STAT = "Hlo Proto"
_FILE = "jaxmem.xplane.pb"


def save(
  folder: str | os.PathLike[str],
  run: str,
  compiled: Mapping[str, hlo_pb2.CompiledModule],
) -> pathlib.Path:
  """Writes a run that XProf shows: `xprof --logdir FOLDER`.

  Args:
    folder: Where runs are.
    run: Its name. Characters that paths may not have are replaced; a run of
      that name is written anew.
    compiled: What modules are called -> the modules.

  Returns:
    The file.
  """
  plane = xplane_pb2.TracePlane(name=_PLANE)
  plane.stat_metadata[1].id = 1
  plane.stat_metadata[1].name = _STAT
  for number, (name, module) in enumerate(compiled.items(), 1):
    named = hlo_pb2.CompiledModule()
    named.CopyFrom(module)
    # XProf lists modules by their own names.
    named.hlo_module.name = _safe(name)
    event = plane.event_metadata[number]
    event.id, event.name = number, named.hlo_module.name
    event.stats.add(metadata_id=1, bytes_value=named.SerializeToString())
  path = pathlib.Path(folder, "plugins", "profile", _safe(run))
  path.mkdir(parents=True, exist_ok=True)
  for old in path.iterdir():
    # XProf keeps there what it made of an older trace.
    if old.name.endswith((".hlo_proto.pb", "cache_version.txt")):
      old.unlink()
  trace = xplane_pb2.Trace(planes=[plane], hostnames=["jaxmem"])
  file = path / _FILE
  file.write_bytes(trace.SerializeToString())
  return file


def _safe(name: str) -> str:
  return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:100] or "step"
