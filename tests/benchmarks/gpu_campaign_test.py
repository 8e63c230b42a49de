"""The campaign on a card, as far as it goes without one."""

import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from benchmarks import page
from benchmarks.gpu import (
  campaign,
  description,
  kernels,
  machine,
  models,
  parity,
  parts,
  rates,
  report,
  store,
  ways,
)
from benchmarks.gpu.case import Case, Part, error_text
from jaxmem import cost, targets

_ROOT = pathlib.Path(page.__file__).parent.parent
_CARD = {"platform": "gpu", "kind": "NVIDIA X1", "driver": "580.1"}
_IDENTITY = {
  "rehearsal": False,
  "device": {**_CARD, "memory_bytes": 8 << 30},
  "versions": {"jax": "0.11.2", "jaxlib": "0.11.2", "jaxmem": "0.1.0"},
}
_SUCCEEDS = "pass"


def _part(*cases, name="made-up", titles=("way", "ms")):
  return Part(
    name=name,
    question="How long?",
    cases=lambda is_rehearsal: cases,
    run=lambda context: None,
    titles=titles,
    cells=lambda row: [row["way"], row["ms"]],
  )


def _case(name, default_s=0.1, wave=0):
  return Case(name=name, default_s=default_s, wave=wave)


def _run(folder, part, programs=None, *, seconds=60.0, again=False):
  """Runs a part whose cases are Python programs; returns rows and counts."""
  programs = programs or {}

  def make_command(labels):
    return [sys.executable, "-c", programs.get(labels["case"], _SUCCEEDS)]

  counts = campaign.Campaign(
    folder,
    _IDENTITY,
    end_s=time.monotonic() + seconds,
    again=again,
    make_command=make_command,
    tell=lambda line: None,
  ).run([part])
  return store.read(folder / store.ROWS_FILE), counts


def _named(rows):
  return [(row["case"], row["status"]) for row in rows]


def test_what_is_done_is_not_measured_again(tmp_path):
  part = _part(_case("a"), _case("b"))
  programs = {"b": "raise ValueError('broken here')"}
  rows, counts = _run(tmp_path, part, programs)
  assert _named(rows) == [("a", "done"), ("b", "failed")]
  assert counts == {"done": 1, "failed": 1}
  # What failed is tried again; all that is done is left.
  rows, counts = _run(tmp_path, part)
  assert _named(rows[2:]) == [("b", "done")]
  rows, counts = _run(tmp_path, part)
  assert len(rows) == 3 and counts == {}
  rows, counts = _run(tmp_path, part, again=True)
  assert _named(rows[3:]) == [("a", "done"), ("b", "done")]


@pytest.mark.parametrize(
  "other",
  [
    {"rehearsal": True},
    {"versions": {**_IDENTITY["versions"], "jax": "0.12.0"}},
    {"device": {**_IDENTITY["device"], "driver": "590.2"}},
  ],
)
def test_rows_of_another_machine_or_version_do_not_count(tmp_path, other):
  labels = {**_IDENTITY, **other, "part": "made-up", "case": "a"}
  store.Recorder(tmp_path / store.ROWS_FILE, labels).end(store.DONE, 1.0)
  rows, _ = _run(tmp_path, _part(_case("a")))
  assert len(rows) == 2


def test_a_case_for_which_no_time_is_left_is_skipped_and_says_so(tmp_path):
  part = _part(_case("long", default_s=100), _case("short"))
  rows, _ = _run(tmp_path, part, seconds=50)
  assert _named(rows) == [("long", "skipped"), ("short", "done")]
  assert "about 100 s are needed" in rows[0]["why"]
  # It was not tried, so that it comes first where there is time.
  rows, _ = _run(tmp_path, part, seconds=500)
  assert _named(rows[2:]) == [("long", "done")]


