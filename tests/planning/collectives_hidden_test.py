"""Tests of collectives: when they are waited for, and what hides them."""

import dataclasses
import random
from unittest import mock

import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo import replay
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.proto import hlo_pb2
from tiny_hlo import f32, tuple_of

from jaxmem import cost
from jaxmem.graph import check_order, from_hlo, liveness
from jaxmem.options import Options
from jaxmem.planning import TUNING, LimitPlanner, fit
from jaxmem.planning.late_kernels import fill_waits
from jaxmem.planning.overlap import hide_transfers
from jaxmem.planning.overlapped_program import Program, Transfer
from jaxmem.planning.overlapped_walk import walk
from jaxmem.planning.reorder import plan_module

# A kernel takes a second for each kilobyte that it reads or writes; to gather
# or scatter a kilobyte over two devices takes a second; nothing else takes any.
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
_DEVICE = cost.Device(platform="cuda", rates=_RATES)
_PAIR = [hlo_pb2.ReplicaGroup(replica_ids=(0, 1))]


def _looped(builder, body):
  """Returns a computation that runs another, of f32(125), five times."""
  condition = builder.computation("condition")
  condition.parameter(f32(125))
  condition.op("constant", tiny_hlo.pred())
  main = builder.computation("main")
  x = main.parameter(f32(125))
  count = b'{"known_trip_count":{"n":"5"}}'
  main.op(
    *("while", f32(125), x), calls=(body, condition), backend_config=count
  )
  return main


class _Program:
  """Kernels over arrays of 1000 bytes, and gathers of shards of 500."""

  def __init__(self):
    self.builder = tiny_hlo.Builder()
    self.main = self.builder.computation("main")
    self.last = self.main.parameter(f32(250), name="x")

  def shard(self, name):
    return self.main.parameter(f32(125), name=name)

  def kernel(self, name, *others):
    operands = (self.last, *others)
    self.last = self.main.op("dot", f32(250), *operands, name=name)
    return self.last

  def start(self, shard, name):
    shape = tuple_of(f32(125), f32(250))
    return self.main.op(
      "all-gather-start", shape, shard, name=name, replica_groups=_PAIR
    )

  def done(self, start, name):
    return self.main.op("all-gather-done", f32(250), start, name=name)

  def module(self, *results):
    self.main.tuple(self.last, *results, name="root")
    return self.builder.module(self.main)


def _names(module):
  names = [i.name for i in module.schedule(module.entry.id)]
  return [n for n in names if n not in ("x", "p", "q", "root")]


def _one_gather(place):
  """a to c, then d, which reads what is gathered; the start stands at place."""
  program = _Program()
  p = program.shard("p")
  start = None
  for name in "abc":
    if name == place:
      start = program.start(p, "start")
    program.kernel(name)
  if start is None:
    start = program.start(p, "start")
  program.kernel("d", program.done(start, "done"))
  return program.module()


def _schedule(module, names):
  by_name = {i.name: i.id for i in module.entry.instructions}
  first = [i for i in by_name if i in ("x", "p", "q")]
  order = [by_name[n] for n in (*first, *names, "root")]
  return module.with_schedules({module.entry.id: order})


