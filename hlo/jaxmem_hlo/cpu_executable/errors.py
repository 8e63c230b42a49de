"""Why an executable is left as XLA made it."""


class UnsupportedExecutableError(Exception):
  """An executable that cannot be changed safely; says why."""
