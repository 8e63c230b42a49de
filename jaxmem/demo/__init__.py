"""`python -m jaxmem demo`: plans published models and runs smaller ones."""

from jaxmem.demo import main

__all__ = ["main"]