class StepTimeTest(absltest.TestCase):
  def test_one_that_is_waited_for_at_once(self):
    found = cost.step_time(_one_gather("none"), _RATES)
    # Three kernels of two seconds, one of three, and one second of waiting.
    self.assertEqual(
      found,
      cost.StepTime(
        seconds=10.0, collective_s=1.0, exposed_s=1.0, num_synchronous=1
      ),
    )

  def test_one_behind_a_kernel(self):
    found = cost.step_time(_one_gather("c"), _RATES)
    self.assertEqual(
      found,
      cost.StepTime(seconds=9.0, collective_s=1.0, num_asynchronous=1),
    )

  def test_nothing_but_collectives_in_between_hides_none(self):
    program = _Program()
    p, q = program.shard("p"), program.shard("q")
    starts = [program.start(s, n) for s, n in ((p, "sp"), (q, "sq"))]
    dones = [program.done(s, n) for s, n in zip(starts, "PQ", strict=True)]
    program.kernel("a", *dones)
    found = cost.step_time(program.module(), _RATES)
    # They follow each other on the link.
    self.assertEqual((found.exposed_s, found.num_synchronous), (2.0, 2))

  def test_one_that_has_no_start(self):
    program = _Program()
    gathered = program.main.op(
      "all-gather", f32(250), program.shard("p"), replica_groups=_PAIR
    )
    program.kernel("a", gathered)
    found = cost.step_time(program.module(), _RATES)
    self.assertEqual((found.exposed_s, found.num_synchronous), (1.0, 1))
    self.assertEqual(found.seconds, 4.0)

  def test_a_loop_waits_in_every_iteration(self):
    builder = tiny_hlo.Builder()
    body = builder.computation("body")
    carried = body.parameter(f32(125))
    shape = tuple_of(f32(125), f32(250))
    start = body.op("all-gather-start", shape, carried, replica_groups=_PAIR)
    done = body.op("all-gather-done", f32(250), start)
    body.op("dot", f32(125), done)
    main = _looped(builder, body)
    found = cost.step_time(builder.module(main), _RATES)
    self.assertEqual((found.collective_s, found.exposed_s), (5.0, 5.0))
    self.assertEqual(found.num_synchronous, 5)


