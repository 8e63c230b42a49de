"""Programs made at random, what has to hold of them, and their small parts."""

from benchmarks.random_programs.checks import check, digest, fails
from benchmarks.random_programs.generator import MOST_OPERATIONS, generate
from benchmarks.random_programs.minimiser import minimise
from benchmarks.random_programs.program import Program

__all__ = [
  "MOST_OPERATIONS",
  "Program",
  "check",
  "digest",
  "fails",
  "generate",
  "minimise",
]
