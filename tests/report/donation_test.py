"""Tests of jaxmem.donation: advice is checked by compiling what it says."""

import collections
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from jaxmem_hlo.module import Module

import jaxmem
from jaxmem import targets
from jaxmem.report import donation, signature

_FAST = jaxmem.Options(effort="fast")
_FLOAT_BYTES = 4


def _array(*shape, dtype: Any = "float32"):
  return jax.ShapeDtypeStruct(shape, dtype)


def _plan(fun, *args, **kwargs):
  with warnings.catch_warnings():
    # jax warns of donations in vain, where it sees them.
    warnings.filterwarnings("ignore", "Some donated buffers were not usable")
    return jaxmem.plan(fun, *args, options=_FAST, **kwargs)


def _keywords(plan) -> dict[str, Any]:
  """Returns the keywords that the advice suggests, as a user would."""
  return eval(f"dict({donation.suggestion(plan.donation)})")


def _told(plan) -> dict[str, tuple[str, str]]:
  return {a.argument: (a.status, a.reason) for a in plan.donation}


def _params():
  layer = {"b": _array(64), "none": None, "w": _array(64, 64)}
  return [layer] * 6


def _scaled_sum(a, b, c):
  return b * a + c


def _momentum_step(params, momenta, x):
  def loss(params):
    y = x
    for layer in params:
      y = jnp.tanh(y @ layer["w"] + layer["b"])
    return jnp.mean(y**2)

  value, grads = jax.value_and_grad(loss)(params)
  momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, grads)
  return jax.tree.map(lambda p, m: p - 0.1 * m, params, momenta), momenta, value


class SuggestionTest(parameterized.TestCase):
  def _check(self, fun, *args: Any, **kwargs: Any):
    """Compiles the suggestion; returns both plans."""
    before = _plan(fun, *args, **kwargs)
    after = _plan(fun, *args, **{**kwargs, **_keywords(before)})
    promised = donation.possible_bytes(before.donation)
    self.assertGreater(promised, 0)
    self.assertEqual(after.alias_bytes, before.alias_bytes + promised)
    self.assertEqual(donation.possible_bytes(after.donation), 0)
    return before, after

  @parameterized.named_parameters(("here", None), ("described", "h200"))
  def test_train_step(self, target):
    if target and not targets.is_available(target):
      self.skipTest("JAX's CUDA plugin is not installed")
    args = _params(), _params(), _array(16, 64)
    before, after = self._check(_momentum_step, *args, target=target)
    self.assertEqual(_keywords(before), {"donate_argnums": (0, 1)})
    promised = 2 * 6 * (64 * 64 + 64) * _FLOAT_BYTES
    self.assertEqual(donation.possible_bytes(before.donation), promised)
    # New memory may be placed with other gaps, and a slot can hold temporaries.
    saved = before.total_bytes - after.total_bytes
    self.assertBetween(saved, 0.75 * promised, 1.5 * promised)
    counts = collections.Counter(a.status for a in after.donation)
    self.assertEqual(counts, {"donated": 24, "impossible": 1})
    self.assertEqual(
      _told(before)["x"], ("impossible", "no output is float32[16,64]")
    )

  def test_adds_to_what_is_donated(self):
    args = _params(), _params(), _array(16, 64)
    before, _ = self._check(_momentum_step, *args, donate_argnums=0)
    self.assertEqual(_keywords(before), {"donate_argnums": (0, 1)})
    self.assertEqual(_told(before)["params[0]['w']"], ("donated", ""))
    self.assertEqual(_told(before)["momenta[5]['w']"], ("possible", ""))

  @parameterized.parameters(
    dict(static_argnums=1),
    dict(static_argnums=(1,)),
    dict(static_argnames="depth"),
    dict(static_argnames=("depth",)),
  )
  def test_static_and_keyword_arguments(self, **static):
    def step(unused, depth, params, *rest, scale, **state):
      params = jax.tree.map(lambda p: p * scale + depth, params)
      return params, rest[0] - 1, state["seen"] + rest[1]

    args = _array(5), 3, _params()[0], _array(7), _array(9)
    keywords = {"scale": _array(), "seen": _array(9)}
    before, after = self._check(step, *args, **keywords, **static)
    found = _keywords(before)
    self.assertEqual(found, {"donate_argnums": (2, 3, 4)})
    told = _told(before)
    self.assertEqual(
      list(told),
      [
        "unused",
        "params['b']",
        "params['w']",
        "rest[0]",
        "rest[1]",
        "scale",
        "state['seen']",
      ],
    )
    self.assertEqual(told["unused"], ("impossible", "the step does not use it"))
    self.assertEqual(
      told["state['seen']"][1],
      "other arguments can take every output that is float32[9]",
    )
    self.assertEqual(
      _told(after)["state['seen']"][1],
      "other donations take every output that is float32[9]",
    )

  def test_keyword_arguments_are_donated_by_name(self):
    def step(x, *, state):
      return state + x.sum()

    before, _ = self._check(step, _array(3), state=_array(9))
    self.assertEqual(_keywords(before), {"donate_argnames": ("state",)})

  def test_positions_that_cannot_be_known_are_not_named(self):
    def step(state, scale=1.0, depth=1):
      return state * depth * scale

    plan = _plan(step, _array(9), _array(), 3, static_argnums=-1)
    self.assertEqual(_told(plan)["state"], ("possible", ""))
    self.assertEmpty(_keywords(plan))
    self.assertIn("36 B more could be donated:", str(plan))

  @parameterized.named_parameters(
    ("partial", functools.partial(_scaled_sum, 2.0)),
    ("variadic", lambda *args: args[0] + args[1]),
  )
  def test_kinds_of_functions(self, fun):
    before, _ = self._check(fun, _array(8), _array(8))
    self.assertEqual(_keywords(before), {"donate_argnums": (0,)})

  def test_an_argument_returned_as_it_is(self):
    before, after = self._check(lambda x, y: (x, y.sum()), _array(8), _array(3))
    self.assertEqual(_keywords(before), {"donate_argnums": (0,)})
    self.assertEqual(_told(after)["x"], ("donated", ""))

  def test_the_argument_at_the_same_path_goes_first(self):
    def step(batch, state):
      return {"w": state["w"] * 2 + batch["image"]}

    batch, state = {"image": _array(8)}, {"w": _array(8)}
    before, _ = self._check(step, batch, state)
    self.assertEqual(_keywords(before), {"donate_argnums": (1,)})

  def test_an_argument_of_which_only_a_part_can_be_donated(self):
    plan = _plan(
      lambda x: x["a"] * 2 + x["b"].sum(), {"a": _array(8), "b": _array(3)}
    )
    self.assertEqual(donation.possible_bytes(plan.donation), 32)
    self.assertEmpty(_keywords(plan))


class InVainTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("shape", lambda x: x[:2], "no output is float32[4,8]"),
    (
      "type",
      lambda x: x.astype("bfloat16"),
      "no output is float32[4,8]; one is bfloat16[4,8]",
    ),
    ("unused", lambda x: jnp.ones(3), "the step does not use it"),
  )
  def test_reason(self, fun, reason):
    plan = _plan(fun, _array(4, 8), donate_argnums=0)
    (advice,) = plan.donation
    self.assertEqual(advice.status, "unused donation")
    self.assertEqual(advice.reason, reason)
    self.assertEqual(advice.size_bytes, 128)
    self.assertEqual(plan.alias_bytes, 0)
    self.assertIn("donated in vain:", str(plan))
    self.assertIn(f"128 B  x: {reason}", str(plan).replace("args[0]", "x"))

  def test_taken_by_another(self):
    plan = _plan(
      lambda x, y: x + y, _array(8), _array(8), donate_argnums=(0, 1)
    )
    self.assertEqual(_told(plan)["x"], ("donated", ""))
    self.assertEqual(
      _told(plan)["y"],
      (
        "unused donation",
        "other donations take every output that is float32[8]",
      ),
    )

  def test_kept_although_unused(self):
    plan = _plan(
      lambda x, y: y * 2,
      _array(4, 8),
      _array(3),
      donate_argnums=0,
      keep_unused=True,
    )
    self.assertEqual(
      _told(plan)["x"], ("unused donation", "the step does not use it")
    )

  def test_an_output_of_equal_size_will_do_for_xla(self):
    plan = _plan(lambda x: jnp.sin(x).T, _array(4, 8), donate_argnums=0)
    self.assertEqual(_told(plan)["x"], ("donated", ""))
    self.assertEqual(plan.alias_bytes, 128)


class TextTest(absltest.TestCase):
  def test_plan_prints_and_keeps_it(self):
    args = _params(), _params(), _array(16, 64)
    plan = _plan(_momentum_step, *args)
    text = str(plan)
    self.assertIn(
      "  donation      195 KiB more could be donated with"
      " donate_argnums=(0, 1):",
      text,
    )
    self.assertIn("97.5 KiB  params (12 arrays)", text)
    self.assertIn("cannot be donated:", text)
    self.assertIn("4.00 KiB  x: no output is float32[16,64]", text)
    self.assertEqual(
      jaxmem.Plan.from_json(plan.to_json()).donation, plan.donation
    )

  def test_many_arguments(self):
    many = [
      donation.DonationAdvice(
        argument=f"x{i}",
        group=f"x{i}",
        place=i,
        size_bytes=i,
        status="impossible",
        reason="why",
      )
      for i in range(9)
    ]
    lines = donation.donation_lines(many)
    self.assertLen(lines, 6)
    self.assertEndsWith(lines[1], "8 B  x8: why")
    self.assertEqual(lines[-1], "  and 4 more")  # One has no bytes.


class UnknownTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    compiled = (
      jax.jit(lambda x, y: x * 2 + y["a"])
      .lower(_array(8), {"a": _array(8)})
      .compile()
    )
    executable: Any = compiled.runtime_executable()
    (found,) = executable.hlo_modules()
    self.module = Module.from_bytes(found.as_serialized_hlo_module_proto())

  def test_without_a_signature(self):
    told = [(a.argument, a.status) for a in donation.advise(self.module)]
    self.assertEqual(told, [("x", "possible"), ("y['a']", "impossible")])
    self.assertEmpty(donation.suggestion(donation.advise(self.module)))

  def test_a_signature_of_something_else(self):
    def other(y, x, z):
      return y["a"] + x + z

    compiled = jax.jit(other).lower({"a": _array(8)}, _array(8), 1.0).compile()
    wrong = signature.read(compiled, other, {})
    self.assertEqual(
      donation.advise(self.module, wrong), donation.advise(self.module)
    )


if __name__ == "__main__":
  absltest.main()
