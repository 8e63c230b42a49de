"""A second start under a limit plans nothing, and runs the same program."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
from unittest import mock

import blocks_cases
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
import record_modules
import small_steps
from absl.testing import absltest, parameterized

import jaxmem
from jaxmem.entry import (
  PLANNED,
  one_compile,
  planned_compiles,
  remembered,
  table,
)
from jaxmem.entry.plan_store import PlanStore
from jaxmem.planning import Request
from jaxmem.script.pictures import Pictures, main_figures
from jaxmem.versions import knapsack

_OPTIONS = jaxmem.Options(effort="fast")


def _chain():
  step, args = blocks_cases.CASES["chain"]()
  return step, args


def _edited():
  params = [0.3 * small_steps.normal(i, 16, 16) for i in range(6)]

  def step(params, x):
    def loss(params):
      hidden = x
      for weights in params:
        hidden = jnp.tanh(hidden @ weights)
      return jnp.mean(hidden**2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

  return step, (params, small_steps.normal(9, 256, 16))


def _scan(num_layers=6, width=16, batch=256):
  def step(params, x):
    def layer(hidden, weights):
      return hidden + jnp.sin(jnp.tanh(hidden @ weights) ** 2), None

    def loss(params):
      return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return params - 0.1 * grads, value

  return step, (
    small_steps.normal(0, num_layers, width, width),
    small_steps.normal(1, batch, width),
  )


_CASES = {
  "chain": _chain,
  "edited": _edited,
  "scan": _scan,
  "updates": functools.partial(_scan, 24, 64, 4),
}
_CHOICE = {"num_groups": 6, "keep_bytes": 0, "reads_again": False}
_RECIPE = {
  "answers": [],
  "is_narrow": False,
  "updated_bytes": 0,
}


def _total_bytes(compiled):
  return one_compile.program_bytes(compiled.memory_analysis())


@functools.cache
def _limit(name, share):
  step, args = _CASES[name]()
  compiled = jax.jit(step).lower(*args).compile()
  temp_bytes = record_modules.temp_bytes(compiled)
  return _total_bytes(compiled) - int((1 - share) * temp_bytes)


def _start(name, share=0.6, options=_OPTIONS, scale=1.0, **kwargs):
  """Compiles a step as a new process would; returns it and its record."""
  step, args = _CASES[name]()
  limit = _limit(name, share)
  changed = (
    step if scale == 1.0 else lambda p, *a: step(p, *a[:-1], scale * a[-1])
  )
  jax.clear_caches()
  knapsack.choose.cache_clear()
  jitted = jaxmem.jit(changed, memory_limit=limit, options=options, **kwargs)
  compiled = jitted.lower(*args).compile()
  record = PLANNED.records.all()[-1]
  return compiled, record


@functools.cache
def _first_start():
  """Returns the file of a first start, and the bytes of its program."""
  with (
    tempfile.TemporaryDirectory() as folder,
    mock.patch.dict(os.environ, JAXMEM_CACHE_DIR=folder),
  ):
    num_bytes = _total_bytes(_start("edited")[0])
    (path,) = pathlib.Path(folder).iterdir()
    return path.name, path.read_bytes(), num_bytes


class _FolderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = self.temporary() / "plans"
    self.enter_context(
      mock.patch.dict(os.environ, JAXMEM_CACHE_DIR=str(self.folder))
    )

  def temporary(self):
    return pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def files(self):
    return sorted(self.folder.glob("*"))

  def start_first(self):
    """Leaves what a first start leaves; returns its program's bytes."""
    name, data, num_bytes = _first_start()
    self.folder.mkdir(mode=0o700)
    (self.folder / name).write_bytes(data)
    (self.folder / name).chmod(0o600)
    return num_bytes

  def content(self):
    """Returns the key and the content of the only file."""
    (path,) = self.files()
    data = PlanStore(self.folder).get(path.stem)
    assert data is not None
    return path.stem, json.loads(data)

  def nothing_is_planned(self):
    stack = self.enter_context(mock.patch.object(planned_compiles, "pick"))
    stack.side_effect = AssertionError("picked")
    for owner, name in ((Request, "planner"), (knapsack, "choose")):
      self.enter_context(
        mock.patch.object(owner, name, side_effect=AssertionError(name))
      )


