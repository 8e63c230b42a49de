"""Reads and edits XLA's scheduled HLO modules.

`module` reads, edits and writes a module. `buffers` says which values live
where and until when, `assignment` predicts the buffer assignment that XLA will
make of them, and `replay` proves of any assignment that no value is overwritten
before its last read. `cpu_executable` changes where a compiled XLA:CPU function
keeps its temporaries. `compiler_hook` registers the function through which a
module is replaced while XLA compiles it.

A leaf package: it needs protobuf and numpy, and neither jax nor a solver at
import time.
"""