class HideTest(parameterized.TestCase):
  def test_a_gather_begins_before_the_kernel_that_hides_it(self):
    module = _one_gather("none")
    found = hide_transfers(module, _DEVICE, 1 << 30)
    assert found is not None
    self.assertEqual(
      _names(found.module), ["a", "b", "start", "c", "done", "d"]
    )
    self.assertEqual(found.seconds, 9.0)

  def test_a_kernel_that_need_not_wait_runs_first(self):
    # d waits for the gather, e does not; nothing comes before.
    program = _Program()
    p = program.shard("p")
    x = program.last
    gathered = program.done(program.start(p, "start"), "done")
    d = program.kernel("d", gathered)
    program.last = x
    program.kernel("e")
    module = program.module(d)
    found = hide_transfers(module, _DEVICE, 1 << 30)
    assert found is not None
    self.assertEqual(_names(found.module), ["start", "e", "done", "d"])

  def test_a_kernel_that_ran_before_runs_beside_the_last_transfer(self):
    # What is stored by a is gathered at the end; b could run then.
    program = _Program()
    p = program.shard("p")
    x = program.last
    b = program.kernel("b")
    program.last = x
    scattered = program.main.op("dot", f32(125), x, p, name="a")
    gathered = program.done(program.start(scattered, "start"), "done")
    module = program.module(b, gathered)
    found = hide_transfers(module, _DEVICE, 1 << 30)
    assert found is not None
    self.assertEqual(_names(found.module), ["a", "start", "b", "done"])

  def test_no_slower_than_xla_and_as_few_bytes_as_that_allows(self):
    # By XLA all eight gathers begin at once; each kernel can hide one.
    program = _Program()
    shards = [program.shard(f"p{n}") for n in range(8)]
    starts = [program.start(s, f"s{n}") for n, s in enumerate(shards)]
    program.kernel("first")
    for n, start in enumerate(starts):
      program.kernel(f"k{n}", program.done(start, f"d{n}"))
    module = program.module()
    own = cost.step_time(module, _RATES)
    planned = plan_module(module, _DEVICE, Options())
    found = cost.step_time(planned.module, _RATES)
    self.assertLessEqual(found.seconds, own.seconds)
    self.assertEqual(found.num_synchronous, own.num_synchronous)
    decision = planned.decision
    # Two gathered arrays at a time in place of eight.
    self.assertLess(decision.planned_bytes, 0.6 * decision.baseline_bytes)
    self.assertEqual(planned.model.temp_bytes(), decision.planned_bytes)
    least = plan_module(module, _DEVICE, Options(max_slowdown=9.0))
    self.assertLess(least.decision.planned_bytes, decision.planned_bytes)
    self.assertGreater(cost.step_time(least.module, _RATES).exposed_s, 0)

  def test_a_loop_does_not_wait_longer_than_by_xla(self):
    # By XLA the gather is under way beside both large arrays.
    builder = tiny_hlo.Builder()
    body = builder.computation("body")
    carried = body.parameter(f32(125), name="carried")
    shape = tuple_of(f32(125), f32(250))
    start = body.op(
      *("all-gather-start", shape, carried),
      name="start",
      replica_groups=_PAIR,
    )
    a = body.op("dot", f32(250), carried, name="a")
    large = body.op("dot", f32(500), a, name="large")
    b = body.op("dot", f32(125), large, name="b")
    done = body.op("all-gather-done", f32(250), start, name="done")
    body.op("dot", f32(125), done, b, name="c")
    main = _looped(builder, body)
    module = builder.module(main, [(0, ())])
    own = cost.step_time(module, _RATES)
    self.assertEqual((own.collective_s, own.exposed_s), (5.0, 0.0))
    least = plan_module(module, _DEVICE, Options(max_slowdown=9.0)).decision
    self.assertLess(least.planned_bytes, least.baseline_bytes)
    planned = plan_module(module, _DEVICE, Options(verify=True))
    found = cost.step_time(planned.module, _RATES)
    self.assertEqual(found.exposed_s, 0.0)
    decision = planned.decision
    # It is hidden behind b, when a is gone.
    self.assertLess(decision.planned_bytes, decision.baseline_bytes)
    self.assertLess(least.planned_bytes, decision.planned_bytes)

  def test_one_beside_nothing_gets_a_kernel_however_many_wait_longer(self):
    # Each long gather is hidden by one kernel, and nothing else could run
    # there; only the short one, which waits least, runs beside none.
    program = _Program()
    for n in range(TUNING.overlap.num_filled):
      start = program.start(program.last, f"start{n}")
      program.kernel(f"hides{n}")
      program.kernel(f"k{n}", program.done(start, f"done{n}"))
    scattered = program.kernel("scattered")
    moves = program.main.op("dot", f32(125), scattered, name="moves")
    start = program.start(scattered, "start_short")
    program.kernel("end", program.done(start, "done_short"))
    entry, walked = _walked(program.module(moves), {"short": 1.0}, 5.0)
    nodes = list(range(entry.graph.num_nodes))
    limit = liveness.peak_bytes(entry.graph, nodes)
    filled = fill_waits(walked, nodes, limit)
    check_order(entry.graph, filled)
    names = [entry.instructions[n].name for n in filled]
    first = names.index("start_short")
    self.assertEqual(
      names[first - 1 : first + 4],
      ["scattered", "start_short", "moves", "done_short", "end"],
    )
    self.assertLessEqual(liveness.peak_bytes(entry.graph, filled), limit)

  @parameterized.parameters(*range(12))
  def test_random_programs(self, seed):
    module = _random_module(random.Random(seed))
    own = cost.step_time(module, _RATES)
    planned = plan_module(module, _DEVICE, Options())
    found = cost.step_time(planned.module, _RATES)
    self.assertLessEqual(found.seconds, own.seconds * (1 + 1e-9))
    decision = planned.decision
    self.assertLessEqual(decision.planned_bytes, decision.baseline_bytes)
    self.assertLessEqual(decision.lower_bound_bytes, decision.planned_bytes)
    assignment = planned.model.assign()
    self.assertEqual(assignment.temp_bytes, decision.planned_bytes)
    report = replay.check_assignment(
      planned.module, assignment.to_proto(), "cuda"
    )
    self.assertEmpty(report.faults)

  @parameterized.parameters(*range(12))
  def test_walks_are_orders_and_keep_their_limit_where_that_is_possible(
    self, seed
  ):
    module = _random_module(random.Random(seed))
    entry, program = _walked(module, {}, 2.0)
    for limit in (0, program.peak_bytes, 2 * program.peak_bytes):
      nodes = walk(program, limit)
      check_order(entry.graph, nodes)
      filled = fill_waits(program, nodes, limit)
      check_order(entry.graph, filled)
      before = liveness.peak_bytes(entry.graph, nodes)
      after = liveness.peak_bytes(entry.graph, filled)
      self.assertLessEqual(after, max(before, limit))


