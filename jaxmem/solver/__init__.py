"""OR-Tools CP-SAT: parameters, statuses, determinism."""

from jaxmem.solver import cpsat

__all__ = ["cpsat"]
