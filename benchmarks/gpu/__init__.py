"""The parts of `benchmarks.gpu_campaign`, one file each, and what runs them."""

from benchmarks.gpu import campaign, machine, parts, report, store

__all__ = ["campaign", "machine", "parts", "report", "store"]
