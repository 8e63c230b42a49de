import dataclasses
import random

import budget_problems
import budget_validate
import numpy as np
from absl.testing import absltest, parameterized

from jaxmem.budget.problem import BudgetProblem, Step, StoredValue, Unit
from jaxmem.budget.profile import Profile, Transfer
from jaxmem.rewrite.edits import Edits, Offload, Recompute, Value


class ProfileTest(parameterized.TestCase):
  def test_chain_by_hand(self):
    # a0 a1 | g1 reads a1, g0 reads g1 and a0. All have 10 bytes.
    profile = Profile(budget_problems.chain(2))
    # s0: a0. s1: a0 a1. s2: a0 a1 g1. s3: a0 g1 g0.
    self.assertEqual(profile.memory.live.tolist(), [10, 20, 30, 30])
    profile.add(0, 3)
    # s2 without a0; the run before s3 holds g1 and a0.
    self.assertEqual(profile.memory.live.tolist(), [10, 20, 20, 20, 30])
    self.assertEqual(profile.seconds, 1.0)
    profile.remove(0, 3)
    self.assertEqual(profile.memory.live.tolist(), [10, 20, 30, 30])
    self.assertEqual(profile.seconds, 0.0)

  def test_a_run_reads_the_run_before_it(self):
    # Three layers; a0 and a1 both made again before g1 (step 4): a1 from the
    # new a0, which g0 (step 5) reads as well.
    profile = Profile(budget_problems.chain(3), [(0, 4), (1, 4)])
    # s0: a0. s1: a0 a1. s2: a1 a2. s3: a2 g2. run a0: g2 a0. run a1: g2 a0 a1.
    # s4: g2 a0 a1 g1. s5: a0 g1 g0.
    self.assertEqual(
      profile.memory.live.tolist(), [10, 20, 20, 20, 20, 30, 40, 30]
    )

  def test_an_output_that_nobody_reads_is_dropped(self):
    problem = BudgetProblem(
      steps=tuple(Step(instruction=i) for i in range(3)),
      values=(
        StoredValue(name="a", size_bytes=5, producer=0, uses=(1,)),
        StoredValue(
          name="b", size_bytes=7, producer=0, uses=(2,), is_droppable=True
        ),
      ),
      units=(
        Unit(
          step=0,
          outputs=(1,),
          inputs=(),
          seconds=1.0,
          value=Value(instruction=0, output=1),
        ),
      ),
    )
    self.assertEqual(Profile(problem).memory.live.tolist(), [12, 12, 7])
    self.assertEqual(
      Profile(problem, [(0, 2)]).memory.live.tolist(), [5, 5, 7, 7]
    )

  def test_sharing_follows_the_version_that_dies(self):
    # b may lie on a if a dies at step 1; step 2 reads a, too.
    problem = BudgetProblem(
      steps=(
        Step(instruction=0),
        Step(instruction=1, shares=((0, 1),)),
        Step(instruction=2),
      ),
      values=(
        StoredValue(name="a", size_bytes=5, producer=0, uses=(1, 2)),
        StoredValue(name="b", size_bytes=5, producer=1, uses=(2,)),
      ),
      units=(
        Unit(
          step=0,
          outputs=(0,),
          inputs=(),
          seconds=1.0,
          value=Value(instruction=0),
        ),
      ),
    )
    self.assertEqual(Profile(problem).memory.live.tolist(), [5, 10, 10])
    self.assertEqual(
      Profile(problem, [(0, 2)]).memory.live.tolist(), [5, 5, 10, 10]
    )

  def test_refuses_runs_after_an_overwrite(self):
    problem = budget_problems.chain(2)
    values = (
      dataclasses.replace(problem.values[0], uses=(1,), overwritten_at=2),
      *problem.values[1:],
    )
    problem = dataclasses.replace(problem, values=values)
    Profile(problem, [(1, 2)])
    with self.assertRaisesRegex(ValueError, "before step 2, got 3"):
      Profile(problem, [(1, 3)])

  @parameterized.parameters(range(60))
  def test_incremental_profile_is_that_of_the_simulation(self, seed):
    problem = budget_problems.random_problem(seed, num_steps=9)
    source = random.Random(seed)
    possible = [
      (u, b)
      for u, b in budget_problems.every_event(problem)
      if b <= problem.latest_run[u]
    ]
    profile = Profile(problem)
    for _ in range(40):
      if not possible:
        break
      event = source.choice(possible)
      if profile.has(*event):
        profile.remove(*event)
      else:
        profile.add(*event)
      edits = Edits(recomputes=problem.as_edits(profile.events))
      seen = budget_validate.check(problem, edits)
      self.assertEmpty(seen.faults)
      np.testing.assert_array_equal(profile.memory.live, seen.live_bytes)
      self.assertAlmostEqual(profile.seconds, seen.seconds)

  def test_transfer_by_hand(self):
    # a0 leaves until the end of s1 and comes back from s3 on.
    profile = Profile(budget_problems.chain(2))
    profile.move(Transfer(value=0, store_done=2, fetch_start=3, fetch_done=3))
    self.assertEqual(profile.memory.live.tolist(), [10, 20, 20, 30])
    profile.unmove(0)
    # In flight until after s2: no byte is saved.
    profile.move(Transfer(value=0, store_done=3, fetch_start=3, fetch_done=3))
    self.assertEqual(profile.memory.live.tolist(), [10, 20, 30, 30])

  @parameterized.parameters(range(20))
  def test_transfers_and_runs_are_those_of_the_simulation(self, seed):
    problem = budget_problems.random_problem(seed, num_steps=10)
    source = random.Random(seed)
    values = tuple(
      dataclasses.replace(v, moves_as=Value(instruction=900 + n))
      for n, v in enumerate(problem.values)
    )
    problem = dataclasses.replace(problem, values=values)
    profile, offloads = Profile(problem), []
    for number, value in enumerate(values):
      last = problem.num_steps - 1
      if value.overwritten_at is not None:
        last = value.overwritten_at
      if value.producer is None or last - value.producer < 1:
        continue
      if source.random() < 0.5:
        continue
      times = sorted(source.choices(range(value.producer + 1, last + 1), k=3))
      if any(times[1] <= u < times[2] for u in value.uses):
        continue
      profile.move(
        Transfer(
          value=number,
          store_done=times[0],
          fetch_start=times[1],
          fetch_done=times[2],
        )
      )
      ids = [problem.steps[t].instruction for t in times]
      offloads.append(
        Offload(
          value=values[number].moves_as or Value(instruction=0),
          store_done=ids[0],
          fetch_start=ids[1],
          fetch_done=ids[2],
        )
      )
    for event in source.sample(budget_problems.every_event(problem), 6):
      moves = not profile.transfers.keys().isdisjoint(
        problem.units[event[0]].outputs
      )
      if event[1] <= problem.latest_run[event[0]] and not moves:
        profile.add(*event)
    edits = Edits(
      recomputes=problem.as_edits(profile.events), offloads=tuple(offloads)
    )
    seen = budget_validate.check(problem, edits)
    self.assertEmpty(seen.faults)
    np.testing.assert_array_equal(profile.memory.live, seen.live_bytes)


class ValidateTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    problem = budget_problems.chain(3)
    # s4 writes over a0's buffer; s5 reads g1 only.
    self.problem = dataclasses.replace(
      problem,
      values=(
        dataclasses.replace(problem.values[0], uses=(1,), overwritten_at=4),
        *problem.values[1:],
      ),
    )

  def _check(self, *runs: tuple[int, int], limit: int | None = None):
    recomputes = tuple(
      Recompute(
        value=Value(instruction=instruction),
        before=before,
      )
      for instruction, before in runs
    )
    return budget_validate.check(
      self.problem, Edits(recomputes=recomputes), limit
    )

  def test_accepts_a_right_plan(self):
    seen = self._check((101, 104), limit=30)
    self.assertEmpty(seen.faults)
    self.assertEqual(seen.seconds, 1.0)

  def test_names_a_stale_read(self):
    faults = self._check((101, 105)).faults
    self.assertRegex(faults[0], "a0 is read at operation 5, after s4 wrote")

  def test_names_what_is_made_again_after_an_overwrite(self):
    self.assertRegex(self._check((100, 105)).faults[0], "a0 is made again")

  def test_names_a_run_before_the_first(self):
    faults = self._check((101, 101)).faults
    self.assertRegex(faults[0], "a1 is made again at operation 1, before")

  def test_names_an_input_that_is_not_there(self):
    self.assertRegex(self._check((101, 100)).faults[0], "a0 is read")

  def test_names_unknown_edits(self):
    self.assertRegex(self._check((999, 104)).faults[0], "names nothing")
    self.assertRegex(self._check((101, 999)).faults[0], "names nothing")

  def test_names_too_many_bytes(self):
    self.assertRegex(
      self._check((101, 104), limit=29).faults[0], "30 bytes are live"
    )

  def test_names_a_late_store_and_an_early_fetch(self):
    values = (
      dataclasses.replace(
        self.problem.values[0], moves_as=Value(instruction=100)
      ),
      *self.problem.values[1:],
    )
    problem = dataclasses.replace(self.problem, values=values)

    def check(*times: int) -> str:
      move = Offload(
        value=Value(instruction=100),
        store_done=times[0],
        fetch_start=times[1],
        fetch_done=times[2],
      )
      return " ".join(
        budget_validate.check(problem, Edits(offloads=(move,))).faults
      )

    self.assertEqual(check(102, 103, 104), "")
    self.assertRegex(check(105, 105, 105), "still being stored")
    self.assertRegex(check(103, 102, 104), "fetched before it is stored")
    self.assertRegex(check(102, 104, 103), "come back before")


if __name__ == "__main__":
  absltest.main()
