"""Processes that are killed, forked or ended while jaxmem is at work."""

import contextlib
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from jaxmem.entry.plan_store import PlanStore

_KEY = "ab" * 32
_STEP = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp, numpy as np
import jaxmem
from jaxmem.entry import PLANNED

def branches(x, y):
  total = jnp.float32(0)
  for i in range(6):
    total += jnp.sum(jnp.sin((x + i) @ y) @ x.T)
  return total

x = jnp.ones((48, 48))
"""


class _FolderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    parent = self.enter_context(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(parent, "plans")

  def start(self, program, *words, **environment):
    """Runs a program after the imports and the step; returns what it printed.

    Raises:
      subprocess.TimeoutExpired: If it hangs.
    """
    script = self.folder.parent / "script.py"
    script.write_text(_STEP + textwrap.dedent(program), encoding="utf-8")
    folders = [os.path.abspath(folder) for folder in filter(None, sys.path)]
    given = {"JAXMEM_CACHE_DIR": str(self.folder), **environment}
    return subprocess.run(
      [sys.executable, str(script), *words],
      env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), **given},
      capture_output=True,
      text=True,
      timeout=300,
      check=False,
    )


class KilledTest(_FolderTest):
  def test_a_writer_is_killed_at_any_time(self):
    contents = [bytes([n]) * 200_000 + os.urandom(50_000) for n in range(4)]
    store = PlanStore(self.folder)
    draw = random.Random(0)
    for _ in range(20):
      child = os.fork()
      if child == 0:
        with contextlib.suppress(BaseException):
          while True:
            for content in contents:
              store.put(_KEY, content)
        os._exit(1)
      time.sleep(draw.uniform(0.001, 0.05))
      os.kill(child, signal.SIGKILL)
      _, status = os.waitpid(child, 0)
      self.assertEqual(os.WTERMSIG(status), signal.SIGKILL)
      self.assertIn(store.get(_KEY), (None, *contents))
    # What was left half written is in nobody's way.
    store.put(_KEY, contents[0])
    self.assertEqual(store.get(_KEY), contents[0])

  @pytest.mark.slow
  def test_a_start_that_is_killed_while_it_writes(self):
    program = """
      if sys.argv[1] == "killed":
        def replace(*args, **kwargs):
          os.kill(os.getpid(), signal.SIGKILL)
        os.replace = replace
      step = jaxmem.jit(branches, memory_limit="1GiB")
      value = step(x, x)
      record = PLANNED.records.all()[-1]
      print(bool(value == jax.jit(branches)(x, x)), record.is_remembered)
    """
    done = self.start(program, "killed")
    self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
    self.assertLen([*self.folder.iterdir()], 1)
    self.assertEqual(self.start(program, "").stdout, "True False\n")
    self.assertEqual(self.start(program, "").stdout, "True True\n")


class FullDiskTest(_FolderTest):
  def check(self, store):
    store.put(_KEY, os.urandom(100_000))
    self.assertIsNone(store.get(_KEY))
    # Nothing unfinished stays.
    self.assertEmpty([*store.folder.iterdir()])
    store.put(_KEY, b"small")
    self.assertEqual(store.get(_KEY), b"small")

  def test_a_file_that_may_not_grow(self):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
      self.check(PlanStore(self.folder))
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, before)

  def test_a_file_system_that_is_full(self):
    disk = self.folder.parent / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "jaxmem", str(disk)]
    try:
      subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
      raise unittest.SkipTest("Only root may mount a small disk.") from None
    try:
      self.check(PlanStore(disk / "plans"))
    finally:
      subprocess.run(["umount", str(disk)], check=True)

  def test_a_home_that_can_only_be_read(self):
    with mock.patch.dict(os.environ, HOME="/proc"):
      for name in ("JAXMEM_CACHE_DIR", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
      store = PlanStore.of_user()
      assert store is not None
      self.assertEqual(str(store.folder), "/proc/.cache/jaxmem/plans")
      store.put(_KEY, b"small")
      self.assertIsNone(store.get(_KEY))


_CHILDREN = """
import multiprocessing

def work(kind, queue):
  import numpy as np
  if kind == "spawn":
    import jax, jaxmem
    before = len(PLANNED.records.all())
    jax.jit(branches)(x, x)
    unplanned = len(PLANNED.records.all()) - before
    jaxmem.enable(min_bytes=0)
    jax.jit(lambda x: branches(x, x))(x)
    queue.put((unplanned, PLANNED.records.all()[-1].why_not))
  else:
    queue.put(float(np.ones(10).sum()))

if __name__ == "__main__":
  jaxmem.enable(min_bytes=0)
  jax.jit(branches)(x, x).block_until_ready()
  kind = sys.argv[1]
  context = multiprocessing.get_context(kind)
  queue = context.Queue()
  threads = []
  if kind == "fork":
    # A thread compiles meanwhile, and may hold whatever locks there are.
    def compile_on():
      for i in range(3):
        jax.jit(lambda x, i=i: branches(x, x) * i)(x)
    threads = [threading.Thread(target=compile_on)]
  children = [
    context.Process(target=work, args=(kind, queue)) for _ in range(3)
  ]
  for each in [*threads, *children]:
    each.start()
  for child in children:
    print(queue.get())
  for each in [*children, *threads]:
    each.join()
  print([child.exitcode for child in children])
  print(PLANNED.records.all()[-1].why_not == "")
"""

_ENDING = """
started = threading.Event()

def work():
  started.set()
  for i in range(int(sys.argv[2])):
    jax.jit(lambda x, i=i: branches(x, x) * float(i))(x)
  print("compiled")

if sys.argv[1] == "jaxmem":
  jaxmem.enable(min_bytes=0)
if sys.argv[1] == "limit":
  jaxmem.enable(min_bytes=0, memory_limit="1GiB")
thread = threading.Thread(target=work, daemon=sys.argv[2] == "1000")
thread.start()
started.wait()
time.sleep(float(sys.argv[3]))
"""


@pytest.mark.slow
class ChildrenTest(_FolderTest):
  def test_fork_after_enable(self):
    done = self.start(_CHILDREN, "fork")
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(done.stdout, "10.0\n" * 3 + "[0, 0, 0]\nTrue\n")

  def test_spawn_after_enable(self):
    # A new interpreter: not planned until it calls jaxmem.enable itself.
    done = self.start(_CHILDREN, "spawn")
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(done.stdout, "(0, '')\n" * 3 + "[0, 0, 0]\nTrue\n")

  @parameterized.product(kind=("jaxmem", "limit"), delay_s=(0.0, 0.1))
  def test_the_interpreter_ends_while_a_thread_compiles(self, kind, delay_s):
    # Python waits for it, also where the planner is loaded only then, and where
    # no thread can begin any more.
    done = self.start(_ENDING, kind, "3", str(delay_s))
    self.assertEqual((done.returncode, done.stdout), (0, "compiled\n"))

  def test_the_interpreter_ends_while_a_daemon_compiles(self):
    # Python takes it down wherever it is, which XLA does not survive, planned
    # or not: neither hangs, and no plan is written half.
    for kind in ("jax", "jaxmem", "limit"):
      self.start(_ENDING, kind, "1000", "0.2")


if __name__ == "__main__":
  absltest.main()
