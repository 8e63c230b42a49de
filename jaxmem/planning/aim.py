"""What a search for edits aims at: how bytes are counted, and how many fit."""

from __future__ import annotations

import dataclasses
import math

from jaxmem.graph import Sharing
from jaxmem.planning.budget_problem import Slots

# A view says how donated memory counts, and what may share memory.
View = tuple[Slots, Sharing]
# These views are nearest to what XLA does.
VIEWS: tuple[View, ...] = (("occupied", "heap"), ("free", "heap"))
# Of these, the view that counts the fewest bytes.
MOST_PROMISING_VIEW = VIEWS[-1]
# These views are searched last: they count too few bytes, but sometimes find a
# plan that XLA packs more tightly.
LAST_VIEWS: tuple[View, ...] = (("occupied", "any"), ("free", "any"))
# No predicted temporaries are fewer than what is live in this view.
LOWEST_VIEW: View = ("free", "any")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
  """What edits are chosen for.

  Attributes:
    view: In the light of which bytes count as live.
    room_bytes: Most bytes of predicted temporaries.
    live_limit_bytes: Most bytes live in that view, which the choice is told.
    with_link: Whether values may go to the host, if there is a link.
  """

  view: View
  room_bytes: int
  live_limit_bytes: int
  with_link: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
  """Which plans a search need not find.

  Attributes:
    worse_s: Seconds of a step that make a plan useless.
    is_any: Whether plans are of use that only the views find that are searched
      last, and that takes long.
  """

  worse_s: float = math.inf
  is_any: bool = True

  def is_within(self, other: Wanted) -> bool:
    """Whether nothing is wanted that the other does not want as well."""
    return self.worse_s <= other.worse_s and self.is_any <= other.is_any


ANYTHING = Wanted()
