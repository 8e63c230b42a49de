"""How often loops that make residuals again keep all bits on a CPU.

Random layers in a `lax.scan`, of norms, products, gates, attention, softmaxes
and functions, some on a residual. Of each, the loop is made to stack less, by
shares of what it could do without, at the least cost for a CPU or for an H200,
which chooses otherwise; it runs here, and its results are compared with those
of the step as written. A row for each; the last line counts them.

    python -m benchmarks.loop_bits_benchmark --first=0 --count=60
"""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.extend import core

from benchmarks.row_output import emit_row
from jaxmem import cost
from jaxmem.versions import scan

_FIRST = flags.DEFINE_integer("first", 0, "The first seed.")
_COUNT = flags.DEFINE_integer("count", 60, "How many random steps.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_WIDTH = 64
# Of the bytes of all residuals, those that are saved.
_SHARES = (0.25, 0.5, 0.75, 1.0)

Params = dict[str, jax.Array]
Operation = Callable[[jax.Array, Params], jax.Array]


def _inverse_root_mean_square(x: jax.Array) -> jax.Array:
  return jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-3)


def _layer_norm(x: jax.Array, p: Params) -> jax.Array:
  centred = x - x.mean(-1, keepdims=True)
  scaled = centred * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5)
  return scaled * p["scale"] + p["bias"]


def _attend(x: jax.Array, p: Params) -> jax.Array:
  scores = jnp.einsum("btd,bsd->bts", x @ p["first"], x @ p["second"])
  return jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores / 8.0), x)


_FUNCTIONS = (
  jnp.tanh,
  jax.nn.gelu,
  jax.nn.silu,
  jax.nn.relu,
  jax.nn.softplus,
  jax.nn.sigmoid,
  jnp.sin,
)
_OPERATIONS: tuple[Operation | None, ...] = (
  lambda x, p: x * (_inverse_root_mean_square(x) * p["scale"]),
  lambda x, p: (x * _inverse_root_mean_square(x)) * p["scale"],
  _layer_norm,
  lambda x, p: x @ p["first"] + p["bias"],
  lambda x, p: x @ p["second"],
  lambda x, p: jax.nn.silu(x @ p["first"]) * (x @ p["second"]),
  lambda x, p: x * p["scale"],
  _attend,
  lambda x, p: jax.nn.softmax(x),
  lambda x, p: x * jnp.exp(-jnp.square(x) * p["scale"]),
  # One of the functions, as often as two others.
  None,
  None,
)


def _random_step(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
  """Returns a step of plain descent on some random layers, and its operands."""
  rng = random.Random(seed)
  plan = [
    (rng.choice(_OPERATIONS), rng.random() < 0.5, rng.choice(_FUNCTIONS))
    for _ in range(rng.randint(3, 7))
  ]
  length, batch, num_rows = (rng.choice(c) for c in ((3, 4), (2, 4), (16, 64)))

  def layer(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
    for operation, is_residual, function in plan:
      y = function(x) if operation is None else operation(x, p)
      x = x + y if is_residual else y
    return 0.5 * x + 0.1 * jnp.tanh(x), None

  def step(params: Params, x: jax.Array) -> Any:
    def loss(params: Params) -> jax.Array:
      return jnp.square(jax.lax.scan(layer, x, params)[0] - 1).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

  generator = np.random.default_rng(seed)

  def normal(*shape: int) -> jax.Array:
    return jnp.asarray(0.3 * generator.standard_normal(shape, np.float32))

  params = {
    "first": normal(length, _WIDTH, _WIDTH),
    "second": normal(length, _WIDTH, _WIDTH),
    "scale": 1 + normal(length, _WIDTH),
    "bias": normal(length, _WIDTH),
  }
  return step, (params, normal(batch, num_rows, _WIDTH))


def rows_of(seed: int) -> Iterator[dict[str, Any]]:
  """Yields a row for each choice of residuals of a random step."""
  step, args = _random_step(seed)
  leaves = jax.tree.leaves(args)
  jaxpr = jax.make_jaxpr(step)(*args)
  expected = jax.jit(core.jaxpr_as_fun(jaxpr))(*leaves)
  if not all(jnp.isfinite(each).all() for each in expected):
    return
  most_bytes = scan.droppable_bytes(jaxpr)
  seen: set[tuple[str, ...]] = set()
  for target, share in itertools.product(("cpu", "h200"), _SHARES):
    rates = cost.for_target(target)
    rewritten = scan.rewrite_step(jaxpr, int(share * most_bytes), rates)
    if rewritten.dropped in seen:
      continue
    seen.add(rewritten.dropped)
    found = jax.jit(core.jaxpr_as_fun(rewritten.closed_jaxpr))(*leaves)
    pairs = zip(found, expected, strict=True)
    yield {
      "seed": seed,
      "target": target,
      "share": share,
      "num_dropped": len(rewritten.dropped),
      "is_bit_equal": all(np.array_equal(f, e) for f, e in pairs),
    }


def main(argv: list[str]) -> None:
  """Compares all random steps."""
  del argv
  num_equal = num_choices = 0
  for seed in range(_FIRST.value, _FIRST.value + _COUNT.value):
    for row in rows_of(seed):
      emit_row(row, _OUTPUT.value)
      num_equal += row["is_bit_equal"]
      num_choices += 1
  print(f"{num_equal} of {num_choices} choices keep all bits")


if __name__ == "__main__":
  app.run(main)
