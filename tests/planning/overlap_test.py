"""Tests of copies to and from the host: their times, and what hides them."""

import random

import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo import replay
from jaxmem_hlo.assignment import AssignmentModel
from tiny_hlo import f32, s32, tuple_of

from jaxmem import cost
from jaxmem.planning.overlap import hide_transfers
from jaxmem.rewrite import fetch_arguments

_HOST = 5
# A kernel takes a second for each kilobyte that it reads or writes, a copy
# two; nothing else takes any time.
_RATES = cost.Rates(
  memory_bytes_per_s=1000.0,
  tf32_flops_per_s=1e30,
  bf16_flops_per_s=1e30,
  fp32_flops_per_s=1e30,
  to_host_bytes_per_s=500.0,
  from_host_bytes_per_s=500.0,
  launch_s=0.0,
  efficiency=cost.Efficiency(flops=1.0, memory=1.0, link=1.0),
)
_DEVICE = cost.Device(platform="cuda", rates=_RATES)
_MUCH = 1 << 30


class _Program:
  """Kernels of 2 seconds each in a chain, arrays of 1000 bytes, and copies."""

  def __init__(self):
    self.builder = tiny_hlo.Builder()
    self.main = self.builder.computation("main")
    self.last = self.main.parameter(f32(250), name="x")

  def kernel(self, name, *others):
    operands = (self.last, *others)
    self.last = self.main.op("dot", f32(250), *operands, name=name)
    return self.last

  def start(self, source, name, to_host):
    target, origin = f32(250), f32(250)
    (target if to_host else origin).layout.memory_space = _HOST
    shape = tuple_of(target, origin, s32())
    return self.main.op("copy-start", shape, source, name=name)

  def done(self, start, name, to_host):
    shape = f32(250, memory_space=_HOST if to_host else 0)
    return self.main.op("copy-done", shape, start, name=name)

  def module(self, *results, donations=()):
    self.main.tuple(self.last, *results, name="root")
    return self.builder.module(self.main, donations)


def _stores():
  """a goes out at once, as long as two kernels; b to e follow."""
  program = _Program()
  a = program.kernel("a")
  start = program.start(a, "start", to_host=True)
  done = program.done(start, "done", to_host=True)
  for name in "bcde":
    program.kernel(name)
  return program.module(done)


def _fetches():
  """p comes in right before d reads it, after a to c."""
  program = _Program()
  p = program.main.parameter(f32(250, memory_space=_HOST), name="p")
  for name in "abc":
    program.kernel(name)
  start = program.start(p, "start", to_host=False)
  program.kernel("d", program.done(start, "done", to_host=False))
  return program.module()


def _names(module, ids=None):
  ids = ids or [i.id for i in module.schedule(module.entry.id)]
  names = [module.entry.by_id[i].name for i in ids]
  return [n for n in names if n not in ("x", "p", "root")]


def _temp_bytes(module):
  return AssignmentModel(module, "cuda").temp_bytes()


def _hidden(module, room_bytes=_MUCH):
  """Hides copies where that is possible."""
  found = hide_transfers(module, _DEVICE, room_bytes)
  assert found is not None
  return found


def _faults(module):
  assignment = AssignmentModel(module, "cuda").assign()
  return replay.check_assignment(module, assignment.to_proto(), "cuda").faults


