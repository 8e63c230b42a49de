"""Input that nobody meant well with, made by hypothesis.

The same in every run: examples are drawn from the tests' names, and none is
kept between runs.
"""

import contextlib
import io
import json
import random
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import strategies as st
from jaxmem_hlo.module import Computation

from jaxmem import cli

# What names, cells and fields are made of beside hypothesis's own texts.
NASTY = (
  *("", " ", "\0", "\n", "\r", "a\rb", "\t", ",", '"', "'", "$x", "${title}"),
  *("</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>"),
  *("&lt;", "<!--", "]]>", "javascript:alert(1)", "..", "../../x", "/", "\\"),
  *("\ud800", "\udc80", "\u2028", "\ufeff", "\u202e", "K", "\u0663", "é" * 300),
  *(
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1e",
    "--",
    "0",
    "-1",
    "-0",
    "0x10",
    "1_000",
  ),
  *("9" * 5000, "1" * 25, str(2**63), str(2**64), "x" * 200_000, "%s", "{}"),
)
# Integers at the edges of machine words, and far beyond.
EDGES = (
  *(0, 1, -1, 2, 255, 2**31 - 1, 2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63),
  *(-(2**31), -(2**63), -(2**63) - 1, 2**64, 10**30),
)

texts = st.one_of(st.sampled_from(NASTY), st.text(max_size=20))
# Texts that UTF-8 can hold.
written_texts = texts.map(lambda t: t.encode("utf-8", "replace").decode())
integers = st.one_of(st.sampled_from(EDGES), st.integers(-4, 40), st.integers())
values: st.SearchStrategy[Any] = st.recursive(
  st.one_of(st.none(), st.booleans(), integers, st.floats(), texts),
  lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)
  ),
  max_leaves=5,
)


def examples(count: int) -> Callable[[Any], Any]:
  """Returns a decorator for tests of so many examples, the same each time."""
  return hypothesis.settings(
    max_examples=count,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[
      hypothesis.HealthCheck.too_slow,
      hypothesis.HealthCheck.large_base_example,
      hypothesis.HealthCheck.data_too_large,
      hypothesis.HealthCheck.filter_too_much,
    ],
  )


def changed(record: Any, draw: st.DataObject) -> Any:
  """Returns a copy of what JSON holds with one value changed, added or gone.

  Of items of a list that are alike the first stands for all.
  """
  record = json.loads(json.dumps(record))
  *path, key = draw.draw(st.sampled_from(_paths(record)))
  holder = record
  for step in path:
    holder = holder[step]
  given = holder[key]
  kinds = {int: integers, str: texts, float: st.floats()}
  acts = ["alike"] * 4 if type(given) in kinds else []
  match draw.draw(st.sampled_from([*acts, "replace", "remove", "add"])):
    case "alike":
      holder[key] = draw.draw(kinds[type(given)])
    case "replace":
      holder[key] = draw.draw(values)
    case "remove":
      del holder[key]
    case "add" if isinstance(given, dict):
      given[draw.draw(texts)] = draw.draw(values)
    case "add" if isinstance(given, list):
      given.append(draw.draw(values))
  return record


def _paths(record: Any) -> list[tuple[Any, ...]]:
  """Returns a path to each value, of those in lists to each kind of value."""
  found = {}

  def walk(value: Any, path: tuple[Any, ...]) -> None:
    if path:
      kind = tuple("*" if type(step) is int else step for step in path)
      found.setdefault(kind, path)
    if isinstance(value, dict):
      for key, inner in value.items():
        walk(inner, (*path, key))
    elif isinstance(value, list):
      for at, inner in enumerate(value):
        walk(inner, (*path, at))

  walk(record, ())
  return list(found.values())


def random_order(computation: Computation, seed: int) -> tuple[int, ...]:
  """Returns the ids of a computation in any order that has operands first.

  XLA takes it, also where a value is read after another was written over it.
  """
  draw = random.Random(seed)
  order: list[int] = []
  left = {i.id for i in computation.instructions}
  while left:
    ready = [
      i
      for i in sorted(left)
      if left.isdisjoint(computation.by_id[i].operands)
      and left.isdisjoint(computation.by_id[i].control_predecessors)
    ]
    order.append(draw.choice(ready))
    left.remove(order[-1])
  return tuple(order)


def run(*argv: str) -> tuple[int, str, str]:
  """Returns the exit code, stdout and stderr of a command."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    code = cli.main(argv)
  return code, out.getvalue(), err.getvalue()
