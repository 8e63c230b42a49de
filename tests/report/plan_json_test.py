"""Plans as JSON: what is written is read back, anything else refused."""

import json

import jax.numpy as jnp
from absl.testing import absltest, parameterized

import jaxmem


def _step(weights, x):
  return weights - 0.1 * jnp.tanh(x @ weights), (x @ weights).sum()


class FromJsonTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    arrays = jnp.ones((8, 8)), jnp.ones((8, 8))
    options = jaxmem.Options(effort="fast")
    plan = jaxmem.plan(_step, *arrays, memory_limit="1MiB", options=options)
    cls.fields = json.loads(plan.to_json())

  def _read(self, **changed):
    return jaxmem.Plan.from_json(json.dumps({**self.fields, **changed}))

  def _refuses(self, message, **changed):
    with self.assertRaisesRegex(
      ValueError, f"^Not a plan written by Plan.to_json: {message}"
    ):
      self._read(**changed)

  def test_a_budget_comes_back(self):
    budget = self._read().budget
    assert budget is not None
    self.assertEqual(budget.limit_bytes, 2**20)
    self.assertIsNone(self._read(budget=None).budget)

  @parameterized.parameters(
    ("temp_bytes", "many", "temp_bytes must be of type int, got str"),
    ("temp_bytes", True, "temp_bytes must be of type int, got bool"),
    ("temp_bytes", 1.5, "temp_bytes must be of type int, got float"),
    ("planning_s", None, "planning_s must be of type float or int, got None"),
    ("is_order_proved", 1, "is_order_proved must be of type bool, got int"),
    ("status", "best", "status must be one of .*, got 'best'"),
    ("order", "abc", "order must be of type list, got str"),
    ("order", ["a", 3], r"order\[1\] must be of type str, got int"),
    ("versions", [], "versions must be of type dict, got list"),
    ("versions", {"jax": 0}, "versions.jax must be of type str, got int"),
    ("before", None, "before must be of type dict, got NoneType"),
    ("budget", 3, "budget must be of type dict, got int"),
    ("budget", {}, "the field budget.dropped_bytes is missing"),
    ("colour", "red", "the field colour is unknown"),
  )
  def test_names_the_field_that_is_wrong(self, name, value, message):
    self._refuses(message, **{name: value})

  @parameterized.parameters(
    ("size_bytes", "4", r"after.buffers\[2\].size_bytes must be of type int"),
    ("colour", 0, r"the field after.buffers\[2\].colour is unknown"),
  )
  def test_names_the_field_of_a_buffer(self, name, value, message):
    after = json.loads(json.dumps(self.fields["after"]))
    after["buffers"][2][name] = value
    self._refuses(message, after=after)

  @parameterized.parameters(None, "weights", 3)
  def test_an_argument_has_a_number_a_name_or_neither(self, place):
    advice = {**self.fields["donation"][0], "place": place}
    self.assertEqual(self._read(donation=[advice]).donation[0].place, place)

  def test_an_argument_has_no_other_place(self):
    advice = {**self.fields["donation"][0], "place": 0.5}
    self._refuses(r"donation\[0\].place must be of type", donation=[advice])

  def test_an_integer_may_stand_for_a_float(self):
    self.assertEqual(self._read(planning_s=2).planning_s, 2.0)

  @parameterized.parameters("[", '{"a":')
  def test_deep_json_is_no_plan(self, bracket):
    with self.assertRaisesRegex(ValueError, "Not a plan written by"):
      jaxmem.Plan.from_json(bracket * 1_000_000)


if __name__ == "__main__":
  absltest.main()
