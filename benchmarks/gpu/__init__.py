"""The parts of `benchmarks.gpu_campaign`, one file each, and what runs them."""
