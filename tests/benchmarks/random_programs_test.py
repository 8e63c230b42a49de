"""Random programs: what has to hold of each, and that it is looked at."""

import collections
import dataclasses
import itertools
from unittest import mock

import benchmark_process
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import PartitionSpec as P
from jaxmem_hlo.buffers import UnsupportedModuleError

import jaxmem
from benchmarks.random_programs import (
  MOST_OPERATIONS,
  bodies,
  checks,
  claims,
  kinds,
  sharding,
)
from benchmarks.random_programs.generator import generate
from benchmarks.random_programs.minimiser import minimise, size
from benchmarks.random_programs.program import Argument, Operation, Program
from jaxmem import planning, targets

pytestmark = pytest.mark.filterwarnings("ignore:.*donated buffers")

# Short ones, and long ones, which are marked slow.
_NUM_QUICK_SHORT = 70
_NUM_SHORT = 300
# Programs of full size that run, and those of which variety is asked.
_NUM_FULL = 160
_NUM_SEEDS = 300
# The devices that every test process has, and how many programs over them.
_NUM_DEVICES = 4
_NUM_QUICK_SHARDED = 4
_NUM_SHARDED = 24
# Of programs in which a defect was found, once.
_FOUND = (8, 266)
_FOUND_SHORT = (
  *(16_756, 18_024, 18_930, 23_758, 28_135, 44_782, 85_097, 93_524),
)
_SHORT_OPERATIONS = 4
_FEWEST_OPERATIONS = 2
# The same of programs planned for a GPU.
_FOUND_FOR_GPU = (300_126, 300_271)
_GPU_OPERATIONS = 8
# A short one that has something to order and to fit.
_SHORT = 7
# A short one that returns an array without elements, and others.
_WITHOUT_ELEMENTS = 33_172


def _flat(operations):
  for each in operations:
    yield each
    yield from _flat(each.body)


class ChecksTest(parameterized.TestCase):
  def check(
    self, seed, num_devices=1, most_operations=MOST_OPERATIONS, by_plan=True
  ):
    program = generate(seed, num_devices, most_operations)
    outcome = checks.check(program, by_plan=by_plan)
    self.assertEqual(outcome.failures, {}, str(program))
    if num_devices > 1 and outcome.counts["refused_by_xla"]:
      self.skipTest("XLA itself cannot run it.")
    for name in ("outputs", "temporaries", "prediction", "repeated", "limit"):
      self.assertEqual(outcome.counts[name], 1, name)
    self.assertEqual(outcome.counts["limited_other"], 0)

  @parameterized.parameters(*_FOUND)
  def test_programs(self, seed):
    self.check(seed)

  @parameterized.parameters(*range(_NUM_QUICK_SHORT))
  def test_shortest_programs(self, seed):
    self.check(seed, most_operations=_FEWEST_OPERATIONS, by_plan=False)

  @parameterized.parameters(*range(_NUM_QUICK_SHORT, _NUM_SHORT))
  @pytest.mark.slow
  def test_more_of_the_shortest_programs(self, seed):
    self.check(seed, most_operations=_FEWEST_OPERATIONS, by_plan=False)

  @parameterized.parameters(*_FOUND_SHORT)
  def test_short_programs(self, seed):
    self.check(seed, most_operations=_SHORT_OPERATIONS)

  @parameterized.parameters(*_FOUND_FOR_GPU)
  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed"
  )
  def test_programs_for_a_gpu(self, seed):
    program = generate(seed, 1, _GPU_OPERATIONS)
    outcome = checks.check(program, target="h200")
    self.assertEqual(outcome.failures, {})
    self.assertEqual(outcome.counts["prediction"], 1)
    self.assertEqual(outcome.counts["limited_prediction"], 1)

  @parameterized.parameters(*sorted({*range(_NUM_FULL)}.difference(_FOUND)))
  @pytest.mark.slow
  def test_more_programs(self, seed):
    self.check(seed)

  @parameterized.parameters(*range(_NUM_QUICK_SHARDED))
  def test_sharded_programs(self, seed):
    self.check(seed, _NUM_DEVICES)

  @parameterized.parameters(*range(_NUM_QUICK_SHARDED, _NUM_SHARDED))
  @pytest.mark.slow
  def test_more_sharded_programs(self, seed):
    self.check(seed, _NUM_DEVICES)


