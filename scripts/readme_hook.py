"""A hook of hatchling: makes the README's links absolute.

In the repository they are relative, and lead to the same version. Where PyPI
shows the README there are no files beside it.
"""

import pathlib
import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\]\((?!https?:|#)(?P<path>[^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
  """Sets `readme` of the project."""

  def update(self, metadata: dict[str, Any]) -> None:
    """Adds the README, pictures and pages by their addresses on GitHub."""
    repository = metadata["urls"]["Homepage"]
    raw = repository.replace("github.com", "raw.githubusercontent.com")

    def absolute(match: re.Match[str]) -> str:
      path = match["path"]
      is_picture = path.endswith(".svg")
      base = f"{raw}/main" if is_picture else f"{repository}/blob/main"
      return f"]({base}/{path})"

    text = pathlib.Path(self.root, "README.md").read_text(encoding="utf-8")
    metadata["readme"] = {
      "content-type": "text/markdown",
      "text": _RELATIVE.sub(absolute, text),
    }
