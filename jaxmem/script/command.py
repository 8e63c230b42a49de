"""`python -m jaxmem run`: a script as it is, with its steps planned.

The script keeps its arguments, its output, its exit code and its signals. At
its end a table on stderr says what became of its compiles.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxmem import exit_codes, units
from jaxmem.options import EFFORT_ARGUMENT, Options
from jaxmem.script.at_import import when_imported
from jaxmem.script.script import Script

if TYPE_CHECKING:
  from jaxmem.entry import CompileRecord, Enabled
  from jaxmem.planning import Decision, PlannedModule
  from jaxmem.script.pictures import Facts, Pictures

_DESCRIPTION = """\
Runs a script or module unchanged, with every compile of it planned, whoever
jitted the function. All that follows the script's name belongs to the script;
its exit code and signals are its own. At its end a table on stderr says, for
each function, what XLA's own plan takes, what jaxmem's takes, and why a
function was not planned."""


def add_run(parser: argparse.ArgumentParser) -> None:
  """Defines the command's arguments."""
  parser.description = _DESCRIPTION
  # A script's option must not be read as the beginning of one of these.
  parser.allow_abbrev = False
  parser.usage = (
    f"{parser.prog} [options] script.py ARGS...\n"
    f"       {parser.prog} [options] -m module ARGS..."
  )
  parser.add_argument(
    "--memory-limit",
    metavar="SIZE",
    help="make each planned program fit, or fail: 24GiB, 80%% (of what jax"
    " takes of the device's memory), or auto: what the device has free",
  )
  parser.add_argument(
    "--only",
    metavar="REGEX",
    help="plan only functions in whose names this is found, such as"
    " '^train_step$'; default: all",
  )
  parser.add_argument(
    "--min-bytes",
    metavar="SIZE",
    default="16MiB",
    help="leave smaller programs to XLA, arguments and outputs included;"
    " default: %(default)s",
  )
  parser.add_argument("--effort", **EFFORT_ARGUMENT)
  parser.add_argument(
    "--report",
    metavar="out.html",
    help="write a page with the table and the picture of the largest program's"
    " plan, and those of other functions beside it: out.FUNCTION.html",
  )
  parser.add_argument(
    "--json", metavar="PATH", help="write what became of each compile as JSON"
  )
  parser.add_argument(
    "--plan-only",
    action="store_true",
    help="end with code 0 once a function was planned, before it runs. That is"
    " the first of at least --min-bytes; where something large is compiled"
    " before the step, such as the initialisation, name the step with --only",
  )
  # Both take all that follows, whatever it looks like.
  parser.add_argument(
    "-m",
    dest="module",
    nargs=argparse.REMAINDER,
    metavar="module ARGS...",
    help="run a module, as python -m does",
  )
  parser.add_argument(
    "script", nargs=argparse.REMAINDER, metavar="script.py ARGS..."
  )
  parser.set_defaults(run=_run)


class _PlannedError(BaseException):
  """Ends the script under --plan-only; scripts catch no such thing."""


def _run(options: argparse.Namespace) -> int:
  try:
    return _Run(options).run()
  except ValueError as error:
    print(f"jaxmem run: error: {error}", file=sys.stderr)
    return exit_codes.WRONG_COMMAND


@dataclasses.dataclass(frozen=True, slots=True)
class _Stop:
  """What --plan-only stopped at.

  Attributes:
    record: What became of the compile.
    figures: The plan's main figures; None if it could not be planned.
  """

  record: CompileRecord
  figures: Facts | None