class StepTimeTest(absltest.TestCase):
  def test_a_copy_that_is_waited_for_at_once(self):
    found = cost.step_time(_stores(), _RATES)
    self.assertEqual(
      found,
      cost.StepTime(
        seconds=12.0, waiting_s=2.0, to_host_bytes=1000, from_host_bytes=0
      ),
    )

  def test_a_copy_behind_a_kernel(self):
    module = _stores()
    order = [i.id for i in module.schedule(module.entry.id)]
    names = [module.entry.by_id[i].name for i in order]
    order.insert(names.index("b"), order.pop(names.index("done")))
    moved = module.with_schedules({module.entry.id: order})
    self.assertEqual(_names(moved)[:4], ["a", "start", "b", "done"])
    found = cost.step_time(moved, _RATES)
    self.assertEqual((found.seconds, found.waiting_s), (10.0, 0.0))

  def test_copies_in_one_direction_follow_each_other(self):
    program = _Program()
    starts = [
      program.start(program.kernel(n), f"start_{n}", to_host=True) for n in "ab"
    ]
    dones = [
      program.done(s, f"done_{n}", to_host=True)
      for n, s in zip("ab", starts, strict=True)
    ]
    # a leaves from 2 to 4, while b is made, b from 4 to 6.
    found = cost.step_time(program.module(*dones), _RATES)
    self.assertEqual((found.seconds, found.waiting_s), (6.0, 2.0))
    self.assertEqual(found.to_host_bytes, 2000)

  def test_both_directions_at_once(self):
    program = _Program()
    p = program.main.parameter(f32(250, memory_space=_HOST), name="p")
    out = program.start(program.kernel("a"), "out", to_host=True)
    back = program.start(p, "back", to_host=False)
    program.kernel("b", program.done(back, "p_done", to_host=False))
    found = cost.step_time(
      program.module(program.done(out, "a_done", to_host=True)), _RATES
    )
    # 2 for a, 2 waiting for both, 3 for b, which reads two arrays.
    self.assertEqual((found.seconds, found.waiting_s), (7.0, 2.0))


class HideCopiesTest(parameterized.TestCase):
  def test_a_store_is_waited_for_when_it_may_be_done(self):
    module = _stores()
    found = _hidden(module)
    self.assertEqual(
      _names(module, found.order), ["a", "start", "b", "done", "c", "d", "e"]
    )

  def test_a_fetch_starts_half_as_early_again_as_it_must(self):
    module = _fetches()
    found = _hidden(module)
    # It takes two seconds, and is needed at the sixth.
    self.assertEqual(
      _names(module, found.order), ["a", "start", "b", "c", "done", "d"]
    )

  def test_fetches_follow_each_other(self):
    program = _Program()
    shape = f32(250, memory_space=_HOST)
    p, q = (program.main.parameter(shape, name=n) for n in "pq")
    for name in "abc":
      program.kernel(name)
    for name, argument in (("use_p", p), ("use_q", q)):
      start = program.start(argument, f"start_{name}", to_host=False)
      done = program.done(start, f"done_{name}", to_host=False)
      program.kernel(name, done)
    module = program.module()
    found = _hidden(module)
    # q is needed two seconds after p, and waits for the link.
    names = [n for n in _names(module, found.order) if n not in "pq"]
    self.assertEqual(
      names,
      [
        *("a", "start_use_p", "b", "start_use_q", "c"),
        *("done_use_p", "use_p", "done_use_q", "use_q"),
      ],
    )

  def test_bytes_are_predicted(self):
    for module in (_stores(), _fetches()):
      found = _hidden(module)
      moved = module.with_schedules({module.entry.id: found.order})
      self.assertEqual(found.temp_bytes, _temp_bytes(moved))
      self.assertEmpty(_faults(moved))

  def test_nothing_moves_where_there_is_no_room(self):
    # With a on its way out, b in the making and nothing else: 2 arrays and
    # what tuples take, which is as much as at the last kernels.
    program = _Program()
    a = program.kernel("a")
    start = program.start(a, "start", to_host=True)
    done = program.done(start, "done", to_host=True)
    b = program.kernel("b")
    program.kernel("c", b)
    module = program.module(done)
    least = _temp_bytes(module)
    found = _hidden(module)
    self.assertGreater(found.temp_bytes, least)
    self.assertIsNone(hide_transfers(module, _DEVICE, least - 1))
    self.assertIsNone(hide_transfers(module, _DEVICE, least))

  def test_what_comes_back_stays(self):
    program = _Program()
    a = program.kernel("a")
    out = program.start(a, "out", to_host=True)
    stored = program.done(out, "stored", to_host=True)
    program.kernel("b")
    back = program.start(stored, "back", to_host=False)
    program.kernel("c", program.done(back, "fetched", to_host=False))
    module = program.module()
    self.assertEqual(cost.step_time(module, _RATES).waiting_s, 4.0)
    found = _hidden(module)
    self.assertEqual(
      _names(module, found.order),
      ["a", "out", "b", "stored", "back", "fetched", "c"],
    )
    moved = module.with_schedules({module.entry.id: found.order})
    self.assertEqual(cost.step_time(moved, _RATES).waiting_s, 2.0)

  def test_without_copies_there_is_nothing_to_hide(self):
    program = _Program()
    program.kernel("a")
    self.assertIsNone(hide_transfers(program.module(), _DEVICE, _MUCH))

  @parameterized.parameters(range(12))
  def test_random_programs(self, seed):
    module = _random(seed)
    before = cost.step_time(module, _RATES)
    tight = _temp_bytes(module)
    is_faster = False
    for room in (tight, tight + 2000, _MUCH):
      found = hide_transfers(module, _DEVICE, room)
      if found is None:
        continue
      moved = module.with_schedules({module.entry.id: found.order})
      self.assertEmpty(_faults(moved))
      self.assertEqual(_temp_bytes(moved), found.temp_bytes)
      self.assertLessEqual(found.temp_bytes, room)
      self.assertLess(cost.step_time(moved, _RATES).seconds, before.seconds)
      is_faster = True
    # With all the room there is, something can always be hidden.
    self.assertTrue(is_faster)


