"""The parts of the campaign on a card: their figures, and their rehearsal."""

import json
import os
import pathlib
import subprocess
import sys
import time
from unittest import mock

import jax
import numpy as np
import pytest

import jaxmem
from benchmarks import page, policies, zoo
from benchmarks.gpu import (
  auto,
  description,
  fragmentation,
  kernels,
  models,
  parity,
  parts,
  rates,
  report,
  step_time,
  store,
  ways,
)
from benchmarks.gpu.case import Context
from jaxmem import cost, targets

_ROOT = pathlib.Path(page.__file__).parent.parent


def test_every_case_has_a_name_of_its_own():
  assert len({part.name for part in parts.ALL}) == len(parts.ALL)
  for part in parts.ALL:
    assert parts.by_name(part.name) is part
    for is_rehearsal in (False, True):
      names = [case.name for case in part.cases(is_rehearsal)]
      assert names and len(set(names)) == len(names)
  with pytest.raises(ValueError, match="part must be one of parity, peak"):
    parts.by_name("none")


# One of them is enough where there is little time.
_BY_MODEL = [
  pytest.param(name, marks=() if name == "llama_stack" else pytest.mark.slow)
  for name in sorted(models.MODELS)
]


@pytest.mark.parametrize("name", _BY_MODEL)
def test_models_keep_their_state_and_policies_its_order(name):
  built = [
    models.build(name, is_rehearsal=False, policy=policy)
    for policy in (None, *policies.POLICIES)
  ]
  shapes = [
    [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(step.args)]
    for step in built
  ]
  # Ways take turns with one list of arrays.
  assert all(found == shapes[0] for found in shapes)
  step = built[0]
  outputs = jax.eval_shape(step.function, *step.args)
  for before, after in zip(step.args[:2], outputs[:2], strict=True):
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
      lambda x: (x.shape, x.dtype), before
    )


def _num_products(step):
  """Returns how many products and convolutions a step asks XLA for."""
  text = jax.jit(step.function).lower(*step.args).as_text()
  return text.count("dot_general") + text.count("stablehlo.convolution")


@pytest.mark.parametrize("name", _BY_MODEL)
def test_policies_recompute_blocks_to_the_same_numbers(name):
  def build(policy=None):
    return models.build(name, is_rehearsal=True, policy=policy)

  plain = ways.by_jax(build())
  expected = ways.run_steps(plain, 1)
  again = build("nothing_saveable")
  assert _num_products(again) > _num_products(plain.step)
  # What it saves is just that.
  assert _num_products(build("dots_saveable")) == _num_products(plain.step)
  args = jax.tree.unflatten(
    jax.tree.structure(again.args), jax.tree.leaves(zoo.concrete(plain.step))
  )
  found = ways.run_steps(ways.by_jax(again), 1, args)
  # Of the gradients, in the optimizer's state: Adam's first update is as large
  # where a gradient is nothing but rounding.
  assert parity.difference(expected[1], found[1]) < 1e-5


def test_the_llama_stack_has_the_parameters_of_its_layers():
  step = models.build("llama_stack", is_rehearsal=False)
  # Each layer: four square matrices, three of the feed-forward, two scales.
  layer = 4 * 2048**2 + 3 * 2048 * 5632 + 2 * 2048
  assert step.num_params == 8 * layer + 2 * 32_000 * 2048 + 2048


def test_a_description_takes_measured_rates():
  h100 = targets.get("h100").config_text
  measured = {
    "memory_bytes_per_s": 2.5e12,
    "to_host_bytes_per_s": 40e9,
    "from_host_bytes_per_s": 50e9,
    "fp32_flops_per_s": 45e12,
    "tf32_flops_per_s": 330e12,
    "bf16_flops_per_s": None,
  }
  text = description.with_rates(h100, measured)
  found = cost.for_target(targets.get(text))
  # Estimates multiply by the fraction that kernels reach.
  reached = {
    "memory_bytes_per_s": found.memory_bytes_per_s * found.efficiency.memory,
    "to_host_bytes_per_s": found.to_host_bytes_per_s * found.efficiency.link,
    "fp32_flops_per_s": found.fp32_flops_per_s * found.efficiency.flops,
    "tf32_flops_per_s": found.tf32_flops_per_s * found.efficiency.flops,
  }
  for name, rate in reached.items():
    assert rate == pytest.approx(measured[name], rel=1e-6), name
  # The slower direction counts for both, and what is unknown stays.
  assert found.from_host_bytes_per_s == found.to_host_bytes_per_s
  assert found.bf16_flops_per_s == targets.get("h100").flops_per_s("bf16")
  assert description.packaged_name("NVIDIA H200") == "h200"
  assert description.packaged_name("NVIDIA Z9") == "h100"


def test_rank_correlation():
  def correlation(one, other):
    return kernels.rank_correlation(np.array(one), np.array(other))

  assert correlation([1, 2, 3], [10, 200, 3000]) == pytest.approx(1)
  assert correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
  # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15).
  assert correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
  assert correlation([1, 2, 3], [5, 5, 5]) is None


