"""An explanation of a peak as HTML that needs neither script nor network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from jaxmem import units
from jaxmem.report import peak_tree
from jaxmem.report.peak_tree import Node

# What a tree may show, so that notebooks stay small.
_MAX_NODES = 120
_MAX_CHARACTERS = 80

# Colours are those of the page around it, with bars that both themes can show.
STYLE = """<style>
.jaxmem{font:13px/1.5 system-ui,sans-serif;color:inherit;max-width:60rem}
.jaxmem details{margin-left:1.1em}
.jaxmem>details,.jaxmem .trees>details{margin-left:0}
.jaxmem summary{cursor:pointer}
.jaxmem .leaf{margin-left:2.1em}
.jaxmem .size{display:inline-block;min-width:6em;text-align:right;
font-variant-numeric:tabular-nums}
.jaxmem .share{display:inline-block;min-width:4em;text-align:right;opacity:.75;
font-variant-numeric:tabular-nums}
.jaxmem .bar{display:inline-block;width:6em;margin:0 .6em;background:#8883;
vertical-align:middle;height:.7em}
.jaxmem .bar i{display:block;height:100%;background:#2563eb}
@media (prefers-color-scheme:dark){.jaxmem .bar i{background:#7aa2f7}}
.jaxmem .name{font-family:ui-monospace,monospace;overflow-wrap:anywhere}
.jaxmem svg{max-width:100%;height:auto}
</style>"""


def explanation_html(trees: Mapping[str, Node], found: Sequence[str]) -> str:
  """Returns the trees, folded, and what would shrink the peak.

  Args:
    trees: What each is by -> the tree.
    found: What would shrink the peak.
  """
  parts = [STYLE, '<div class="jaxmem"><div class="trees">']
  for number, (by, node) in enumerate(trees.items()):
    state = "" if number else " open"
    parts.append(
      f"<details{state}><summary>{html.escape(f'by {by}')}</summary>"
    )
    top = peak_tree.trimmed(node, _MAX_NODES)
    parts += [_row(child, node.size_bytes) for child in top.children]
    parts.append("</details>")
  parts.append("</div>")
  if found:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in found)
    parts.append(f"<p>What would shrink it:</p><ul>{items}</ul>")
  return "\n".join([*parts, "</div>"])


def _row(node: Node, total_bytes: int) -> str:
  share = 100 * node.size_bytes / max(1, total_bytes)
  name = node.name
  if len(name) > _MAX_CHARACTERS:
    # The end of a path says most.
    name = f"…{name[-_MAX_CHARACTERS:]}"
  said = (
    f'<span class="size">{units.format_bytes(node.size_bytes)}</span>'
    f'<span class="share">{share:.1f} %</span><span class="bar">'
    f'<i style="width:{min(100.0, max(0.0, share)):.1f}%"></i></span>'
    f'<span class="name">{html.escape(name)}</span>'
  )
  if not node.children:
    return f'<div class="leaf">{said}</div>'
  inner = "\n".join(_row(child, total_bytes) for child in node.children)
  return f"<details><summary>{said}</summary>\n{inner}</details>"
