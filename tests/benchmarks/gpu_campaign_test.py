"""The campaign on a card, as far as it goes without one."""

import os
import pathlib
import sys
import time

import pytest

from benchmarks import page
from benchmarks.gpu import (
  campaign,
  fragmentation,
  machine,
  report,
  store,
  ways,
)
from benchmarks.gpu.case import Case, Part, error_text

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


def test_tables_of_a_rehearsal_say_so_and_what_is_not_known():
  figures = fragmentation.figures({})
  row = _row("fragmentation", "unet", "1", model="unet", way="jaxmem")
  text = report.tables([{**row, **figures, "rehearsal": True}])
  assert "### Rehearsal; NVIDIA X1" in text
  assert "| unet | jaxmem |  |  |  |" in text
  assert f"Not known here: {ways.NO_STATISTICS}.\n" in text


def test_the_page_is_what_the_committed_rows_say(tmp_path):
  rows = store.read(_ROOT / "benchmarks" / "results" / "gpu.jsonl")
  text = (page.DOCS / "gpu.md").read_text(encoding="utf-8")
  (tmp_path / "gpu.md").write_text(text, encoding="utf-8")
  page.fill("gpu.md", report.places(rows), {}, docs=tmp_path)
  assert (tmp_path / "gpu.md").read_text(encoding="utf-8") == text


def test_without_a_card_it_says_so():
  with pytest.raises(RuntimeError, match="give --rehearse"):
    machine.identity(
      campaign.environment(
        None, pathlib.Path(), is_rehearsal=True, base=os.environ
      ),
      is_rehearsal=False,
    )
