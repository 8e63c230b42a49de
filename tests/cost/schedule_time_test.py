"""Tests of copies that loops begin, and of cuDNN's attention."""

import dataclasses

import pytest
import tiny_hlo
from jaxmem_hlo.module import Module

from jaxmem import cost

# A kernel of 2 MB takes 2 ms, the copy of 4 MB 8 ms.
_RATES = cost.Rates(
  memory_bytes_per_s=1e9,
  tf32_flops_per_s=1e30,
  bf16_flops_per_s=1e12,
  fp32_flops_per_s=1e12,
  to_host_bytes_per_s=0.5e9,
  from_host_bytes_per_s=1e9,
  launch_s=0.0,
  float32_products="fp32",
  efficiency=cost.Efficiency(flops=1.0, memory=1.0, link=1.0),
)


def _looped(num_kernels: int) -> Module:
  """Returns a loop of 5 iterations that writes a slice of a stack on the host.

  The copy has 4 MB and begins first; kernels of 2 MB each follow.
  """
  builder = tiny_hlo.Builder()
  stack, part = (
    tiny_hlo.f32(5, 1_000_000, memory_space=5),
    tiny_hlo.f32(1, 1_000_000),
  )
  small = tiny_hlo.f32(250_000)
  carried = tiny_hlo.tuple_of(stack, part, small)
  condition = builder.computation("condition")
  condition.parameter(carried)
  condition.op("constant", tiny_hlo.pred())
  update = builder.computation("update")
  inner = [update.parameter(shape) for shape in (stack, part)]
  update.op("dynamic-update-slice", stack, *inner)
  body = builder.computation("body")
  carry = body.parameter(carried)
  values = [body.element(carry, i) for i in range(3)]
  start = body.op(
    "async-start",
    tiny_hlo.tuple_of(tiny_hlo.tuple_of(stack, part), stack, tiny_hlo.s32()),
    *values[:2],
    calls=(update,),
  )
  kernel = values[2]
  for _ in range(num_kernels):
    kernel = body.op("negate", small, kernel)
  done = body.op("async-done", stack, start)
  body.tuple(done, values[1], kernel)
  main = builder.computation("main")
  given = main.parameter(carried)
  main.op(
    "while",
    carried,
    given,
    calls=(body, condition),
    backend_config=b'{"known_trip_count":{"n":"5"}}',
  )
  return builder.module(main)


@pytest.mark.parametrize(
  ("num_kernels", "iteration_s"), [(0, 8e-3), (3, 8e-3), (6, 12e-3)]
)
def test_each_iteration_waits_for_what_kernels_do_not_hide(
  num_kernels, iteration_s
):
  found = cost.step_time(_looped(num_kernels), _RATES)
  assert found.seconds == pytest.approx(5 * iteration_s)
  assert found.to_host_bytes == 5 * 4_000_000
  assert found.waiting_s == pytest.approx(
    5 * max(0.0, 8e-3 - 2e-3 * num_kernels)
  )


@pytest.mark.parametrize(
  ("suffix", "mask", "products"),
  [
    ("", "NO_MASK", 2),
    ("", "CAUSAL", 1),
    ("", "PADDING_CAUSAL", 1),
    ("Backward", "CAUSAL", 2.5),
  ],
)
def test_attention_counts_its_products(suffix, mask, products):
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  query = main.parameter(tiny_hlo.f32(2, 512, 8, 64))
  keys = main.parameter(tiny_hlo.f32(2, 256, 2, 64))
  config = (
    '{"cudnn_fmha_backend_config": {"intermediate_tensor_shape":'
    ' {"element_type": "F32", "dimensions": ["2", "8", "512", "256"]},'
    f' "mask_type": "{mask}"}}}}'
  )
  main.op(
    "custom-call",
    tiny_hlo.f32(2, 512, 8, 64),
    *(query, keys, keys),
    custom_call_target=f"__cudnn$fmhaSoftmax{suffix}",
    backend_config=config.encode(),
  )
  # Products take far longer than what is read and written.
  rates = dataclasses.replace(_RATES, fp32_flops_per_s=1e9)
  flops = products * 2 * (2 * 8 * 512 * 256) * 64
  found = cost.step_time(builder.module(main), rates).seconds
  assert found == pytest.approx(flops / 1e9)
