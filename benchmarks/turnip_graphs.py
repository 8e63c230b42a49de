"""Task graphs of LLaMA over several devices, by arithmetic: nothing is traced.

Matrices are spread over the devices (tensor parallelism), tokens too where
layers are normalised (sequence parallelism): rows are copied to all devices
before a product, and its partial sums are copied to where the rows belong and
summed there, one at a time. Attention keeps its scores, as the paper's does.
Embedding and head are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks.turnip_models import LORA_RANK, Config
from jaxmem.experimental.memgraph import Builder, TaskGraph

# A tensor on each device, by device.
Row = list[int]
# Per device, one tensor for each chunk of the tokens.
Grid = list[list[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
  """What is computed, and how it is spread.

  Attributes:
    config: The model.
    batch: Sequences.
    length: Tokens of a sequence.
    num_devices: Devices; the tokens are cut into as many chunks.
    itemsize: Bytes of a number.
  """

  config: Config
  batch: int
  length: int
  num_devices: int
  itemsize: int = 2

  @property
  def rows(self) -> int:
    """Tokens of a chunk."""
    return self.batch * self.length // self.num_devices


def prefill(workload: Workload) -> TaskGraph:
  """Returns the forward pass over all tokens."""
  model = _Model(workload)
  x = model.input("x")
  for layer in range(workload.config.num_layers):
    model.layer = layer
    x = model.forward(x, model.weights(f"w{layer}"))[0]
  return model.builder.build(x)


def lora_training(workload: Workload) -> TaskGraph:
  """Returns forward, recomputation per layer, and gradients of adapters."""
  model = _Model(workload)
  num_layers = workload.config.num_layers
  weights = [model.weights(f"w{layer}") for layer in range(num_layers)]
  xs = [model.input("x")]
  for layer in range(num_layers):
    model.layer = layer
    xs.append(model.forward(xs[-1], weights[layer])[0])
  dx = model.rowwise("loss", [xs[-1]])
  for step, layer in enumerate(reversed(range(num_layers))):
    model.layer = num_layers + step
    _, kept = model.forward(xs[layer], weights[layer])
    dx = model.backward(dx, weights[layer], kept)
  return model.builder.build([*dx, *model.gradients])


@dataclasses.dataclass(frozen=True)
class _Weights:
  """The parts of a layer's matrices on each device."""

  qkv: Row
  out: Row
  up: Row
  down: Row


@dataclasses.dataclass(frozen=True)
class _Kept:
  """What the backward pass of a layer reads."""

  normed: Grid
  q: Grid
  kv: Grid
  scores: Grid
  normed2: Grid
  gated: Grid


