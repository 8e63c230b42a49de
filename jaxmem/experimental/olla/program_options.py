"""The toggles of the three programs, one for each technique."""

import dataclasses
from typing import Literal, get_args

Formulation = Literal["boolean", "interval"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
  """How the programs are written and solved.

  The defaults are exact: none of them changes an optimum. Those marked as
  heuristic may, and then a result is "optimal" only if a bound of the full
  problem is met.

  Attributes:
    formulation: "boolean" is the paper's, with a variable for each tensor and
      step; "interval" has a start for each node and a live interval for each
      tensor. See docs/olla.md for which is better at what.
    bound_lifetimes: 4.1: nodes and tensors only have the steps between ASAP and
      ALAP, equations 10 to 12.
    skip_disjoint_pairs: 4.2: no equations 6 and 7 for tensors that never
      coexist.
    anchor_updates: 4.3, heuristic: control edges make weight updates early.
    split: 4.4: order first, then addresses; else both in one program. Each of
      the two is exact, but their sequence may miss the joint optimum.
    preplace_pyramid: 4.5, heuristic: nested tensors get fixed addresses.
    one_node_per_step: Each step runs one node. Not in the paper, where nodes
      may share a step and pay for it; the optimum is the same.
    warm_start: The order and the addresses to start from are given as hints,
      and nothing worse is looked for.
    cut_bound: The peak is at least the bound of the minimum cuts.
    max_deterministic_time: CP-SAT's limit for each program, in its own unit:
      roughly seconds, but the same on every machine.
  """

  formulation: Formulation = "interval"
  bound_lifetimes: bool = True
  skip_disjoint_pairs: bool = True
  anchor_updates: bool = False
  split: bool = True
  preplace_pyramid: bool = False
  one_node_per_step: bool = True
  warm_start: bool = True
  cut_bound: bool = True
  max_deterministic_time: float = 2.0

  def __post_init__(self):
    if self.formulation not in get_args(Formulation):
      raise ValueError(
        f"formulation must be one of {get_args(Formulation)}, got"
        f" {self.formulation!r}."
      )
    if self.max_deterministic_time <= 0:
      raise ValueError(
        "max_deterministic_time must be positive, got"
        f" {self.max_deterministic_time}."
      )
