"""The Python of the documents, as a reader would run it, block after block.

Sybil finds the blocks, those in comments too, that the reader does not see:

    <!-- invisible-code-block: python
    what the page leaves out
    -->

and leaves out what a page marks as a sketch, with a reason:

    <!-- skip: next "why this cannot be run" -->
"""

import pathlib

from sybil import Document, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

_SYBIL = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], pattern="*.md")


def parsed(path: pathlib.Path) -> Document:
  """Returns a document; its `examples()` share one namespace."""
  return _SYBIL.parse(path)