class _Model:
  """Adds the tasks of layers."""

  def __init__(self, workload: Workload):
    self._work = workload
    self._hidden = workload.config.hidden
    self._ffn = workload.config.ffn
    self.builder = Builder(workload.num_devices)
    self.layer = 0
    self.gradients: list[int] = []
    self._devices = range(workload.num_devices)

  def input(self, name: str) -> Row:
    """Adds the tokens' rows, a chunk on each device."""
    size_bytes = self._bytes(self._work.rows, self._hidden)
    return [
      self.builder.tensor(f"{name}.{d}", size_bytes, d) for d in self._devices
    ]

  def weights(self, name: str) -> _Weights:
    """Adds a layer's matrices."""

    def row(kind: str, width: int) -> Row:
      size_bytes = self._bytes(self._hidden, width // self._work.num_devices)
      return [
        self.builder.tensor(f"{name}.{kind}.{d}", size_bytes, d)
        for d in self._devices
      ]

    return _Weights(
      qkv=row("qkv", 3 * self._hidden),
      out=row("out", self._hidden),
      up=row("up", 2 * self._ffn),
      down=row("down", self._ffn),
    )

  def forward(self, x: Row, weights: _Weights) -> tuple[Row, _Kept]:
    """Adds a layer; returns its output and what its backward pass reads."""
    h, f = self._hidden, self._ffn
    normed = self._gather(self.rowwise("norm", [x]))
    q = self._products("q", [normed], weights.qkv, h, h)
    kv = self._products("kv", [normed], weights.qkv, h, 2 * h)
    scores, mixed = self._attend(q, kv)
    partial = self._products("out", [mixed], weights.out, h, h, is_sum=True)
    x2 = self.rowwise("add", [x, self._reduce(partial)])
    normed2 = self._gather(self.rowwise("norm2", [x2]))
    gated = self._products("up", [normed2], weights.up, h, f, times=2)
    partial = self._products("down", [gated], weights.down, f, h, is_sum=True)
    x3 = self.rowwise("add2", [x2, self._reduce(partial)])
    return x3, _Kept(normed, q, kv, scores, normed2, gated)

  def backward(self, dx: Row, weights: _Weights, kept: _Kept) -> Row:
    """Adds the gradients of a layer; returns that of its input."""
    h, f = self._hidden, self._ffn
    there = self._gather(dx)
    d_gated = self._products("d_up", [there, kept.gated], weights.down, h, f)
    self._adapt("ffn", [kept.normed2, d_gated], 2 * h + 3 * f)
    partial = self._products(
      "d_norm2", [d_gated], weights.up, f, h, times=2, is_sum=True
    )
    dx2 = self.rowwise("d_add", [dx, self._reduce(partial)])
    there = self._gather(dx2)
    d_mixed = self._products("d_mixed", [there], weights.out, h, h)
    dq, dkv = self._attend_backward(kept, d_mixed)
    self._adapt("qkv", [kept.normed, dq, dkv], 6 * h)
    partial = self._products(
      "d_norm", [dq, dkv], weights.qkv, h, h, times=3, is_sum=True
    )
    return self.rowwise("d_x", [dx2, self._reduce(partial)])

  def rowwise(self, name: str, operands: Sequence[Row]) -> Row:
    """Adds something elementwise on each device's own rows."""
    size_bytes = self._bytes(self._work.rows, self._hidden)
    return [
      self._task(
        f"{name}.{d}",
        [operand[d] for operand in operands],
        size_bytes,
        d,
        bytes_accessed=size_bytes * (len(operands) + 1),
      )
      for d in self._devices
    ]

  def _gather(self, row: Row) -> Grid:
    return [
      [
        x if c == d else self.builder.copy(x, d, group=self.layer)
        for c, x in enumerate(row)
      ]
      for d in self._devices
    ]

  def _reduce(self, partial: Grid) -> Row:
    size_bytes = self._bytes(self._work.rows, self._hidden)
    sums = []
    for c in self._devices:
      total = self.builder.tensor(f"sum.{self.layer}.{c}", size_bytes, c)
      for d in self._devices:
        part = partial[d][c]
        if c != d:
          part = self.builder.copy(part, c, group=self.layer)
        self.builder.accumulate(
          f"sum.{self.layer}.{c}.{d}",
          [part],
          total,
          bytes_accessed=3 * size_bytes,
          group=self.layer,
        )
      sums.append(total)
    return sums

  def _products(
    self,
    name: str,
    operands: Sequence[Grid],
    weights: Row,
    width: int,
    out_width: int,
    *,
    times: int = 1,
    is_sum: bool = False,
  ) -> Grid:
    """Adds products of each chunk with each device's part of a matrix."""
    n = self._work.num_devices
    rows = self._work.rows
    size_bytes = self._bytes(rows, out_width if is_sum else out_width // n)
    flops = 2.0 * times * rows * width * out_width / n
    moved = size_bytes + self._bytes(width, out_width * times // n)
    return [
      [
        self._task(
          f"{name}.{self.layer}.{c}.{d}",
          [*(operand[d][c] for operand in operands), weights[d]],
          size_bytes,
          d,
          flops=flops,
          bytes_accessed=moved + self._bytes(rows, width),
        )
        for c in self._devices
      ]
      for d in self._devices
    ]

  def _keys(self, c: int) -> list[int]:
    """The chunks that the tokens of a chunk attend to."""
    per_sequence = max(1, self._work.num_devices // self._work.batch)
    return list(range(c - c % per_sequence, c + 1))

  def _score_shape(self, c: int) -> tuple[int, float]:
    """Bytes of the scores of a chunk, and flops of a product with them."""
    work = self._work
    keys = min(work.rows, work.length) * len(self._keys(c))
    heads = work.config.num_heads / work.num_devices
    size_bytes = int(work.rows * keys * heads * work.itemsize)
    flops = 2.0 * work.rows * keys * self._hidden / work.num_devices
    return size_bytes, flops

  def _attend(self, q: Grid, kv: Grid) -> tuple[Grid, Grid]:
    rows = self._bytes(self._work.rows, self._hidden // self._work.num_devices)
    scores: Grid = [[] for _ in self._devices]
    mixed: Grid = [[] for _ in self._devices]
    for d in self._devices:
      for c in self._devices:
        size_bytes, flops = self._score_shape(c)
        keys = [kv[d][k] for k in self._keys(c)]
        name = f"{self.layer}.{c}.{d}"
        # Scores are written, and read and written by the softmax.
        made = self._task(
          f"scores.{name}",
          [q[d][c], *keys],
          size_bytes,
          d,
          flops=flops,
          bytes_accessed=3.0 * size_bytes,
        )
        scores[d].append(made)
        mixed[d].append(
          self._task(
            f"mix.{name}",
            [made, *keys],
            rows,
            d,
            flops=flops,
            bytes_accessed=size_bytes,
          )
        )
    return scores, mixed

  def _attend_backward(self, kept: _Kept, d_mixed: Grid) -> tuple[Grid, Grid]:
    rows = self._bytes(self._work.rows, self._hidden // self._work.num_devices)
    dq: Grid = [[] for _ in self._devices]
    dkv: Grid = []
    for d in self._devices:
      dkv.append(
        [
          self.builder.tensor(f"dkv.{self.layer}.{c}.{d}", 2 * rows, d)
          for c in self._devices
        ]
      )
      for c in self._devices:
        size_bytes, flops = self._score_shape(c)
        name = f"{self.layer}.{c}.{d}"
        keys = [kept.kv[d][k] for k in self._keys(c)]
        d_scores = self._task(
          f"d_scores.{name}",
          [kept.scores[d][c], d_mixed[d][c], *keys],
          size_bytes,
          d,
          flops=flops,
          bytes_accessed=3.0 * size_bytes,
        )
        dq[d].append(
          self._task(
            f"dq.{name}",
            [d_scores, *keys],
            rows,
            d,
            flops=flops,
            bytes_accessed=size_bytes,
          )
        )
        share = 1 / len(keys)
        for k in self._keys(c):
          self.builder.accumulate(
            f"dkv.{name}.{k}",
            [d_scores, kept.scores[d][c], kept.q[d][c], d_mixed[d][c]],
            dkv[d][k],
            flops=2 * flops * share,
            bytes_accessed=2.0 * size_bytes * share + 4 * rows,
            group=self.layer,
          )
    return dq, dkv

  def _adapt(self, name: str, operands: Sequence[Grid], width: int) -> None:
    """Adds the gradients of a layer's adapters on each device."""
    size_bytes = self._bytes(LORA_RANK, width)
    rows = self._work.rows
    for d in self._devices:
      total = self.builder.tensor(
        f"d_{name}_lora.{self.layer}.{d}", size_bytes, d
      )
      self.gradients.append(total)
      for c in self._devices:
        self.builder.accumulate(
          f"d_{name}_lora.{self.layer}.{c}.{d}",
          [operand[d][c] for operand in operands],
          total,
          flops=6.0 * rows * LORA_RANK * width / self._work.num_devices,
          bytes_accessed=self._bytes(rows, width),
          group=self.layer,
        )

  def _task(
    self, name: str, inputs: Sequence[int], size_bytes: int, d: int, **fields
  ) -> int:
    (made,) = self.builder.task(
      name,
      inputs,
      [(name, size_bytes)],
      device=d,
      group=self.layer,
      **fields,
    )
    return made

  def _bytes(self, rows: int, width: int) -> int:
    return rows * width * self._work.itemsize


def resident_bytes(graph: TaskGraph) -> int:
  """Returns the most bytes of any device, inputs there from the start."""
  last = [
    max(readers or writers, default=-1)
    for readers, writers in zip(graph.readers, graph.writers, strict=True)
  ]
  for tensor in graph.outputs:
    last[tensor] = len(graph.tasks)
  live = [0] * graph.num_devices
  for tensor in graph.inputs:
    live[graph.tensors[tensor].device] += graph.tensors[tensor].size_bytes
  peak = max(live)
  seen = set(graph.inputs)
  for position, task in enumerate(graph.tasks):
    for tensor in set(task.outputs) - seen:
      live[graph.tensors[tensor].device] += graph.tensors[tensor].size_bytes
      seen.add(tensor)
    live[task.device] += task.workspace_bytes
    peak = max(peak, *live)
    live[task.device] -= task.workspace_bytes
    for tensor in (*task.inputs, *task.outputs):
      if last[tensor] == position:
        live[graph.tensors[tensor].device] -= graph.tensors[tensor].size_bytes
  return peak