def test_estimates_follow_what_cases_took_before(tmp_path):
  path = tmp_path / store.ROWS_FILE
  for name, status, seconds in (
    ("a", store.DONE, 40.0),
    ("b", store.FAILED, 1.0),
  ):
    labels = {**_IDENTITY, "part": "made-up", "case": name}
    store.Recorder(path, labels).end(status, seconds)
  # Of "a", which is done and was expected to take 10 s, it is known; "b" and
  # "c" are expected to take four times their defaults. A failure says nothing.
  part = _part(
    _case("a", default_s=10), _case("b", default_s=20), _case("c", default_s=5)
  )
  rows, _ = _run(tmp_path, part, seconds=30, again=True)
  assert _named(rows[2:]) == [
    ("c", "done"),
    ("a", "skipped"),
    ("b", "skipped"),
  ]
  assert "about 40 s" in rows[3]["why"]


def test_waves_come_one_after_the_other_and_what_failed_last(tmp_path):
  labels = {**_IDENTITY, "part": "one", "case": "failed"}
  recorder = store.Recorder(tmp_path / store.ROWS_FILE, labels)
  recorder.end(store.FAILED, 1.0)
  one = _part(
    _case("failed"), _case("first"), _case("later", wave=1), name="one"
  )
  two = _part(_case("second"), name="two")
  made = campaign.Campaign(
    tmp_path,
    _IDENTITY,
    end_s=time.monotonic() + 60,
    make_command=lambda labels: [sys.executable, "-c", _SUCCEEDS],
    tell=lambda line: None,
  )
  made.run([one, two])
  rows = store.read(tmp_path / store.ROWS_FILE)[1:]
  names = [row["case"] for row in rows]
  assert names == ["first", "second", "later", "failed"]


def test_a_crash_is_written_down_and_the_campaign_goes_on(tmp_path):
  part = _part(_case("aborts"), _case("raises"), _case("fine"))
  programs = {
    "aborts": "import os; os.abort()",
    "raises": "raise RuntimeError('no /home/me/data/x.bin')",
  }
  rows, _ = _run(tmp_path, part, programs)
  assert [row["status"] for row in rows] == ["failed", "failed", "done"]
  assert rows[0]["exit_code"] == -6
  assert rows[1]["why"] == "RuntimeError: no x.bin"


def test_a_case_that_hangs_is_stopped_with_all_that_it_started(tmp_path):
  program = (
    "import subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time;"
    " time.sleep(600)']);"
    f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid));"
    "time.sleep(600)"
  )
  # All but the reserve of 3 s may be used.
  rows, _ = _run(tmp_path, _part(_case("hangs")), {"hangs": program}, seconds=6)
  assert _named(rows) == [("hangs", "timed out")]
  assert "stopped after 3 s" in rows[0]["why"]
  pid = int((tmp_path / "pid").read_text())
  for _ in range(100):
    if not _is_running(pid):
      return
    time.sleep(0.1)
  pytest.fail("The process is still there.")


def _is_running(pid):
  try:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
  except OSError:
    return False
  return stat.rpartition(") ")[2][0] != "Z"


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
  path = tmp_path / store.ROWS_FILE
  recorder = store.Recorder(path, {"part": "a"})
  recorder.append({"x": 1})
  with open(path, "a", encoding="utf-8") as file:
    file.write('{"part": "a", "x"')
  assert [row["x"] for row in store.read(path)] == [1]
  # The next row begins a line of its own.
  recorder.append({"x": 2})
  assert [row["x"] for row in store.read(path)] == [1, 2]
  assert store.read(tmp_path / "none.jsonl") == []


def test_processes_get_the_flags_of_their_case(tmp_path):
  case = Case(
    name="a",
    environment={"XLA_FLAGS": "--xla_dump_to={out}/dump", "OTHER": "1"},
  )
  base = {"XLA_FLAGS": "--xla_given=1", "HOME": "/home"}
  values = campaign.environment(case, tmp_path, is_rehearsal=False, base=base)
  assert values["XLA_FLAGS"] == f"--xla_given=1 --xla_dump_to={tmp_path}/dump"
  assert values["OTHER"] == "1" and values["HOME"] == "/home"
  assert "JAX_PLATFORMS" not in values
  values = campaign.environment(None, tmp_path, is_rehearsal=True, base=base)
  assert values["JAX_PLATFORMS"] == "cpu"


