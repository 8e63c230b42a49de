"""`python -m jaxmem run`: somebody's script, with its steps planned.

Nothing here imports jax before the script does, since jax reads environment
variables when it is imported, and a script may set them.
"""

from jaxmem.script.command import add_run

__all__ = ["add_run"]