def test_the_summary_of_kernels():
  rows = [
    {"class": group, "measured_s": measured, "estimated_s": estimated}
    for group, measured, estimated in (
      ("dot", 2.0, 1.0),
      ("dot", 6.0, 2.0),
      ("dot", 4.0, 4.0),
      ("copy", 9.0, 9.0),
    )
  ]
  found = kernels.summary(rows, "dot")
  # Ranks 1 3 2 against 1 2 3; ratios 2, 3 and 1.
  assert found["num_kernels"] == 3
  assert found["rank_correlation"] == pytest.approx(0.5)
  assert found["median_ratio"] == 2.0
  assert kernels.summary(rows, "copy")["rank_correlation"] is None
  assert kernels.summary(rows, "all")["num_kernels"] == 4


def test_the_difference_of_states():
  one = {"a": np.array([1, -4], np.float32), "b": np.array([3], np.int32)}
  assert parity.difference(one, one) == 0.0
  other = {**one, "a": np.array([1, -3], np.float32)}
  assert parity.difference(one, other) == 0.25
  # Equal numbers of other bits are not equal, and NaN is not near anything.
  zeros = [np.array([0.0, 1], np.float32), np.array([-0.0, 1], np.float32)]
  assert 0.0 < parity.difference(*zeros) < 1e-300
  assert (
    parity.difference(other, {**one, "a": np.array([1, np.nan], np.float32)})
    > 1e300
  )


@pytest.mark.slow
def test_one_state_goes_through_all_ways():
  def build():
    return models.build("llama_stack", is_rehearsal=True)

  plain = ways.by_jax(build())
  policy = models.build(
    "llama_stack", is_rehearsal=True, policy="nothing_saveable"
  )
  found = [plain, ways.by_jax(policy, "nothing_saveable")]
  rows = ways.take_turns(found, is_rehearsal=True)
  assert [row["num_rounds"] for row in rows] == [3, 3]
  assert rows[0]["wall_ratio"] == 1.0
  assert plain.limit_at(1.0) == plain.total_bytes
  assert plain.limit_at(0.5) < plain.total_bytes


def test_a_queued_call_takes_time():
  assert rates.seconds_per_call(lambda x: x + 1, (np.zeros(()),), 1e-3) > 0


# Python takes it for its own; the processes of the cases inherit it.
_OFFLINE = """
import socket


def refuse(*_):
  raise OSError("A campaign needs nothing from the network.")


socket.socket.connect = socket.getaddrinfo = refuse
"""


