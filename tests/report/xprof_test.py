"""XProf opens what `Plan.save_xprof` writes, and shows both plans."""

import contextlib
import gzip
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from absl.testing import absltest
from jaxmem_hlo.proto import hlo_pb2, xplane_pb2
from watched import arrays, branches

import jaxmem

_TIMEOUT_S = 120


def _free_port():
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return free.getsockname()[1]


@contextlib.contextmanager
def _served(folder):
  """Runs XProf's server on the loopback address; yields a function to fetch."""
  port = _free_port()
  main = "from xprof.server import main; main()"
  command = [sys.executable, "-c", main, "--logdir", folder]
  command += ["--port", str(port), "--grpc_port", str(_free_port())]
  with subprocess.Popen(
    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  ) as server:

    def fetch(path, **query):
      address = f"http://127.0.0.1:{port}/data/plugin/profile/{path}"
      address += "?" + urllib.parse.urlencode(query)
      with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
        data = answer.read()
      return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data

    try:
      end = time.monotonic() + _TIMEOUT_S
      while True:
        try:
          fetch("runs")
          break
        except urllib.error.URLError:
          if time.monotonic() > end or server.poll() is not None:
            raise
          time.sleep(0.2)
      yield fetch
    finally:
      server.kill()


class XprofTest(absltest.TestCase):
  def _saved(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    plan = jaxmem.plan(branches, *arrays())
    self.assertGreater(plan.saved_bytes, 0)
    return folder, plan, plan.save_xprof(folder)

  def test_the_trace_holds_both_modules_with_their_buffers(self):
    folder, plan, path = self._saved()
    self.assertEqual(path.parent.name, "branches.cpu")
    trace = xplane_pb2.Trace.FromString(path.read_bytes())
    (plane,) = trace.planes
    modules = {}
    for event in plane.event_metadata.values():
      (stat,) = event.stats
      compiled = hlo_pb2.CompiledModule.FromString(stat.bytes_value)
      modules[compiled.hlo_module.name] = compiled
    self.assertEqual([*modules], ["branches.xla", "branches.jaxmem"])
    for compiled in modules.values():
      self.assertNotEmpty(compiled.buffer_assignment.allocations)
    # Written anew, with what XProf made of the older one gone.
    stale = path.with_name("old.hlo_proto.pb")
    stale.write_bytes(b"")
    plan.save_xprof(folder)
    self.assertFalse(stale.exists())
    self.assertTrue(path.exists())

  def test_a_plan_from_a_file_has_no_program(self):
    _, plan, _ = self._saved()
    read = jaxmem.Plan.from_json(plan.to_json())
    with self.assertRaisesRegex(RuntimeError, "knows no program"):
      read.save_xprof("unused")

  @pytest.mark.slow
  def test_the_memory_viewer_shows_both_plans(self):
    folder, _, path = self._saved()
    run = path.parent.name
    with _served(folder) as fetch:
      self.assertIn(run, json.loads(fetch("runs")))
      tools = json.loads(fetch("run_tools", run=run))
      self.assertIn("memory_viewer", tools)
      listed = fetch("module_list", run=run).decode().split(",")
      self.assertLen(listed, 2)
      peaks = {}
      for module in listed:
        data = json.loads(
          fetch(
            "data",
            run=run,
            tag="memory_viewer",
            host="jaxmem",
            module_name=module,
            memory_space=0,
          )
        )
        peaks[module.partition("(")[0]] = data
    own, planned = peaks["branches.xla"], peaks["branches.jaxmem"]
    sizes = [max(data["heapSizes"]) for data in (own, planned)]
    self.assertLess(sizes[1], sizes[0])
    self.assertNotEmpty(planned["maxHeap"])


if __name__ == "__main__":
  absltest.main()
