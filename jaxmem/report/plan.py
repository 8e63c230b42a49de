"""The plan of one step, as users hold it: its data, its text, its program."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxmem_hlo.proto import hlo_pb2
from jaxmem_hlo.replay import ReplayReport

from jaxmem import units
from jaxmem.report import (
  explain,
  notebook,
  plan_diff,
  plan_json,
  plan_page,
  plan_text,
  xprof,
)
from jaxmem.report.explain import Explanation
from jaxmem.report.frontier import Frontier
from jaxmem.report.layout import Layout
from jaxmem.report.plan_data import PlanData
from jaxmem.report.plan_diff import PlanDiff


class PlannedProgram(Protocol):
  """The program that a plan was made for, while it is in memory."""

  def replay(self) -> ReplayReport:
    """Compiles the plan again and replays it on XLA's own assignment."""
    ...

  def frontier(self, limits: Sequence[int] | None) -> Frontier:
    """Plans for several limits, in bytes; None chooses some."""
    ...

  def compiled(self) -> Mapping[str, hlo_pb2.CompiledModule]:
    """Compiles XLA's own plan and this one again, each with its buffers."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(PlanData):
  """A plan, measured; `PlanData` says what its other attributes are.

  Attributes:
    program: What was planned; None in a plan that was read from a file.
  """

  program: PlannedProgram | None = dataclasses.field(
    default=None, repr=False, compare=False
  )

  @property
  def arena(self) -> Layout:
    """Where every buffer lives: the one arena of temporaries, and the slots."""
    return self.after

  def __str__(self) -> str:
    return plan_text.summary(self)

  def _repr_html_(self) -> str:
    return notebook.plan_fragment(self)

  def __treescope_repr__(self, path: str | None, render: Any) -> Any:
    return notebook.plan_node(self, path, render)

  def explain(self, frontier: Frontier | None = None) -> Explanation:
    """Says where the bytes at the peak come from, and what would save some.

    By kind, by module, by source line and by argument; print what it returns.

    Args:
      frontier: What `frontier` returned, to be told what limits would save.
    """
    return explain.explain(self, frontier)

  def diff(self, baseline: Plan) -> PlanDiff:
    """Says what grew and what shrank at the peak since another plan.

    Args:
      baseline: The other plan, which may have been read from a file.
    """
    return plan_diff.diff(baseline, self)

  def verify(self) -> ReplayReport:
    """Proves the plan against XLA's real buffer assignment.

    Compiles the planned step once more, has XLA write down its schedule and
    where it placed every buffer, and replays each read and write.

    Returns:
      How much was checked.

    Raises:
      FaultyAssignmentError: If some read would see something else than it
        should; the error names it.
      RuntimeError: If the plan was read from a file.
    """
    report = self._known_program("verify").replay()
    report.raise_if_faulty()
    return report

  def frontier(
    self, limits: Sequence[units.ByteQuantity] | None = None
  ) -> Frontier:
    """Plans for several byte limits: bytes against estimated time.

    A few versions of the step are compiled up to their schedule, as under a
    limit: loops that stack nothing, blocks that are all recomputed. A limit of
    its own may find one between them that costs less. Nothing runs.

    Args:
      limits: Most bytes of the whole program, as `memory_limit` takes them,
        but for shares of a device. By default ten from what the plan takes
        without a limit down to the least that was found.

    Raises:
      RuntimeError: If the plan was read from a file.
    """
    program = self._known_program("frontier")
    if limits is None:
      return program.frontier(None)
    return program.frontier([units.parse_bytes(limit) for limit in limits])

  def _known_program(self, method: str) -> PlannedProgram:
    if self.program is None:
      raise RuntimeError(
        f"A plan read from a file knows no program; call {method} on what"
        " jaxmem.plan returns."
      )
    return self.program

  def to_json(self) -> str:
    """Serializes the plan; `from_json` reads it back equal."""
    return plan_json.to_json(self)

  @classmethod
  def from_json(cls, text: str) -> Plan:
    """Reads what `to_json` wrote.

    Raises:
      ValueError: If the text is not such a plan; the error names the field.
    """
    return plan_json.from_json(text, cls)

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes `to_json()` to a file."""
    with open(path, "w", encoding="utf-8") as file:
      file.write(self.to_json())

  def save_html(self, path: str | os.PathLike[str]) -> None:
    """Writes a page that shows all buffers, before and after, and the peak.

    It opens from disk in any browser and needs no network.
    """
    page = plan_page.plan_html(
      f"{self.name} on {self.target}",
      self.before,
      self.after,
      lower_bound_bytes=self.lower_bound_bytes,
      facts=plan_text.facts(self),
      timings=(self.baseline_timing, self.timing),
      edits=() if self.budget is None else self.budget.edits,
      explanation=self.explain().to_html(),
    )
    with open(path, "w", encoding="utf-8") as file:
      file.write(page)

  def save_xprof(self, folder: str | os.PathLike[str]) -> pathlib.Path:
    """Writes what XProf's memory viewer opens: XLA's own plan, and this one.

    Compiles both once more. `xprof --logdir FOLDER` shows them, as two modules
    of a run that has the function's name; so does TensorBoard with XProf.

    Args:
      folder: Where runs are. Other runs in it stay.

    Returns:
      The file.

    Raises:
      RuntimeError: If the plan was read from a file.
    """
    compiled = self._known_program("save_xprof").compiled()
    return xprof.save(folder, f"{self.name}.{self.target}", compiled)
