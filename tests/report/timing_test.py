"""When the steps of schedules run, against what a whole step takes."""

import dataclasses

import pytest
import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.proto import hlo_pb2
from tiny_hlo import f32, tuple_of

from jaxmem import cost
from jaxmem.report import layout, time_steps

# A kernel takes a second for each kilobyte that it reads or writes; to gather
# a kilobyte over two devices takes a second, and nothing else takes any.
_RATES = cost.Rates(
  memory_bytes_per_s=1000.0,
  tf32_flops_per_s=1e30,
  bf16_flops_per_s=1e30,
  fp32_flops_per_s=1e30,
  launch_s=0.0,
  efficiency=cost.Efficiency(flops=1.0, memory=1.0),
  links=cost.Links(
    within_host_bytes_per_s=500.0,
    ring_efficiency=1.0,
    launch_s=0.0,
    within_host_hop_s=0.0,
  ),
)
_PAIR = [hlo_pb2.ReplicaGroup(replica_ids=(0, 1))]


def _timing(module, rates=_RATES):
  assigned = AssignmentModel(module, "cuda").assign()
  num_steps = layout.describe(module, assigned).num_steps
  return time_steps(module, rates, num_steps)


def _gather(computation, shard, name):
  shape = tuple_of(f32(125), f32(250))
  return computation.op(
    "all-gather-start", shape, shard, name=name, replica_groups=_PAIR
  )


def _looped():
  """A loop of 5 rounds: a gather of 1 s beside a kernel of 1 s, then one of 2.

  The kernels read and write 500 bytes, and 1000; the gathered 1000 are read by
  the second.
  """
  builder = tiny_hlo.Builder()
  body = builder.computation("body")
  carried = body.parameter(f32(125))
  start = _gather(body, carried, "inner")
  beside = body.op("negate", f32(125), carried)
  done = body.op("all-gather-done", f32(250), start)
  body.op("dot", f32(125), done, beside)
  condition = builder.computation("condition")
  condition.parameter(f32(125))
  condition.op("constant", tiny_hlo.pred())
  main = builder.computation("main")
  x = main.parameter(f32(125))
  count = b'{"known_trip_count":{"n":"5"}}'
  main.op(
    *("while", f32(125), x), calls=(body, condition), backend_config=count
  )
  return builder.module(main)


class TimingTest(parameterized.TestCase):
  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_adds_up_to_the_whole_step(self, name):
    recorded = record_modules.load(name)
    for target in ("cpu", "h200"):
      rates = cost.for_target(target)
      found = _timing(recorded.module, rates)
      whole = cost.step_time(recorded.module, rates)
      self.assertAlmostEqual(
        sum(found.seconds), whole.seconds, delta=1e-9 * whole.seconds
      )
      links = [s for s in found.spans if s.link == "collectives"]
      self.assertAlmostEqual(sum(s.seconds for s in links), whole.collective_s)
      self.assertAlmostEqual(sum(s.exposed_s for s in links), whole.exposed_s)

  def test_a_loop_counts_all_of_its_rounds(self):
    module = _looped()
    found = _timing(module)
    times = {
      i.name: step
      for step, i in enumerate(module.schedule(module.computations[0].id))
    }
    # Behind x, and the condition, that has two instructions.
    inner = [found.seconds[3 + step] for step in times.values()]
    # The parameter, the start, 1 s, no wait, and 0.5 + 0.5 + 1 s.
    self.assertEqual(inner, [0.0, 0.0, 5.0, 0.0, 10.0])
    (span,) = found.spans
    self.assertEqual((span.name, span.link), ("inner", "collectives"))
    self.assertEqual((span.seconds, span.exposed_s), (5.0, 0.0))
    self.assertFalse(span.is_synchronous)
    self.assertEqual((span.start, span.end), (4, 7))
    self.assertEqual(sum(found.seconds), cost.step_time(module, _RATES).seconds)

  def test_of_branches_the_dearest_runs(self):
    builder = tiny_hlo.Builder()
    branches = []
    for name, count in (("short", 1), ("long", 3)):
      branch = builder.computation(name)
      last = branch.parameter(f32(125))
      for _ in range(count):
        last = branch.op("negate", f32(125), last)
      branches.append(branch)
    main = builder.computation("main")
    which, x = main.parameter(tiny_hlo.pred()), main.parameter(f32(125))
    main.op("conditional", f32(125), which, x, x, calls=tuple(branches))
    module = builder.module(main)
    found = _timing(module)
    self.assertEqual([s for s in found.seconds if s], [1.0, 1.0, 1.0])
    self.assertEqual(cost.step_time(module, _RATES).seconds, 3.0)

  def test_one_that_has_no_start_is_synchronous(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    shard = main.parameter(f32(125))
    main.op("all-gather", f32(250), shard, name="g", replica_groups=_PAIR)
    (span,) = _timing(builder.module(main)).spans
    self.assertTrue(span.is_synchronous)
    self.assertEqual((span.start, span.end), (1, 2))
    self.assertEqual((span.seconds, span.exposed_s), (1.0, 1.0))

  def test_refuses_what_is_none(self):
    found = _timing(_looped())
    num_steps = len(found.seconds)
    found.check(num_steps)
    with pytest.raises(ValueError, match=f"each of {num_steps + 1} steps"):
      found.check(num_steps + 1)
    for seconds in (-1.0, float("nan"), float("inf")):
      changed = (seconds, *found.seconds[1:])
      with pytest.raises(ValueError, match="finite, and not negative"):
        dataclasses.replace(found, seconds=changed).check(num_steps)
    span = dataclasses.replace(found.spans[0], end=num_steps + 1)
    with pytest.raises(ValueError, match="'inner' is not within"):
      dataclasses.replace(found, spans=(span,)).check(num_steps)


if __name__ == "__main__":
  absltest.main()
