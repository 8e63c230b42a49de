"""Views of a part of a value."""

import jax
import jax.numpy as jnp
import pytest
import random_graphs

from jaxmem.experimental import allocators, jaxpr_order
from jaxmem.experimental.allocators import views
from jaxmem.experimental.allocators.views import View


def _program(function, *shapes):
  return jaxpr_order.from_function(function, *(jnp.zeros(s) for s in shapes))


def _slices(function, *shapes):
  program = _program(function, *shapes)
  names = [buffer.name for buffer in program.graph.buffers]
  found = views.slice_views(program)
  return {
    names[v].split(".")[0]: (names[b].split(".")[0], offset)
    for v, (b, offset) in found.items()
  }


def test_finds_contiguous_slices():
  def rows(x):
    y = jnp.sin(x)
    return jnp.cos(y[2:5]).sum()

  # Rows of 6 floats, from the third on.
  assert _slices(rows, (8, 6)) == {"slice": ("sin", 2 * 6 * 4)}


def test_a_row_of_a_matrix_of_matrices():
  def part(x):
    y = jnp.sin(x)
    return jnp.cos(jax.lax.slice(y, (1, 2, 0), (2, 5, 6))).sum()

  assert _slices(part, (2, 8, 6)) == {"slice": ("sin", (8 + 2) * 6 * 4)}


@pytest.mark.parametrize(
  "start, limit, strides",
  [
    ((0, 1), (8, 5), None),
    ((0, 0), (8, 6), (2, 1)),
  ],
)
def test_other_slices_need_memory(start, limit, strides):
  def columns(x):
    return jnp.cos(jax.lax.slice(jnp.sin(x), start, limit, strides)).sum()

  assert _slices(columns, (8, 6)) == {}


def test_a_view_of_a_view_is_one_of_the_whole():
  def function(x):
    y = jax.lax.slice_in_dim(jnp.sin(x), 2, 8)
    return jnp.cos(jax.lax.slice_in_dim(y, 1, 3)).sum()

  program = _program(function, (8, 6))
  found = views.slice_views(program)
  assert {view.offset_bytes for view in found.values()} == {48, 72}
  assert len({view.base for view in found.values()}) == 1


def test_a_split_is_a_view_per_part():
  def function(x):
    a, b = jax.lax.split(jnp.sin(x), (3, 5))
    return jnp.cos(a).sum() + jnp.cos(b).sum()

  found = views.slice_views(_program(function, (8, 6)))
  assert sorted(v.offset_bytes for v in found.values()) == [0, 3 * 6 * 4]


def test_views_save_their_bytes_and_keep_the_whole_alive():
  # x -> v, a part of it; y comes between; z reads v.
  values = [("x", 8, ""), ("v", 3, "x"), ("y", 4, "x"), ("z", 1, "vy")]
  graph = random_graphs.dataflow(values)
  merged = views.with_views(graph, {1: View(0, 5)})
  trace = allocators.from_graph(merged)
  # x is live until z has run, since its part is read there.
  assert trace.live_peak_bytes == 8 + 4 + 1
  result = allocators.Nnc().run(trace)
  allocators.check_result(trace, result)
  assert result.placements[1] is None
  assert result.placements[0] is not None


def test_nothing_is_written_over_what_is_read_in_part():
  graph = random_graphs.build(
    [(), (0,), (1,)],
    [
      jaxpr_buffer("x", 8, (0, 1, 2), 0),
      jaxpr_buffer("v", 4, (1, 2), 1),
      jaxpr_buffer("y", 8, (2,), 2),
    ],
    shares=[(), (), ((0, 2),)],
  )
  assert views.with_views(graph, {1: View(0, 0)}).nodes[2].shares == ()
  assert views.with_views(graph, {}).nodes[2].shares == ((0, 2),)


def jaxpr_buffer(name, size_bytes, touchers, definer):
  return random_graphs.Buffer(
    name=name, size_bytes=size_bytes, touchers=touchers, definer=definer
  )


@pytest.mark.parametrize(
  "given",
  [{1: View(0, 6)}, {1: View(0, -1)}, {2: View(1, 0)}, {3: View(0, 0)}],
)
def test_rejects_what_is_no_view(given):
  values = [("x", 8, ""), ("v", 3, "x"), ("y", 4, "x"), ("z", 1, "y")]
  graph = random_graphs.dataflow(values)
  with pytest.raises(ValueError, match="must be made from and lie within"):
    views.with_views(graph, given)
