"""All strategies on one interface: the table, and the command for it."""

import json
import math
import sys

import jax
import jax.numpy as jnp
import pytest
import random_graphs

from jaxmem import cli
from jaxmem.experimental import allocators, jaxpr_order
from jaxmem.experimental.allocators import memcost
from jaxmem.experimental.allocators.coarse import by_scope
from jaxmem.experimental.allocators.mxnet import Mxnet, MxnetColoring
from jaxmem.experimental.allocators.nnc import Nnc
from jaxmem.experimental.allocators.paddle import AutoGrowth
from jaxmem.experimental.allocators.parallel import with_sharing_edges
from jaxmem.experimental.allocators.static import Static
from jaxmem.graph import check_order

STRATEGIES = memcost.strategies(1 << 24)


@pytest.mark.parametrize("allocator", STRATEGIES, ids=lambda a: a.name)
def test_every_strategy_is_safe_on_random_graphs(allocator):
  for seed in range(25):
    graph = random_graphs.random_graph(seed, 8)
    trace = allocators.from_graph(
      graph,
      random_graphs.sample_orders(graph, 1, seed)[0],
      inputs=("caller", "allocator")[seed % 2],
      outputs=("caller", "allocator")[seed // 2 % 2],
    )
    result = allocator.run(trace)
    allocators.check_result(trace, result)
    safe = with_sharing_edges(trace, result)
    allocators.check_result(trace, safe, parallel=True)
    assert allocator.run(trace) == result


@pytest.mark.parametrize(
  "allocator",
  [
    make(safety=safety)
    for safety in ("ancestors", "paths", "edges")
    for make in (Mxnet, MxnetColoring, Nnc)
  ],
  ids=lambda a: a.name,
)
def test_what_claims_to_be_safe_in_parallel_is(allocator):
  num_shared = 0
  for seed in range(40):
    graph = random_graphs.random_graph(seed, 9)
    trace = allocators.from_graph(
      graph, random_graphs.sample_orders(graph, 1, seed)[0]
    )
    result = allocator.run(trace)
    allocators.check_result(trace, result, parallel=True)
    assert (allocator.safety == "edges") or not result.added_edges
    num_shared += result.reserved_bytes < trace.total_bytes
  assert num_shared > 10


def test_the_planner_is_never_worse_than_the_other_static_ones():
  for seed in range(40):
    graph = random_graphs.random_graph(seed, 9)
    trace = allocators.from_graph(
      graph, random_graphs.sample_orders(graph, 1, seed)[0]
    )
    planned = Static(method="jaxmem").run(trace).reserved_bytes
    assert planned <= Static(method="xla").run(trace).reserved_bytes
    assert planned <= Static(method="tflite").run(trace).reserved_bytes
    apart = Static(method="jaxmem", in_place=False).run(trace)
    assert apart.reserved_bytes >= trace.live_peak_bytes


def _loss(params, x):
  for weights in params:
    x = jnp.tanh(x @ weights)
  return jnp.sum(x)


def _step(params, x):
  loss, grads = jax.value_and_grad(_loss)(params, x)
  return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], loss


ARGS = ([jnp.zeros((64, 64))] * 3, jnp.zeros((128, 64)))


def test_forward_only_needs_no_gradients():
  program = jaxpr_order.from_function(_step, *ARGS)
  forward = memcost.forward_only(program)
  expected = jaxpr_order.from_function(_loss, *ARGS)
  assert forward is not None
  names = [n.name.split(".")[0] for n in forward.graph.nodes]
  # Autodiff adds nothing to it but what it computes beside tanh.
  assert names == [n.name.split(".")[0] for n in expected.graph.nodes]
  assert memcost.forward_only(expected) is None


def test_a_step_without_forward_outputs_has_no_forward_table():
  program = jaxpr_order.from_function(jax.grad(_loss), *ARGS)
  assert memcost.forward_only(program) is None
  found = list(memcost.tables(program, STRATEGIES[:2]))
  assert [table.which for table in found] == ["training"]