class LimitTest(parameterized.TestCase):
  def test_edits_leave_room_to_hide_transfers_in(self):
    # In half a second each value of the forward pass can be made again, which
    # leaves room for a gather that would be waited for for a second.
    module = _backward_pass(8)
    rates = dataclasses.replace(_RATES, memory_bytes_per_s=4000.0)
    device = cost.Device(platform="cuda", rates=rates)
    planner = LimitPlanner(module, device, Options(verify=True))
    limit = planner.total_bytes
    found = planner.fit(limit)
    decision = found.decision
    self.assertNotEmpty(decision.edits.recomputes)
    self.assertLessEqual(decision.fixed_bytes + decision.planned_bytes, limit)
    seconds = cost.step_time(found.module, rates).seconds
    self.assertEqual(decision.schedule_s, seconds)
    all_of_it = dataclasses.replace(TUNING.fit, hiding_room_shares=(1.0,))
    with mock.patch.object(fit, "_TUNING", all_of_it):
      full = planner.fit(limit).decision
    self.assertEmpty(full.edits.recomputes)
    self.assertLess(seconds, full.schedule_s)

  @parameterized.parameters(*range(8))
  def test_with_the_bytes_of_xla_none_is_slower(self, seed):
    module = _random_module(random.Random(seed))
    planner = LimitPlanner(module, _DEVICE, Options())
    own = cost.step_time(module, _RATES)
    found = planner.fit(planner.xla_bytes).decision
    self.assertLessEqual(found.schedule_s, own.seconds * (1 + 1e-9))
    self.assertEqual((planner.step_s, found.step_s), (own.seconds,) * 2)


def _walked(module, seconds, others_s):
  """Returns the entry, and what walks through it know.

  Args:
    module: Kernels of a second each, and pairs of startX and doneX.
    seconds: Of some of these, by "X".
    others_s: Of the others.
  """
  entry = from_hlo(AssignmentModel(module, "cuda"), module.entry)
  number = {i.name: n for n, i in enumerate(entry.instructions)}
  transfers = [
    Transfer(
      start=number[name.replace("done", "start")],
      done=n,
      link="collectives",
      seconds=seconds.get(name.removeprefix("done_"), others_s),
    )
    for name, n in number.items()
    if name.startswith("done")
  ]
  kernel_s = [
    float(not i.name.startswith(("start", "done"))) for i in entry.instructions
  ]
  return entry, Program(entry.graph, kernel_s, transfers)


def _backward_pass(num_layers):
  """Reads what a forward pass made, last first, and gathers for each step."""
  program = _Program()
  shards = [program.shard(f"p{n}") for n in range(num_layers)]
  made = [program.kernel(f"a{n}") for n in range(num_layers)]
  for n in reversed(range(num_layers)):
    gathered = program.done(program.start(shards[n], f"start{n}"), f"done{n}")
    program.kernel(f"b{n}", made[n], gathered)
  return program.module()


def _random_module(rng):
  """Kernels that read earlier arrays, some of them gathered in between."""
  program = _Program()
  shards = [program.shard(f"p{n}") for n in range(4)]
  made = [program.last]
  under_way = []
  for n in range(24):
    if rng.random() < 0.4:
      shard = rng.choice(shards)
      under_way.append((n, program.start(shard, f"start{n}")))
    if under_way and rng.random() < 0.6:
      number, start = under_way.pop(rng.randrange(len(under_way)))
      made.append(program.done(start, f"done{number}"))
    reads = rng.sample(made[-6:], min(len(made[-6:]), rng.randint(1, 2)))
    program.last = reads[0]
    made.append(program.kernel(f"k{n}", *reads[1:]))
  for number, start in under_way:
    made.append(program.done(start, f"done{number}"))
  return program.module(*made[-3:])


if __name__ == "__main__":
  absltest.main()
