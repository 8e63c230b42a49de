"""Random programs: what has to hold of each, and that it is looked at."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import jaxmem
from benchmarks.random_programs import bodies, checks, kinds
from benchmarks.random_programs.generator import generate
from benchmarks.random_programs.minimiser import minimise, size

pytestmark = pytest.mark.filterwarnings("ignore:.*donated buffers")

# As many as take some fifteen seconds; the others are marked slow.
_NUM_QUICK = 6
_NUM_SEEDS = 300
# Of programs in which a defect was found, once.
_FOUND = (8, 266)
# A short one that has something to order and to fit.
_SHORT = 7


def _flat(operations):
  for each in operations:
    yield each
    yield from _flat(each.body)


class ChecksTest(parameterized.TestCase):
  def check(self, seed):
    program = generate(seed)
    outcome = checks.check(program)
    self.assertEqual(outcome.failures, {}, str(program))
    for name in ("outputs", "temporaries", "prediction", "repeated", "limit"):
      self.assertEqual(outcome.counts[name], 1, name)

  @parameterized.parameters(*sorted({*range(_NUM_QUICK), *_FOUND}))
  def test_programs(self, seed):
    self.check(seed)

  @parameterized.parameters(*range(_NUM_QUICK, _NUM_SEEDS))
  @pytest.mark.slow
  def test_more_programs(self, seed):
    self.check(seed)


class BrokenTest(parameterized.TestCase):
  """Each check fails where what it looks at is broken."""

  def failures(self, target, name, new):
    with mock.patch.object(target, name, new):
      return set(checks.check(generate(_SHORT)).failures)

  def test_other_outputs(self):
    jit = jaxmem.jit

    def broken(function, **kwargs):
      def other(*args):
        return tuple(x == x if x.dtype == bool else -x for x in function(*args))

      return jit(other, **kwargs)

    self.assertIn("outputs", self.failures(jaxmem, "jit", broken))

  def test_more_temporaries(self):
    jit = jaxmem.jit

    def wasteful(function, **kwargs):
      def other(*args):
        large = jnp.sort(jnp.resize(args[0].astype(float), (1 << 16,))).sum()
        return tuple(x + large.astype(x.dtype) for x in function(*args))

      return jit(other, **kwargs)

    self.assertIn("temporaries", self.failures(jaxmem, "jit", wasteful))

  @parameterized.parameters(
    ("prediction", {"predicted_temp_bytes": 1}),
    ("bound", {"lower_bound_bytes": 1 << 40}),
  )
  def test_false_claims(self, name, claim):
    plan = checks.plan
    failures = self.failures(
      checks, "plan", lambda p: dataclasses.replace(plan(p), **claim)
    )
    self.assertEqual(failures, {name})

  def test_a_limit_that_is_not_kept(self):
    failures = self.failures(checks, "total_bytes", lambda memory: 1 << 40)
    self.assertEqual(failures, {"limit"})

  def test_another_plan_the_next_time(self):
    real = checks.Request(options=jaxmem.Options())

    def decide(*args):
      decision = dataclasses.replace(real.decide(*args).decision, method="")
      return types.SimpleNamespace(decision=decision)

    request = mock.Mock(return_value=mock.Mock(decide=decide))
    failures = self.failures(checks, "Request", request)
    self.assertEqual(failures, {"repeated"})


class MinimiserTest(parameterized.TestCase):
  @parameterized.parameters("sort", "solve", "scan")
  def test_what_is_left_still_fails(self, kind):
    def fails(program):
      return any(each.kind == kind for each in _flat(program.operations))

    program = next(p for p in map(generate, range(1000)) if fails(p))
    self.assertGreater(size(program), 3)
    small = minimise(program, fails)
    self.assertTrue(fails(small))
    *around, last = _flat(small.operations)
    self.assertEqual(last.kind, kind)
    # What is left besides only holds it.
    for each in around:
      self.assertLen(each.body, 1)
    self.assertLen(small.arguments, 1)
    self.assertLen(small.outputs, 1)
    self.assertIn(f"{kind}(", str(small))
    jax.jit(small.function)(*small.values())

  def test_the_number_of_tries_is_kept(self):
    tried = []
    minimise(generate(1), lambda p: bool(tried.append(p)), max_tries=5)
    self.assertLen(tried, 5)


class GeneratorTest(absltest.TestCase):
  def test_a_seed_is_a_program(self):
    self.assertEqual(generate(3), generate(3))
    self.assertNotEqual(generate(3), generate(4))
    first, again = generate(3).values(), generate(3).values()
    jax.tree.map(np.testing.assert_array_equal, first, again)

  def test_variety(self):
    programs = [generate(seed) for seed in range(_NUM_SEEDS)]
    used = {each.kind for p in programs for each in _flat(p.operations)}
    self.assertEqual(used, {*kinds.KINDS, *bodies.BODIES})
    arguments = [a for p in programs for a in p.arguments]
    self.assertEqual({a.dtype for a in arguments}, {*kinds.DTYPES})
    self.assertTrue(any(0 in a.shape for a in arguments))
    self.assertTrue(any(a.same_as is not None for a in arguments))
    shares = {len(p.donate_argnums) / len(p.arguments) for p in programs}
    self.assertContainsSubset({0.0, 0.5, 1.0}, shares)
    numbers = [({a.number for a in p.arguments}, p.outputs) for p in programs]
    self.assertTrue(any(given.intersection(out) for given, out in numbers))
    self.assertTrue(any(len({*out}) < len(out) for _, out in numbers))
    read = [
      {n for o in _flat(p.operations) for n in o.operands} for p in programs
    ]
    unused = [g - r for (g, _), r in zip(numbers, read, strict=True)]
    self.assertTrue(any(unused))


class BenchmarkTest(absltest.TestCase):
  @pytest.mark.slow
  def test_a_row(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, "rows.jsonl")
    flags = [f"--first={_SHORT}", "--count=1", f"--again={_SHORT}"]
    program = [sys.executable, "-m", "benchmarks.random_programs_benchmark"]
    subprocess.run(
      [*program, *flags, f"--output={path}"], check=True, capture_output=True
    )
    (row,) = map(json.loads, path.read_text().splitlines())
    self.assertEqual((row["first"], row["count"]), (_SHORT, 1))
    self.assertEqual(row["failures"], {})
    self.assertEqual(row["counts"]["outputs"], 1)
    self.assertEqual(row["counts"]["other_process"], 1)


if __name__ == "__main__":
  absltest.main()
