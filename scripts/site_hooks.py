"""Hooks of mkdocs.yml.

Pages link to files beside docs/, such as ../README.md, so that they can be read
in the repository as they are. The site does not hold these files: there such
links lead to the repository.
"""

import posixpath
import re
from typing import Any

_OUTWARD = re.compile(
  r"\]\((?P<path>(?:\.\./)+[^)#\s]*)(?P<anchor>#[^)\s]*)?\)"
)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
  """Returns a page's text, its outward links made absolute."""
  del files
  folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

  def absolute(match: re.Match[str]) -> str:
    path = posixpath.normpath(posixpath.join(folder, match["path"]))
    if path.startswith("docs/"):
      return match[0]
    url = f"{config['repo_url']}/blob/main/{path}"
    return f"]({url}{match['anchor'] or ''})"

  return _OUTWARD.sub(absolute, markdown)