class SecondStartTest(_FolderTest):
  @parameterized.parameters(
    ("chain", 0.6), ("chain", 0.75), ("edited", 0.7), ("scan", 0.5)
  )
  def test_it_plans_nothing(self, name, share):
    _, args = _CASES[name]()
    first, record = _start(name, share)
    self.assertFalse(record.is_remembered)
    assert record.xla_bytes is not None and record.limit_bytes is not None
    self.assertGreater(record.xla_bytes, record.limit_bytes)
    self.nothing_is_planned()
    second, again = _start(name, share)
    self.assertTrue(again.is_remembered)
    self.assertEqual(again.why_not, "")
    for field in ("xla_bytes", "planned_bytes", "limit_bytes"):
      self.assertEqual(getattr(again, field), getattr(record, field))
    self.assertEqual(_total_bytes(second), _total_bytes(first))
    jax.tree.map(np.testing.assert_array_equal, second(*args), first(*args))

  def test_chosen_drops_are_remembered(self):
    _start("scan", 0.5)
    self.assertNotEmpty(self.content()[1]["recipe"]["answers"])

  def test_updates_in_loops_are_remembered(self):
    _start("updates", 0.2, donate_argnums=0)
    self.assertGreater(self.content()[1]["recipe"]["updated_bytes"], 0)

  def test_effort_prove_and_steps_with_one_version(self):
    # Both are planned only when XLA shows their modules.
    prove = jaxmem.Options(effort="prove")
    first, _ = _start("edited", 0.7, prove)
    self.nothing_is_planned()
    second, record = _start("edited", 0.7, prove)
    self.assertTrue(record.is_remembered)
    self.assertEqual(_total_bytes(second), _total_bytes(first))

  def test_the_report_shows_it(self):
    facts = []
    pictures = Pictures()

    def listen(record, planned):
      facts.append(main_figures(record, planned))
      pictures.add(record, planned)

    with mock.patch.object(PLANNED.records, "listener", listen):
      _start("edited")
      self.nothing_is_planned()
      _, record = _start("edited")
    self.assertEqual(facts[0], facts[1])
    page = self.folder.parent / "page.html"
    pictures.save(page, [record])
    self.assertIn("remembered", page.read_text())
    self.assertRegex(table([record]), "remembered$")

  def test_an_impossible_limit(self):
    errors = []
    for _ in range(2):
      with self.assertRaises(jaxmem.InfeasibleError) as caught:
        _start("edited", 0.001)
      errors.append(caught.exception)
      self.nothing_is_planned()
    self.assertTrue(PLANNED.records.all()[-1].is_remembered)
    first, second = errors
    self.assertIsNot(first, second)
    self.assertEqual(str(first), str(second))
    for field in ("smallest_bytes", "lower_bound_bytes", "buffers"):
      self.assertEqual(getattr(first, field), getattr(second, field))
    self.assertNotEmpty(first.buffers)


class KeyTest(_FolderTest):
  @parameterized.parameters(
    {"share": 0.65},
    {"options": jaxmem.Options(effort="normal")},
    {"scale": 2.0},
    {"donate_argnums": 0},
    {"compiler_options": {"xla_cpu_enable_fast_math": True}},
  )
  def test_what_is_asked(self, **changes):
    self.start_first()
    _, record = _start("edited", **changes)
    self.assertFalse(record.is_remembered)
    self.assertLen(self.files(), 2)

  @parameterized.parameters(
    (jaxlib, "__version__", "0.0.1"),
    (remembered, "__version__", "0.0.1"),
    (remembered, "_sources_digest", lambda: "changed"),
  )
  def test_who_plans(self, owner, name, value):
    self.start_first()
    with mock.patch.object(owner, name, value):
      _, record = _start("edited")
    self.assertFalse(record.is_remembered)
    self.assertLen(self.files(), 2)

  def test_off(self):
    with mock.patch.dict(os.environ, JAXMEM_CACHE_DIR=""):
      for _ in range(2):
        _, record = _start("edited")
        self.assertFalse(record.is_remembered)
    self.assertEmpty(self.files())

  def test_without_a_limit_nothing_is_kept(self):
    step, args = _edited()
    jaxmem.jit(step).lower(*args).compile()
    self.assertEmpty(self.files())