class ByCompileTest(parameterized.TestCase):
  """Without `jaxmem.plan`, what `jaxmem.jit` decided is checked."""

  @parameterized.parameters(1, _NUM_DEVICES)
  def test_the_same_is_checked(self, num_devices):
    self._check(_SHORT, num_devices)

  @parameterized.product(seed=(0, 3), num_devices=(1, _NUM_DEVICES))
  @pytest.mark.slow
  def test_the_same_is_checked_of_long_ones(self, seed, num_devices):
    self._check(seed, num_devices)

  def _check(self, seed, num_devices):
    program = generate(seed, num_devices)
    outcomes = [checks.check(program, by_plan=each) for each in (True, False)]
    by_plan, by_compile = (outcome.counts for outcome in outcomes)
    self.assertEqual([outcome.failures for outcome in outcomes], [{}, {}])
    self.assertEqual(by_plan - by_compile, collections.Counter(by_plan=1))
    self.assertEmpty(by_compile - by_plan)

  @parameterized.parameters("prediction", "bound")
  def test_false_claims(self, name):
    claim = {"prediction": "planned_bytes", "bound": "lower_bound_bytes"}[name]
    of_compile = claims.Claims.of_compile

    def false(record, planned, *compiled):
      decision = dataclasses.replace(planned.decision, **{claim: 1 << 40})
      planned = dataclasses.replace(planned, decision=decision)
      found = of_compile(record, planned, *compiled)
      return dataclasses.replace(
        found, lower_bound_bytes=decision.lower_bound_bytes
      )

    with mock.patch.object(claims.Claims, "of_compile", false):
      outcome = checks.check(generate(_SHORT), by_plan=False)
    self.assertIn(name, outcome.failures)

  def test_what_was_left_to_xla_is_told(self):
    def fails(*_):
      raise ZeroDivisionError

    with mock.patch.object(planning.Request, "decide", fails):
      outcome = checks.check(generate(_SHORT), by_plan=False)
    self.assertIn("ZeroDivisionError", outcome.failures["crash"])

  def test_what_is_not_modelled_is_counted(self):
    def fails(*_):
      raise UnsupportedModuleError("an operation nobody knows")

    with mock.patch.object(planning.Request, "decide", fails):
      outcome = checks.check(generate(_SHORT), by_plan=False)
    self.assertEqual(outcome.counts["not_modelled"], 1)
    self.assertEqual(outcome.failures, {})


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

  def test_outputs_that_jax_alone_does_not_repeat(self):
    jit, signs = jax.jit, itertools.chain((1,), itertools.repeat(-1))

    def undecided(function, **kwargs):
      sign = next(signs)

      def other(*args):
        return tuple(
          x == x if x.dtype == bool else sign * x for x in function(*args)
        )

      return jit(other, **kwargs)

    with mock.patch.object(jax, "jit", undecided):
      outcome = checks.check(generate(_SHORT))
    self.assertEqual(outcome.counts["undecided_by_xla"], 1)
    self.assertEqual(outcome.failures, {})

  def test_rounding_under_a_limit_beside_an_output_without_elements(self):
    jit = jaxmem.jit

    def rounded(function, memory_limit=None, **kwargs):
      def other(*args):
        return tuple(x * (1 + 1e-7) for x in function(*args))

      chosen = function if memory_limit is None else other
      return jit(chosen, memory_limit=memory_limit, **kwargs)

    program = generate(_WITHOUT_ELEMENTS, most_operations=_SHORT_OPERATIONS)
    with mock.patch.object(jaxmem, "jit", rounded):
      outcome = checks.check(program)
    self.assertEqual(outcome.failures, {})
    self.assertEqual(outcome.counts["limited_rounded"], 1)

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
    real = checks._decided

    def decided(*args):
      return dataclasses.replace(real(*args), method="")

    failures = self.failures(checks, "_decided", decided)
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

  def test_fewer_operations_make_another_program(self):
    for seed in range(30):
      short = generate(seed, most_operations=4)
      self.assertLessEqual(len(short.operations), 4)
      for each in _flat(short.operations):
        self.assertLessEqual(len(each.body), 4)
    self.assertEqual(generate(3, most_operations=20), generate(3))

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

  def test_variety_over_devices(self):
    programs = [generate(seed, 8) for seed in range(_NUM_SEEDS)]
    self.assertEqual({p.mesh for p in programs}, {(8,), (2, 4)})
    self.assertEqual({p.divides_outputs for p in programs}, {True, False})
    operations = [each for p in programs for each in _flat(p.operations)]
    used = {each.kind for each in operations}
    several = {*sharding.KINDS, *sharding.BODIES}
    self.assertEqual(used, {*kinds.KINDS, *bodies.BODIES} | several)
    # Loops whose iterations exchange values.
    inner = [
      {each.kind for each in _flat(operation.body)}
      for operation in operations
      if operation.kind in ("scan", "while", "fori")
    ]
    for kind in ("all_reduce", "all_gather", "permute"):
      self.assertTrue(any(kind in body for body in inner), kind)
    arguments = [a for p in programs for a in p.arguments]
    shapes = {"a": 2, "b": 4}
    specs = {sharding.divided(a.shape, shapes, a.choice) for a in arguments}
    for spec in (P("a"), P("a", "b"), P(("a", "b")), P(None, "b"), P()):
      self.assertIn(spec, {P(*_short(spec)) for spec in specs})

  def test_a_program_exchanges_values(self):
    operation = Operation(number=1, kind="", operands=(0, 0), choice=0)
    given = Argument(number=0, shape=(8, 8), dtype="float32", choice=2)
    for kind, opcode in (
      *(("all_reduce", "all-reduce"), ("all_gather", "all-gather")),
      *(("permute", "collective-permute"), ("all_to_all", "all-to-all")),
      ("reduce_scatter", "reduce-scatter"),
    ):
      with self.subTest(kind):
        program = Program(
          seed=0,
          arguments=(given,),
          operations=(dataclasses.replace(operation, kind=kind, choice=1),),
          outputs=(1,),
          mesh=(2, 2),
          divides_outputs=True,
        )
        jitted = jax.jit(program.function, **program.jit_options)
        compiled = jitted.lower(*program.values()).compile()
        self.assertIn(f" {opcode}", str(compiled.as_text()))


def _short(spec):
  """Leaves out the dimensions at the end that are not divided."""
  names = [*spec]
  while names and names[-1] is None:
    names.pop()
  return names


class BenchmarkTest(parameterized.TestCase):
  @parameterized.parameters(1, 8)
  @pytest.mark.slow
  def test_a_row(self, num_devices):
    (row,) = benchmark_process.rows(
      *("random_programs_benchmark", f"--first={_SHORT}", "--count=1"),
      *(f"--again={_SHORT}", f"--devices={num_devices}"),
      *("--plans=2", "--most_operations=4"),
    )
    self.assertEqual((row["first"], row["count"]), (_SHORT, 1))
    self.assertEqual((row["plans"], row["most_operations"]), (2, 4))
    self.assertNotIn("by_plan", row["counts"])
    self.assertEqual(row["devices"], num_devices)
    self.assertEqual(row["failures"], {})
    self.assertEqual(row["counts"]["outputs"], 1)
    self.assertEqual(row["counts"]["other_process"], 1)


if __name__ == "__main__":
  absltest.main()
