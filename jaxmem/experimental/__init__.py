"""What the literature describes and `jaxmem.jit` does not use: see README.md."""