def test_the_table_of_a_perceptron():
  program = jaxpr_order.from_function(_step, *ARGS)
  training, forward = memcost.tables(program, STRATEGIES)
  activation = 4 * 128 * 64
  costs = {cost.strategy: cost for cost in forward.costs}
  # Three products and three tanh of them, of which two are live at a time, be
  # it an activation and the next product. The loss is the caller's.
  assert costs[memcost.BASELINE].reserved_bytes == 6 * activation
  assert costs["mxnet in-place"].reserved_bytes == 3 * activation
  assert costs["mxnet in-place + sharing"].reserved_bytes == 2 * activation
  assert costs["mxnet sharing"].reserved_bytes == 2 * activation
  for cost in training.costs:
    needed = costs[cost.strategy].reserved_bytes
    assert cost.reserved_bytes is not None, cost
    assert needed is not None, cost
    assert needed <= cost.reserved_bytes, cost


def test_each_strategy_is_announced():
  program = jaxpr_order.from_function(_step, *ARGS)
  said = []
  list(memcost.tables(program, STRATEGIES[:2], show=said.append))
  for which, number in (("training", 0), ("forward", 3)):
    assert said[number] == f"{which}, 1 of 2: mxnet no sharing"
    assert said[number + 1] == f"{which}, 2 of 2: mxnet in-place"
    assert said[number + 2].startswith(f"{which}: planning the order of")
  assert len(said) == 6


def test_a_row_says_when_memory_runs_out():
  program = jaxpr_order.from_function(_step, *ARGS)
  trace = allocators.from_graph(program.graph)
  cost = memcost.measure(trace, AutoGrowth(limit_bytes=1000))
  assert cost.reserved_bytes is None
  assert cost.fragmentation is None


def _layers(params, x):
  for index, weights in enumerate(params):
    with jax.named_scope(f"dense{index}"):
      x = x @ weights + 1.0
    with jax.named_scope(f"act{index}"):
      x = jax.nn.silu(x)
  return jnp.sum(x)


def test_scopes_become_operators():
  program = jaxpr_order.from_function(_layers, *ARGS)
  graph = by_scope(program)
  # dense and act three times each, then the sum.
  assert graph.num_nodes == 7
  assert [node.predecessors for node in graph.nodes] == [
    () if not index else (index - 1,) for index in range(7)
  ]
  activation = 4 * 128 * 64
  inner = [b for b in graph.buffers if b.size_bytes == activation]
  # The argument, and a value between two operators each.
  assert len(inner) == 1 + 6
  assert not any(node.shares for node in graph.nodes)


def _relu_layers(params, x):
  for index, weights in enumerate(params):
    with jax.named_scope(f"dense{index}"):
      x = x @ weights
    with jax.named_scope(f"act{index}"):
      x = jnp.tanh(x)
  return jnp.sum(x)


def test_coarse_operators_work_in_place_where_one_equation_reads():
  graph = by_scope(jaxpr_order.from_function(_relu_layers, *ARGS))
  assert sum(len(node.shares) for node in graph.nodes) == 3
  trace = allocators.from_graph(graph)
  assert Mxnet(sharing=False).run(trace).reserved_bytes == 3 * 4 * 128 * 64 + 4


def test_a_scope_that_is_left_and_entered_again_is_split():
  def function(x):
    with jax.named_scope("a"):
      y = jnp.sin(x)
    with jax.named_scope("b"):
      z = jnp.cos(y)
    with jax.named_scope("a"):
      return jnp.tan(z) + y

  graph = by_scope(jaxpr_order.from_function(function, ARGS[1]))
  assert graph.num_nodes == 3
  check_order(graph, range(3))


def make_step():
  return _step, ARGS


