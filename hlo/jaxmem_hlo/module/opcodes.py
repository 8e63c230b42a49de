"""Kinds of instructions that several parts of a plan treat alike."""

# They only rename values: they take no time and no memory.
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
# Their values are there from the start, or not computed at all.
GIVEN = frozenset({"constant", "parameter", "partition-id", "replica-id"})
# They pass on the value of their first operand as it is.
FORWARDS = frozenset({"add-dependency", "bitcast", "domain", "opt-barrier"})
# The tuple of these asynchronous starts repeats the operand at this index.
OPERAND_IN_START: dict[str, tuple[int, ...]] = {
  "all-gather-start": (0,),
  "collective-permute-start": (0,),
  "copy-start": (1,),
}
ASYNC_STARTS = frozenset({*OPERAND_IN_START, "all-reduce-start", "async-start"})
# The tuple of the start has the result of these at this index.
RESULT_IN_START: dict[str, tuple[int, ...]] = {
  "all-gather-done": (1,),
  "all-reduce-done": (),
  "async-done": (1,),
  "collective-permute-done": (1,),
  "copy-done": (0,),
}
# XLA's number for the host's memory, in the layouts of what lies there.
HOST_MEMORY_SPACE = 5
# What several devices run together, to exchange what they hold.
COLLECTIVES = frozenset(
  {
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
  }
)
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
# They compute each element from the same places of their operands.
ELEMENTWISE = frozenset(
  [
    "abs",
    "acos",
    "acosh",
    "add",
    "and",
    "asin",
    "asinh",
    "atan2",
    "atanh",
    "bitcast-convert",
    "cbrt",
    "ceil",
    "clamp",
    "compare",
    "complex",
    "convert",
    "copy",
    "cosh",
    "cosine",
    "count-leading-zeros",
    "divide",
    "erf",
    "exponential",
    "exponential-minus-one",
    "floor",
    "imag",
    "is-finite",
    "log",
    "log-plus-one",
    "logistic",
    "map",
    "maximum",
    "minimum",
    "multiply",
    "negate",
    "not",
    "or",
    "popcnt",
    "power",
    "real",
    "reduce-precision",
    "remainder",
    "rng",
    "round-nearest-afz",
    "round-nearest-even",
    "rsqrt",
    "select",
    "shift-left",
    "shift-right-arithmetic",
    "shift-right-logical",
    "sign",
    "sine",
    "sinh",
    "sqrt",
    "stochastic-convert",
    "subtract",
    "tan",
    "tanh",
    "xor",
  ]
)