class BadContentTest(_FolderTest):
  """A sound file with bad content: planned afresh, and written anew."""

  def assert_planned_afresh(self, num_bytes):
    compiled, record = _start("edited")
    self.assertFalse(record.is_remembered)
    self.assertEqual(_total_bytes(compiled), num_bytes)

  @parameterized.parameters(
    b"",
    b"[]",
    b"{}",
    b"{" * 100_000,
    b"[" * 100_000,
    b"\xff\xfe",
    b'{"recipe": {}, "platform": 1, "program": "", "xla_bytes": 1}',
  )
  def test_what_is_no_content(self, data):
    num_bytes = self.start_first()
    key, _ = self.content()
    PlanStore(self.folder).put(key, data)
    self.assert_planned_afresh(num_bytes)
    self.assertTrue(_start("edited")[1].is_remembered)

  @parameterized.parameters(
    ("program", "00"),
    ("program", 7),
    ("platform", None),
    ("decided", [{}]),
    ("recipe", {"answers": [[99]]}),
    ("recipe", {"updated_bytes": -1}),
    ("recipe", {"is_narrow": True}),
    ("recipe", {"choice": {"num_groups": 0, "keep_bytes": 0}}),
  )
  def test_fields(self, name, value):
    num_bytes = self.start_first()
    key, content = self.content()
    if name == "recipe":
      # Some of these change nothing by themselves: so they are of a version
      # that was not chosen.
      other = None if content["recipe"]["choice"] else _CHOICE
      value = {**_RECIPE, "choice": other, **value}
    changed = json.dumps({**content, name: value}).encode()
    PlanStore(self.folder).put(key, changed)
    self.assert_planned_afresh(num_bytes)
    self.assertEqual(self.content()[1].keys(), content.keys())
    self.assertTrue(_start("edited")[1].is_remembered)

  def test_another_module(self):
    num_bytes = self.start_first()
    key, content = self.content()
    content["decided"][0]["fingerprint"] = "00" * 32
    PlanStore(self.folder).put(key, json.dumps(content).encode())
    self.assert_planned_afresh(num_bytes)
    # That module's plan stays; it is the one of the two that is not used.
    self.assertLen(self.content()[1]["decided"], 2)
    self.assertTrue(_start("edited")[1].is_remembered)

  def test_a_plan_that_cannot_be_made(self):
    num_bytes = self.start_first()
    key, content = self.content()
    plan = content["decided"][0]["plan"]
    plan["order"] = [10**9]
    PlanStore(self.folder).put(key, json.dumps(content).encode())
    self.assert_planned_afresh(num_bytes)
    self.assertEmpty(self.files())

  def test_a_plan_that_turns_out_too_large(self):
    self.start_first()
    with (
      mock.patch.object(planned_compiles, "program_bytes", return_value=1e9),
      self.assertRaises(jaxmem.InfeasibleError),
    ):
      _start("edited")
    self.assertEmpty(self.files())

  @parameterized.parameters("/proc/none/plans", "/dev/null")
  def test_where_nothing_can_be_written(self, folder):
    with mock.patch.dict(os.environ, JAXMEM_CACHE_DIR=folder):
      for _ in range(2):
        _, record = _start("edited")
        self.assertFalse(record.is_remembered)
        self.assertEqual(record.why_not, "")


_SCRIPT = """
  import hashlib, json, sys
  from unittest import mock
  import jax, numpy as np
  import blocks_cases, jaxmem
  from jaxmem.entry import PLANNED, planned_compiles
  from jaxmem.solver import cpsat

  pick, solve = (
    mock.patch.object(owner, name, side_effect=getattr(owner, name)).start()
    for owner, name in ((planned_compiles, "pick"), (cpsat, "solve"))
  )
  given, args = blocks_cases.CASES["chain"]()
  def step(params, state, batch):
    return given(params, state, batch)
  jitted = jaxmem.jit(step, memory_limit=int(sys.argv[1]))
  results = jax.tree.leaves(jitted(*args))
  record = PLANNED.records.all()[-1]
  digest = hashlib.sha256(b"".join(np.asarray(r).tobytes() for r in results))
  print(json.dumps({
    "digest": digest.hexdigest(),
    "planned_bytes": record.planned_bytes,
    "xla_bytes": record.xla_bytes,
    "is_remembered": record.is_remembered,
    "work": [pick.call_count, solve.call_count],
  }))
"""


class ProcessesTest(_FolderTest):
  def start(self, first_line):
    """Starts a process whose step is written on another line."""
    script = self.temporary() / "script.py"
    script.write_text("\n" * first_line + textwrap.dedent(_SCRIPT))
    folders = [os.path.abspath(folder) for folder in filter(None, sys.path)]
    limit = _limit("chain", 0.6)
    return subprocess.Popen(
      [sys.executable, str(script), str(limit)],
      env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
      stdout=subprocess.PIPE,
      text=True,
    )

  @pytest.mark.slow
  def test_two_at_once_and_one_after(self):
    first = [self.start(line) for line in (0, 1)]
    rows = [json.loads(each.communicate()[0]) for each in first]
    last = self.start(2)
    rows.append(json.loads(last.communicate()[0]))
    for row in rows:
      self.assertEqual(row["digest"], rows[0]["digest"])
      self.assertEqual(row["planned_bytes"], rows[0]["planned_bytes"])
      self.assertEqual(row["xla_bytes"], rows[0]["xla_bytes"])
    self.assertGreater(min(rows[0]["work"]), 0)
    self.assertTrue(rows[2]["is_remembered"])
    self.assertEqual(rows[2]["work"], [0, 0])
    self.assertLen(self.files(), 1)


if __name__ == "__main__":
  absltest.main()
