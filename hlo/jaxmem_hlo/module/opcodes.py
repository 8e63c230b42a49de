"""Kinds of instructions that several parts of a plan treat alike."""

# Only rename values: they take no time and no memory.
RENAMES = frozenset(
  {
    "add-dependency",
    "after-all",
    "bitcast",
    "domain",
    "get-tuple-element",
    "opt-barrier",
    "tuple",
  }
)
# There from the start, or not computed at all.
GIVEN = frozenset({"constant", "parameter", "partition-id", "replica-id"})
# Opcodes that begin so are seen by other devices or by the host, or have a
# hidden state: they keep their order among themselves, and run once.
STATEFUL_PREFIXES = (
  "all-",
  "async-",
  "collective-",
  "copy-done",
  "copy-start",
  "infeed",
  "outfeed",
  "ragged-all-to-all",
  "recv",
  "reduce-scatter",
  "rng",
  "send",
)
