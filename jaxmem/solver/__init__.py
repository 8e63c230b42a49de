"""OR-Tools CP-SAT: parameters, statuses, determinism."""
