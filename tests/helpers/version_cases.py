"""One step under byte limits, and which version of it is taken."""

import functools

import blocks_cases
import jax

import jaxmem
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.versions import choose

OPTIONS = jaxmem.Options()


def limited_case():
  return blocks_cases.CASES["branches"]()


def traced_case():
  step, args = limited_case()
  return TracedStep(jax.jit(step).trace(*args))


def module_of(request, traced=None):
  return ScheduleCapture(request).module(traced or traced_case())


def pick_version(request, traced=None):
  with ScheduleCapture(request) as schedules:
    return choose.pick(traced or traced_case(), schedules, request)


def outcome_of(request, traced=None):
  decided = pick_version(request, traced)[1]
  assert decided is not None
  return decided.outcome


@functools.cache
def limit_of(fraction):
  step, args = limited_case()
  plan = jaxmem.plan(step, *args, options=OPTIONS)
  fixed_bytes = plan.total_bytes - plan.temp_bytes
  return fixed_bytes + int(fraction * plan.temp_bytes)