def test_errors_are_one_line_without_paths():
  text = (
    "INTERNAL: Traceback (most recent call last):\n  File /home/me/x.py\n"
    "CompileRefusedError: InfeasibleError: No plan fits 1 GiB.\n\nmore"
  )
  found = error_text(RuntimeError(text))
  assert found == "CompileRefusedError: InfeasibleError: No plan fits 1 GiB."
  found = error_text(ValueError("first\nno file /a/b/c.txt at https://x.y/z"))
  assert found == "ValueError: no file c.txt at https://x.y/z"


def _row(part, case, started, **figures):
  labels = {"part": part, "case": case, "started": started, **_IDENTITY}
  return {**labels, "kind": store.RESULT, **figures}


def _end(part, case, started, status, **details):
  row = _row(part, case, started, status=status, seconds=1.0, **details)
  return {**row, "kind": store.END}


def _autotune_row(started, before, after):
  return _row(
    "autotune",
    "unet",
    started,
    model="unet",
    untuned_temp_bytes=before,
    untuned_compile_s=1.0,
    tuned_temp_bytes=after,
    tuned_compile_s=2.0,
  )


def test_the_report_shows_the_latest_run_that_was_done():
  rows = [
    _autotune_row("1", 100_000_000, 110_000_000),
    _end("autotune", "unet", "1", store.DONE),
    _autotune_row("2", 100_000_000, 120_000_000),
    _end("autotune", "unet", "2", store.DONE),
    _autotune_row("3", 100_000_000, 130_000_000),
    _end("autotune", "unet", "3", store.TIMED_OUT, why="stopped after 60 s"),
    _end("auto", "gpt2_small", "4", store.SKIPPED, why="no time"),
  ]
  text = report.places(rows)["measured"]
  assert "| unet | 100.0 | 120.0 | +20.00 % | 1.0 | 2.0 |" in text
  assert "+10.00 %" not in text and "+30.00 %" not in text
  assert "### NVIDIA X1; 8.0 GiB; driver 580.1; jax 0.11.2" in text
  assert "Not measured to the end: gpt2_small: skipped, no time." in text
  # Until it is done once, what a case that was stopped has found is shown.
  text = report.places(rows[4:6])["measured"]
  assert "+30.00 %" in text and "unet: timed out, stopped after 60 s" in text


def test_the_report_leaves_rehearsals_and_cpus_out():
  row = _autotune_row("1", 100, 110)
  for other in (
    {"rehearsal": True},
    {"device": {**_IDENTITY["device"], "platform": "cpu"}},
  ):
    assert report.places([{**row, **other}])["measured"] == report.NOTHING
  assert report.places([])["measured"] == report.NOTHING
  assert report.NOTHING not in report.places([row])["measured"]


def test_the_page_is_what_the_committed_rows_say(tmp_path):
  rows = store.read(_ROOT / "benchmarks" / "results" / "gpu.jsonl")
  text = (page.DOCS / "gpu.md").read_text(encoding="utf-8")
  (tmp_path / "gpu.md").write_text(text, encoding="utf-8")
  page.fill("gpu.md", report.places(rows), {}, docs=tmp_path)
  assert (tmp_path / "gpu.md").read_text(encoding="utf-8") == text


def test_every_case_has_a_name_of_its_own():
  assert len({part.name for part in parts.ALL}) == len(parts.ALL)
  for part in parts.ALL:
    assert parts.by_name(part.name) is part
    for is_rehearsal in (False, True):
      names = [case.name for case in part.cases(is_rehearsal)]
      assert names and len(set(names)) == len(names)
  with pytest.raises(ValueError, match="part must be one of parity, peak"):
    parts.by_name("none")


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_models_keep_their_state_and_policies_its_order(name):
  built = [models.build(name, is_rehearsal=False)]
  if models.MODELS[name].block is not None:
    policies = [
      models.build(name, is_rehearsal=False, policy=p) for p in models.POLICIES
    ]
    built += policies
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
    "memory_bytes_per_s": found.memory_bytes_per_s * found.memory_efficiency,
    "to_host_bytes_per_s": found.to_host_bytes_per_s * found.link_efficiency,
    "fp32_flops_per_s": found.fp32_flops_per_s * found.flops_efficiency,
    "tf32_flops_per_s": found.tf32_flops_per_s * found.flops_efficiency,
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