def test_the_command_prints_both_passes(capsys):
  assert cli.main(["memcost", f"{__name__}:make_step"]) == 0
  text = capsys.readouterr().out
  assert "The whole step:" in text
  assert "Forward only:" in text
  assert "jaxmem placement, in-place, jaxmem order" in text
  # A legend for the columns, once.
  titles = "held of all unused pieces waits".split()
  header = next(line for line in text.splitlines() if "strategy" in line)
  assert header.split()[1:] == titles
  legend = text.split("columns:")[1]
  for title in ("held", "of all", "unused", "pieces", "waits"):
    assert legend.count(f"\n  {title} ") == 1
  # A chunk of 14.7 GiB for 624 KiB of values.
  chunk = next(line for line in text.splitlines() if "0.92" in line)
  assert " 24736 x " in chunk
  assert "least: 144 KiB, jaxmem placement, in-place, jaxmem order" in text


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_command_shows_progress_on_a_terminal(
  capsys, monkeypatch, is_terminal
):
  monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
  assert cli.main(["memcost", f"{__name__}:make_step", "--json"]) == 0
  shown = capsys.readouterr().err
  if not is_terminal:
    assert shown == ""
    return
  for what in ("tracing the step", "training, 1 of", "forward, 1 of"):
    assert what in shown
  # The line is gone at the end.
  assert shown.endswith("\r\x1b[K")


def test_the_command_names_what_does_not_fit(capsys):
  command = ["memcost", f"{__name__}:make_step", "--limit", "200KiB"]
  assert cli.main(command) == 0
  rows = capsys.readouterr().out.split("Forward only")[0].splitlines()
  refused = {r.split("  ")[0] for r in rows if "needs more than it may" in r}
  # The hard limit is that of dynamic allocators: 224 KiB are too many, 192 KiB
  # are not. Static ones just say what they need.
  assert "paddle auto-growth" in refused
  assert "pytorch caching" in refused
  assert "paddle auto-growth, in-place" not in refused
  assert not any(name.startswith(("mxnet", "nnc", "xla")) for name in refused)


def test_the_command_prints_json(capsys):
  command = ["memcost", f"{__name__}:make_step", "--json", "--coarse"]
  assert cli.main([*command, "--device-memory", "1MiB"]) == 0
  rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert [row["which"] for row in rows] == ["training", "forward"]
  names = [cost["strategy"] for cost in rows[0]["costs"]]
  assert names[:-1] == [a.name for a in memcost.strategies(1 << 20)]
  chunk = next(c for c in rows[0]["costs"] if "0.92" in c["strategy"])
  assert chunk["reserved_bytes"] == math.floor(0.92 * 2**20)


def test_the_command_refuses_sizes_it_cannot_read(capsys):
  command = ["memcost", f"{__name__}:make_step", "--limit", "much"]
  assert cli.main(command) == 2
  assert "the size must be a number of bytes" in capsys.readouterr().err


def make_loop_step():
  """A loop whose body, without sharing, needs more than is live at once."""

  def body(x, _):
    y = jnp.concatenate([x, x])
    return jnp.sin(y[: x.shape[0]]), None

  def step(x):
    x, _ = jax.lax.scan(body, jnp.cos(x), length=3)
    return jnp.sum(jnp.cos(x[:512]))

  return step, (jnp.zeros(1024),)


def _costs(capsys, *arguments):
  command = ["memcost", f"{__name__}:make_loop_step", "--json", *arguments]
  assert cli.main(command) == 0
  (row,) = map(json.loads, capsys.readouterr().out.splitlines())
  return row["total_bytes"], {
    cost["strategy"]: cost["reserved_bytes"] for cost in row["costs"]
  }


def test_the_command_takes_slices_as_views(capsys):
  plain_bytes, _ = _costs(capsys)
  viewed_bytes, _ = _costs(capsys, "--views")
  # The slice of 512 floats in the step; those in the loop are not looked at.
  assert plain_bytes - viewed_bytes == 512 * 4


def test_the_command_plans_loops_by_each_strategy(capsys):
  _, plain = _costs(capsys)
  _, planned = _costs(capsys, "--loops")
  # Without sharing the body has x, y of twice its size, the slice and the new
  # x; only x and y are live at once.
  assert planned[memcost.BASELINE] - plain[memcost.BASELINE] == 2 * 4096
  assert (
    planned["jaxmem placement, in-place"] == plain["jaxmem placement, in-place"]
  )