class _Run:
  """One run of a script.

  Args:
    options: As `add_run` defines them.

  Raises:
    ValueError: If the command is wrong.
  """

  def __init__(self, options: argparse.Namespace):
    is_module = options.module is not None
    words = ["-m", *options.module] if is_module else options.script
    self._script = Script(words)
    self._options = options
    with _as_value_error(re.error, "--only"):
      self._only = re.compile(options.only or "")
    self._min_bytes = 0
    if options.min_bytes != "0":
      self._min_bytes = units.parse_bytes(options.min_bytes, name="--min-bytes")
    self._report = _writable(options.report)
    self._json = _writable(options.json)
    if options.memory_limit is not None:
      units.check_limit(options.memory_limit)
    self._pictures: Pictures | None = None
    self._enabled: Enabled | None = None
    self._stop: _Stop | None = None
    # The script may point sys.stderr elsewhere.
    self._stderr = sys.stderr

  def run(self) -> int:
    """Runs the script and reports; returns the exit code.

    Raises:
      SystemExit: If the script did.
      KeyboardInterrupt: Likewise; its traceback has been printed.
      ValueError: If the limit is malformed, or there is no such module.
    """
    # The script may set what jax reads when it is imported.
    when_imported("jax", self._enable)
    # Where the script imports jaxmem first, that is what imports jax.
    when_imported("jaxmem.entry", self._enable)
    ending = self._script.run()
    if ending is not None and self._stop is None:
      _print_error(ending)
    self._tell()
    return self._exit_code(ending)

  def _enable(self) -> None:
    entry = sys.modules.get("jaxmem.entry")
    if entry is not None and not hasattr(entry, "enable"):
      return  # It is being imported, and then this is called again.
    import jax

    from jaxmem.entry import PLANNED, enable

    if self._enabled is not None:
      return
    # Not as a context: threads may outlive the script's last line, and then
    # what they compile is held to the limit still.
    self._enabled = enable(
      self._options.memory_limit,
      options=Options(effort=self._options.effort),
      only=None if self._options.only is None else self._only,
      min_bytes=self._min_bytes,
    )
    if self._report is not None:
      from jaxmem.script.pictures import Pictures

      self._pictures = Pictures()
    if self._pictures is not None or self._options.plan_only:
      # Programs that come from jax's cache are not shown by XLA.
      jax.config.update("jax_enable_compilation_cache", False)
    PLANNED.records.listener = self._hear

  def _hear(
    self, record: CompileRecord, planned: PlannedModule[Decision] | None
  ) -> None:
    """Hears of a compile; see `records.Listener`."""
    if record.planned_bytes is None:
      return
    if self._pictures is not None and planned is not None:
      try:
        self._pictures.add(record, planned)
      except Exception as error:  # The script must go on.
        self._print(f"jaxmem run: no picture of {record.function}: {error!r}")
    if not self._options.plan_only or not self._only.search(record.function):
      return
    if planned is not None:
      from jaxmem.script.pictures import main_figures

      self._stop = _Stop(record, main_figures(record, planned))
    elif record.planned_bytes >= self._min_bytes:
      self._stop = _Stop(record, None)
    if self._stop is not None:
      raise _PlannedError("The step was planned and --plan-only given.")

  def _tell(self) -> None:
    """Prints the table, and writes what else was asked for."""
    records = [] if self._enabled is None else self._enabled.records
    with contextlib.suppress(OSError, ValueError):
      sys.stdout.flush()  # In one log, the table comes after the output.
    if records:
      from jaxmem.entry import table

      self._print(table(records))
    else:
      self._print("jaxmem run: nothing was planned; see --min-bytes, --only.")
    if self._stop is not None and self._stop.figures is not None:
      self._print(f"{self._stop.record.function}, of which nothing ran:")
      for label, value in self._stop.figures:
        self._print(f"  {label:<22} {value}")
    if self._json is not None:
      rows = [dataclasses.asdict(record) for record in records]
      text = json.dumps(rows, indent=2) + "\n"
      self._write(self._json, lambda path: path.write_text(text, "utf-8"))
    if self._report is not None:
      self._write(self._report, lambda path: self._save_pages(path, records))

  def _save_pages(
    self, path: pathlib.Path, records: Sequence[CompileRecord]
  ) -> None:
    files = self._pictures.save(path, records) if self._pictures else []
    for file in files:
      self._print(f"wrote {file}")
    if not files:
      self._print("jaxmem run: nothing was planned, so there is no report.")

  def _write(
    self, path: pathlib.Path, save: Callable[[pathlib.Path], object]
  ) -> None:
    """Writes a file; where that fails, the script's exit code stays its own."""
    try:
      save(path)
    except OSError as error:
      self._print(f"jaxmem run: cannot write {path}: {error.strerror}")
    except Exception as error:
      self._print(f"jaxmem run: cannot write {path}: {error!r}")

  def _print(self, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
      print(text, file=self._stderr)

  def _exit_code(self, ending: BaseException | None) -> int:
    """Returns the exit code, or raises what Python makes it of itself."""
    if self._stop is not None:
      return exit_codes.JAXMEM_FAILED if self._stop.figures is None else 0
    if isinstance(ending, SystemExit | KeyboardInterrupt):
      raise ending
    if ending is not None:
      return 1
    if self._options.plan_only:
      self._print("jaxmem run: no step was planned, and the script has ended.")
      return exit_codes.WRONG_COMMAND
    return 0


def _print_error(error: BaseException) -> None:
  """Prints an uncaught exception as Python would, or as the script has it."""
  if isinstance(error, SystemExit):
    return
  sys.excepthook(type(error), error, error.__traceback__)
  if isinstance(error, KeyboardInterrupt):
    # Python must get it, as it ends the process by the signal then.
    sys.excepthook = lambda *unused: None


@contextlib.contextmanager
def _as_value_error(kind: type[Exception], option: str):
  try:
    yield
  except kind as error:
    raise ValueError(f"{option}: {error}.") from error


def _writable(text: str | None) -> pathlib.Path | None:
  """Returns a path that the script's changes of folder do not move.

  Raises:
    ValueError: If no file can be there, which is better known before the run.
  """
  if text is None:
    return None
  path = pathlib.Path(text).absolute()
  if path.is_dir() or not os.access(path.parent, os.W_OK):
    raise ValueError(f"cannot write {text}.")
  return path
