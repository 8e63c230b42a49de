"""Tests of processes that agree on what they run, or say why they do not."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from jaxmem.compiler import processes
from jaxmem.entry import agreement
from jaxmem.entry.agreement import Agreement, Told
from jaxmem.errors import PlanningError

_ROOT = pathlib.Path(__file__).parent.parent.parent
_PROGRAM = """
import json, os, sys
import jax
process, port, fault = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(f"localhost:{port}", 2, process)
import numpy as np
import jaxmem
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxmem.planning import Request

if process == 1 and fault == "planner":
  def decide(*args, **kwargs):
    raise RuntimeError("broken")
  Request.decide = decide
if process == 1 and fault == "dies":
  Request.decide = lambda *args, **kwargs: os._exit(3)

mesh = jax.make_mesh((4,), ("d",), (jax.sharding.AxisType.Auto,))
rows = NamedSharding(mesh, P("d"))
width = 64 + 64 * (process == 1 and fault == "program")

def step(x):
  y = jax.numpy.tanh(x @ x.T)
  for _ in range(4):
    y = jax.numpy.tanh(y @ y) + y
  return (y @ x).sum()

shape = (256, width)
x = jax.make_array_from_callback(
  shape, rows, lambda at: np.ones(shape, np.float32)[at])
options = jaxmem.Options(min_gain=0.0)
try:
  value = float(jaxmem.jit(step, options=options)(x))
  print(json.dumps({"value": value}), flush=True)
except Exception as error:
  print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
# The first process is the service of all: without it the others are aborted,
# perhaps before they said anything. Nor does Gloo end well without the others.
if fault != "dies":
  client = jax._src.distributed.global_state.client
  client.wait_at_barrier("all have said it", 60_000)
os._exit(0)
"""


def _run(fault, timeout_s=120):
  """Runs the program in two processes; returns what each says, or its code."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  environment = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    "JAXMEM_PROCESSES_TIMEOUT_S": "15",
    "JAXMEM_CACHE_DIR": "",
    "PYTHONPATH": f"{_ROOT}:{_ROOT / 'hlo'}",
  }
  started = [
    subprocess.Popen(
      [sys.executable, "-c", _PROGRAM, str(n), str(port), fault],
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for n in range(2)
  ]
  try:
    said = [process.communicate(timeout=timeout_s) for process in started]
  finally:
    for process in started:
      process.kill()
  found = []
  for (out, err), process in zip(said, started, strict=True):
    # Gloo writes there, too.
    lines = [line for line in out.splitlines() if line.startswith("{")]
    silent = {"code": process.returncode, "err": err}
    found.append(json.loads(lines[-1]) if lines else silent)
  return found


def test_alike():
  first, second = _run("nothing")
  assert first == second and "value" in first, (first, second)


def test_one_that_cannot_plan_leaves_all_to_xla():
  first, second = _run("planner")
  assert first == second and "value" in first, (first, second)


@pytest.mark.slow
def test_other_programs_are_an_error_before_anything_hangs():
  for said in _run("program"):
    assert "compiles another program than process" in said.get("error", ""), (
      said
    )


@pytest.mark.slow
def test_one_that_dies_does_not_leave_the_other_waiting():
  first, second = _run("dies")
  assert second["code"] == 3
  # It says so itself, or jax's service ends it first.
  if "error" in first:
    assert "process 1 did not say within 15 s" in first["error"]
  else:
    assert first["code"] != 0


class _Store:
  """Stands in for jax's service."""

  def __init__(self, monkeypatch, me):
    self.values = {}
    monkeypatch.setattr(
      processes, "tell", lambda key, value: self.values.update({me: value})
    )
    monkeypatch.setattr(
      processes, "ask", lambda key, process, timeout: self.values.get(process)
    )
    monkeypatch.setattr(agreement.jax, "process_index", lambda: me)

  def hear(self, process, **told):
    self.values[process] = json.dumps({"error": "", **told})


def _agreement():
  return Agreement("jit_step", 0, (0, 1, 2))


def test_all_run_what_they_said(monkeypatch):
  store = _Store(monkeypatch, me=0)
  store.hear(1, given="g", planned="p")
  store.hear(2, given="g", planned="p")
  assert _agreement().settle(Told(given="g", planned="p"))


def test_another_plan_is_run_by_none(monkeypatch):
  store = _Store(monkeypatch, me=0)
  store.hear(1, given="g", planned="p")
  store.hear(2, given="g", planned="g")
  assert not _agreement().settle(Told(given="g", planned="p"))


def test_what_a_cache_had_is_not_compared(monkeypatch):
  store = _Store(monkeypatch, me=0)
  store.hear(1, given="g", planned="p")
  store.hear(2, given="", planned="")
  assert _agreement().settle(Told(given="g", planned="p"))


def test_another_program_is_named(monkeypatch):
  store = _Store(monkeypatch, me=1)
  store.hear(0, given="g", planned="p")
  store.hear(2, given="h", planned="p")
  with pytest.raises(PlanningError, match="process 2 compiles another program"):
    _agreement().settle(Told(given="g", planned="p"))


def test_a_failure_reaches_all(monkeypatch):
  store = _Store(monkeypatch, me=0)
  store.hear(1, given="g", planned="p")
  store.hear(2, given="g", planned="g", error="no memory")
  with pytest.raises(PlanningError, match="process 2 failed: no memory"):
    _agreement().settle(Told(given="g", planned="p"))


def test_who_says_nothing_is_named(monkeypatch):
  store = _Store(monkeypatch, me=0)
  store.hear(1, given="g", planned="p")
  with pytest.raises(PlanningError, match="process 2 did not say within 600 s"):
    _agreement().settle(Told(given="g", planned="p"))


def test_a_wrong_timeout_says_so(monkeypatch):
  _Store(monkeypatch, me=0)
  monkeypatch.setenv("JAXMEM_PROCESSES_TIMEOUT_S", "soon")
  with pytest.raises(ValueError, match="JAXMEM_PROCESSES_TIMEOUT_S must be"):
    _agreement().settle(Told(given="g", planned="p"))
