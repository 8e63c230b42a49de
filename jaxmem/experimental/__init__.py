"""What papers describe and `jaxmem.jit` does not use: see README.md."""
