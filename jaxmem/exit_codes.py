"""What the commands end with; the docstring of `cli` says so to users."""

DOES_NOT_FIT = 1
WRONG_COMMAND = 2
STEP_FAILED = 3
GREW = 4
JAXMEM_FAILED = 5