def _random(seed):
  """Arguments that come in, are read by some kernels, and go out again."""
  rng = random.Random(seed)
  program = _Program()
  numbers = range(rng.randint(2, 5))
  arguments = [program.main.parameter(f32(250), name=f"p{n}") for n in numbers]
  results, donations = [], []
  for number, argument in enumerate(arguments):
    for k in range(rng.randint(0, 3)):
      program.kernel(f"k{number}_{k}")
    new = program.kernel(f"update{number}", argument)
    out = program.start(new, f"out{number}", to_host=True)
    results.append(program.done(out, f"stored{number}", to_host=True))
    donations.append((1 + number, (1 + number,)))
  return fetch_arguments(program.module(*results, donations=donations))


class FetchArgumentsTest(absltest.TestCase):
  def _module(self):
    program = _Program()
    p = program.main.parameter(f32(250), name="p")
    program.kernel("a")
    program.kernel("b", p)
    out = program.start(program.kernel("c", p), "out", to_host=True)
    stored = program.done(out, "stored", to_host=True)
    return program.module(stored, donations=[(1, (1,))])

  def test_is_copied_before_its_first_reader(self):
    module = fetch_arguments(self._module())
    self.assertEqual(
      _names(module),
      ["a", "fetch-start", "fetch-done", "b", "c", "out", "stored"],
    )
    fetched = tiny_hlo.named(module, "fetch-done").id
    for reader in "bc":
      self.assertIn(fetched, tiny_hlo.named(module, reader).operands)
    self.assertEmpty(_faults(module))

  def test_the_argument_takes_no_device_memory(self):
    before = AssignmentModel(self._module(), "cuda").assign()
    module = fetch_arguments(self._module())
    after = AssignmentModel(module, "cuda").assign()
    # The copy, and the table of what its start returns; both are aligned.
    self.assertEqual(after.temp_bytes - before.temp_bytes, 1024 + 256)
    spaces = [
      a.memory_space for a in after.allocations if a.parameter_number == 1
    ]
    self.assertEqual(spaces, [_HOST])

  def test_a_second_time_changes_nothing(self):
    module = fetch_arguments(self._module())
    self.assertIs(fetch_arguments(module), module)

  def test_arguments_on_the_device_stay(self):
    module = _stores()
    self.assertIs(fetch_arguments(module), module)


if __name__ == "__main__":
  absltest.main()
