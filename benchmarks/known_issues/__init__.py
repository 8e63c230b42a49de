"""Small programs for what people reported of JAX's and XLA's memory."""

from benchmarks.known_issues.measured import measure
from benchmarks.known_issues.steps import KNOWN_STEPS, KnownStep

__all__ = ["KNOWN_STEPS", "KnownStep", "measure"]