def test_the_summary_leaves_out_what_the_host_is_too_slow_for():
  rows = [
    {
      "class": "dot",
      "measured_s": measured,
      "estimated_s": estimated,
      "is_bound_by_calls": bound,
    }
    for measured, estimated, bound in (
      (2.0, 1.0, False),
      (6.0, 2.0, False),
      (4.0, 4.0, False),
      (9.0, 0.1, True),
    )
  ]
  found = kernels.summary(rows, "all")
  # Ranks 1 3 2 against 1 2 3; ratios 2, 3 and 1.
  assert found["num_kernels"] == 3
  assert found["rank_correlation"] == pytest.approx(0.5)
  assert found["median_ratio"] == 2.0
  assert kernels.summary(rows, "copy")["rank_correlation"] is None


def test_the_difference_of_states():
  one = {"a": np.float32([1, -4]), "b": np.int32([3])}
  assert parity.difference(one, one) == 0.0
  other = {**one, "a": np.float32([1, -3])}
  assert parity.difference(one, other) == 0.25
  # Equal numbers of other bits are not equal, and NaN is not near anything.
  zeros = [np.float32([0.0, 1]), np.float32([-0.0, 1])]
  assert 0.0 < parity.difference(*zeros) < 1e-300
  assert parity.difference(other, {**one, "a": np.float32([1, np.nan])}) > 1e300


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


def test_without_a_card_it_says_so():
  with pytest.raises(RuntimeError, match="give --rehearse"):
    machine.identity(
      campaign.environment(
        None, pathlib.Path(), is_rehearsal=True, base=os.environ
      ),
      is_rehearsal=False,
    )


def _rehearse(folder, *options):
  command = [sys.executable, "-m", "benchmarks.gpu_campaign", "--rehearse"]
  environment = {**os.environ, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'hlo'}"}
  result = subprocess.run(
    [*command, f"--out={folder}", *options],
    cwd=_ROOT,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  rows = store.read(folder / store.ROWS_FILE)
  ends = [row for row in rows if row["kind"] == store.END]
  details = [(row["part"], row.get("why")) for row in ends]
  assert {row["status"] for row in ends} == {store.DONE}, details
  return rows


def _as_of_a_card(row):
  """Returns a rehearsed row as a card would have written it."""
  device = {**row["device"], "platform": "gpu"}
  return {**row, "rehearsal": False, "device": device}


def test_rehearsal_of_quick_parts(tmp_path):
  rows = _rehearse(tmp_path, "--parts=rates,kernels,auto")
  assert all(row["rehearsal"] for row in rows)
  assert report.places(rows)["measured"] == report.NOTHING
  link = next(r for r in rows if r.get("rate") == "to_host_bytes_per_s")
  assert link["value"] is None and "no link" in link["why_null"]
  target = targets.get(tmp_path / "measured.txtpb")
  memory = next(r for r in rows if r.get("rate") == "memory_bytes_per_s")
  assert target.memory_bandwidth_bytes_per_s == pytest.approx(
    memory["value"] / 0.85, rel=1e-6
  )
  classes = {r["class"] for r in rows if "class" in r}
  assert classes == {"all", *kernels._CLASSES}
  # Nothing is left to do.
  again = _rehearse(tmp_path, "--parts=rates,kernels,auto")
  assert len(again) == len(rows)
  json.dumps(rows)


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
  # Every table can be made of such rows.
  text = report.places(map(_as_of_a_card, rows))["measured"]
  for part in parts.ALL:
    assert part.question in text
  assert "Not measured" not in text
