"""Reports of a plan: what was saved, how far from the bound, and why."""