def _started(folder, *options):
  """Starts a rehearsal, without a network."""
  offline = folder / "offline"
  offline.mkdir(exist_ok=True)
  (offline / "sitecustomize.py").write_text(_OFFLINE, encoding="utf-8")
  paths = f"{offline}:{_ROOT}:{_ROOT / 'hlo'}"
  command = [sys.executable, "-m", "benchmarks.gpu_campaign", "--rehearse"]
  return subprocess.Popen(
    [*command, f"--out={folder}", *options],
    cwd=_ROOT,
    env={**os.environ, "PYTHONPATH": paths},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def _rows(folder):
  return store.read(folder / store.ROWS_FILE)


def _ends(rows):
  return [row for row in rows if row["kind"] == store.END]


def _rehearse(folder, *options):
  process = _started(folder, *options)
  _, errors = process.communicate()
  assert process.returncode == 0, errors
  rows = _rows(folder)
  ends = _ends(rows)
  details = [(row["part"], row.get("why")) for row in ends]
  assert {row["status"] for row in ends} == {store.DONE}, details
  return rows


def _as_of_a_card(row):
  """Returns a rehearsed row as a card would have written it."""
  device = {**row["device"], "platform": "gpu"}
  return {**row, "rehearsal": False, "device": device}


def _wait_until(is_so):
  for _ in range(1200):
    if is_so():
      return
    time.sleep(0.1)
  pytest.fail("It did not happen.")


def _processes(text):
  """Returns the processes that have a text in their command line."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
      if text.encode() in path.read_bytes():
        found.append(path)
    except OSError:
      continue
  return found


@pytest.mark.skipif(
  not pathlib.Path("/proc/self/cmdline").exists(), reason="needs /proc"
)
@pytest.mark.slow
def test_a_campaign_that_was_killed_goes_on(tmp_path):
  killed = _started(tmp_path, "--parts=rates,kernels")
  _wait_until(lambda: any(r["part"] == "kernels" for r in _rows(tmp_path)))
  killed.kill()
  killed.communicate()
  # Its case does not outlive it: it would keep the card's memory.
  _wait_until(lambda: not _processes(str(tmp_path)))
  before = _rows(tmp_path)
  assert [row["part"] for row in _ends(before)] == ["rates"]
  after = _rehearse(tmp_path, "--parts=rates,kernels")
  assert after[: len(before)] == before
  assert [row["part"] for row in _ends(after)] == ["rates", "kernels"]
  # The rows that it had written are known from those of the whole case.
  text = report.tables(after)
  assert text.count("gelu") == 1 and "Not measured" not in text


@pytest.mark.slow
def test_a_campaign_ends_inside_its_minutes(tmp_path):
  process = _started(tmp_path, "--minutes=0.01")
  _, errors = process.communicate()
  assert process.returncode == 0, errors
  rows = _rows(tmp_path)
  cases = [(p.name, c.name) for p in parts.ALL for c in p.cases(True)]
  assert sorted((row["part"], row["case"]) for row in rows) == sorted(cases)
  assert {row["status"] for row in rows} == {store.SKIPPED}


@pytest.mark.slow
def test_rehearsal_of_quick_parts(tmp_path):
  rows = _rehearse(tmp_path, "--parts=rates,kernels,step,auto")
  for row in rows:
    assert row["rehearsal"] and row["versions"]["jax"] == jax.__version__
    assert {"kind", "driver", "memory_bytes"} <= set(row["device"])
  assert report.places(rows)["measured"] == report.NOTHING
  link = next(r for r in rows if r.get("rate") == "to_host_bytes_per_s")
  assert link["value"] is None and "no link" in link["why_null"]
  target = targets.get(tmp_path / "measured.txtpb")
  memory = next(r for r in rows if r.get("rate") == "memory_bytes_per_s")
  assert target.memory_bandwidth_bytes_per_s == pytest.approx(
    memory["value"] / 0.85, rel=1e-6
  )
  of_kernels = [r for r in rows if r["part"] == "kernels"]
  classes = {r["class"] for r in of_kernels if "class" in r}
  assert classes == {"all", *kernels._CLASSES}
  # Nothing is left to do.
  again = _rehearse(tmp_path, "--parts=rates,kernels,step,auto")
  assert len(again) == len(rows)
  json.dumps(rows)


@pytest.mark.parametrize("part", [auto, fragmentation])
def test_a_limit_that_cannot_be_met_is_a_row(part):
  (case,) = part.PART.cases(True)
  rows = []
  recorder = mock.Mock(append=rows.append)
  context = Context(
    case=case, is_rehearsal=True, folder=pathlib.Path(), recorder=recorder
  )
  error = jaxmem.InfeasibleError(
    "No plan fits.", smallest_bytes=2, lower_bound_bytes=1
  )
  with mock.patch.object(ways, "by_jaxmem", side_effect=error):
    part._run(context)
  (*failed,) = (row for row in rows if "error" in row)
  assert failed and all("No plan fits." in row["error"] for row in failed)
  assert all(row.get("is_supported", True) for row in failed)


def _fake_by_jax(step, name="jax.jit"):
  way = mock.Mock(total_bytes=2, compile_s=1.0)
  way.name = name
  way.row.return_value = {"way": name}
  return way


def test_a_way_that_the_card_cannot_hold_is_a_row():
  rows = []
  case = next(
    c for c in step_time.PART.cases(True) if c.name == "unet policies"
  )
  context = Context(
    case=case,
    is_rehearsal=True,
    folder=pathlib.Path(),
    recorder=mock.Mock(append=rows.append),
  )
  with (
    mock.patch.object(models, "build"),
    mock.patch.multiple(
      ways,
      by_jax=_fake_by_jax,
      allowed_bytes=lambda: 1,
      take_turns=lambda found, is_rehearsal: [{} for _ in found],
    ),
  ):
    step_time.PART.run(context)
  failed = [row for row in rows if "error" in row]
  assert [row["way"] for row in failed] == list(policies.POLICIES)
  for row in failed:
    cells = step_time.PART.cells(row)
    assert cells is not None
    assert "not run: 2 bytes, allowed are 1" in cells


@pytest.mark.slow
def test_rehearsal(tmp_path):
  rows = _rehearse(tmp_path, "--minutes=30")
  measured = {row["part"] for row in rows if row["kind"] == store.RESULT}
  assert measured == {part.name for part in parts.ALL}
  for row in rows:
    if row["part"] == "parity" and row["kind"] == store.RESULT:
      assert row["passed"], row
    if "peak_bytes" in row or "fragmentation" in row:
      assert row["why_null"] == ways.NO_STATISTICS
  assert "error" not in {name for row in rows for name in row}
  timed = {
    (row["model"], row["way"]) for row in rows if row.get("stage") == "timed"
  }
  by_hand = {(name, way) for name in models.MODELS for way in policies.POLICIES}
  limits = {("unet", f"jaxmem, {percent}%") for percent in (75, 50, 35)}
  assert by_hand | limits | {("unet", "jaxmem")} <= timed
  # Every table can be made of such rows.
  text = report.places(map(_as_of_a_card, rows))["measured"]
  for part in parts.ALL:
    assert part.question in text
  assert "Not measured" not in text
