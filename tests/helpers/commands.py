"""Commands run in this process."""

import contextlib
import io

from jaxmem import cli


def run(*argv: str) -> tuple[int, str, str]:
  """Returns the exit code, stdout and stderr of a command."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    code = cli.main(argv)
  return code, out.getvalue(), err.getvalue()
