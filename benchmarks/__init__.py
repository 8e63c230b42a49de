"""Models and measurements; not installed with the package."""
