"""Plans, frontiers and batches as notebooks show them: HTML without scripts.

Notebooks take scripts out of what they show; pictures are SVG, and what is
long is folded. What is here loads nothing, and takes its colours from the page
around it, light or dark.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping
from typing import Any

from jaxmem import units
from jaxmem.report import plan_text
from jaxmem.report.explain import explain
from jaxmem.report.explain_html import STYLE
from jaxmem.report.picture import layouts_svg
from jaxmem.report.plan_data import PlanData

_MAX_BATCHES = 40


def plan_fragment(plan: PlanData) -> str:
  """Returns a plan as a part of a page: picture, peak, and all of its text.

  Args:
    plan: The plan.
  """
  title = html.escape(f"{plan.name} on {plan.target}")
  before = units.format_bytes(plan.baseline_temp_bytes)
  after = units.format_bytes(plan.temp_bytes)
  total = units.format_bytes(plan.total_bytes)
  text = html.escape(plan_text.summary(plan))
  return (
    f'{STYLE}<div class="jaxmem"><p><strong>{title}</strong>: temporaries'
    f" {before} → {after}, whole program {total}</p>\n"
    f"{layouts_svg(plan.before, plan.after)}\n"
    f"<p>What the {total} are at the peak:</p></div>\n"
    f"{explain(plan).to_html()}\n"
    f'<div class="jaxmem"><details><summary>the whole plan</summary>'
    f"<pre>{text}</pre></details></div>"
  )


def plan_node(plan: PlanData, path: str | None, render: Any) -> Any:
  """Returns a plan as treescope shows it in a tree of other values.

  Without it treescope would write out every buffer: 28 MB for a ResNet-50. The
  picture comes from `plan_fragment`, which it shows beside this.

  Args:
    plan: The plan.
    path: Where it is in the tree.
    render: What treescope renders its attributes with.
  """
  # Only treescope calls this, so that it is there.
  from treescope import repr_lib

  names = [field.name for field in dataclasses.fields(plan) if field.repr]
  return repr_lib.render_object_constructor(
    object_type=type(plan),
    attributes={name: getattr(plan, name) for name in names},
    path=path,
    subtree_renderer=render,
  )


def batch_fragment(
  batch: int, plan: PlanData, smallest_bytes: Mapping[int, int]
) -> str:
  """Returns the largest batch that fits, those that were tried, and its plan.

  Args:
    batch: The largest that fits.
    plan: For that batch.
    smallest_bytes: Batch -> bytes of the smallest program found for it.
  """
  most = max(smallest_bytes.values(), default=1)
  rows = "".join(
    f"<tr><td>{tried}</td><td>{units.format_bytes(size)}</td>"
    f'<td><span class="bar"><i style="width:{100 * size / most:.1f}%"></i>'
    f"</span>{'fits, the largest' if tried == batch else ''}</td></tr>"
    for tried, size in sorted(smallest_bytes.items())[:_MAX_BATCHES]
  )
  return (
    f'{STYLE}<div class="jaxmem"><p><strong>largest batch {batch}</strong></p>'
    "<table><thead><tr><th>batch</th><th>smallest program</th><th></th></tr>"
    f"</thead><tbody>{rows}</tbody></table></div>\n{plan_fragment(plan)}"
  )
