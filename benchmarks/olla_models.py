"""The eleven models of OLLA's experiments, and their graphs.

Two sets: "authors", the variants and inputs that the authors' own script
trains, by plain gradient descent; and "published", the zoo's larger models with
the optimizers that they are usually trained with.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks import zoo
from benchmarks.zoo import (
  encoder,
  googlenet,
  language,
  layers,
  mobile,
  training,
  video,
  vision,
)
from jaxmem.experimental import jaxpr_order
from jaxmem.graph import Buffer, Graph

SETS = ("authors", "published")

PUBLISHED = {
  "AlexNet": "alexnet",
  "EfficientNet": "efficientnet_b0",
  "GoogLeNet": "googlenet",
  "MNASNet": "mnasnet1_0",
  "MobileNet": "mobilenet_v2",
  "ResNet": "resnet50",
  "ResNet3D": "resnet3d_18",
  "Transformer": "wmt_transformer",
  "VGG": "vgg16",
  "ViT": "vit_b16",
  "XLM-R": "xlm_r_base",
}

# Of torchvision's weights, if not said otherwise. "Transformer": one encoder
# and one decoder layer of torch.nn.Transformer, and two normalizations.
# "GoogLeNet" is without auxiliary classifiers.
AUTHORS_PARAMS = {
  "AlexNet": zoo.PUBLISHED_PARAMS["alexnet"],
  "EfficientNet": zoo.PUBLISHED_PARAMS["efficientnet_b0"],
  "GoogLeNet": zoo.PUBLISHED_PARAMS["googlenet"],
  "MNASNet": 2_218_512,
  "MobileNet": zoo.PUBLISHED_PARAMS["mobilenet_v2"],
  "ResNet": 11_689_512,
  "ResNet3D": zoo.PUBLISHED_PARAMS["resnet3d_18"],
  "Transformer": 3_152_384 + 4_204_032 + 2 * 1024,
  "VGG": 132_863_336,
  "ViT": zoo.PUBLISHED_PARAMS["vit_b16"],
  "XLM-R": zoo.PUBLISHED_PARAMS["xlm_r_base"],
}

_MNASNET_HALF = (
  (1, 8, 1, 1, 3),
  (3, 16, 3, 2, 3),
  (3, 24, 3, 2, 5),
  (6, 40, 3, 2, 5),
  (6, 48, 2, 1, 3),
  (6, 96, 4, 2, 5),
  (6, 160, 1, 1, 3),
)
_IMAGE_MODELS: dict[str, Callable[[], nn.Module]] = {
  "AlexNet": vision.AlexNet,
  "EfficientNet": lambda: mobile.MobileNet(
    mobile.EFFICIENTNET, activation=nn.swish, squeeze=True
  ),
  "GoogLeNet": googlenet.GoogLeNet,
  "MNASNet": lambda: mobile.MobileNet(
    _MNASNET_HALF, stem=16, activation=nn.relu
  ),
  "MobileNet": mobile.MobileNet,
  "ResNet": video.BasicResNet,
  "VGG": lambda: vision.Vgg(depths=(1, 1, 2, 2, 2)),
  "ViT": vision.VisionTransformer,
}


class _Transformer(nn.Module):
  """torch.nn.Transformer with one layer each; tokens are embedded already."""

  width: int = 512

  @nn.compact
  def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
    memory = nn.LayerNorm()(self._transform(self._attend(source)))
    x = self._attend(target)
    cross = language.CrossAttention(num_heads=1)(x, memory)
    return nn.LayerNorm()(self._transform(nn.LayerNorm()(x + cross)))

  def _attend(self, x: jax.Array) -> jax.Array:
    return nn.LayerNorm()(x + layers.SelfAttention(1, causal=False)(x))

  def _transform(self, x: jax.Array) -> jax.Array:
    feed_forward = layers.FeedForward(4 * self.width, nn.relu)
    return nn.LayerNorm()(x + feed_forward(x))


def build(model: str, batch: int, variant: str) -> training.Step:
  """Builds a train step; its number of parameters is the published one.

  Args:
    model: A key of `PUBLISHED`.
    batch: Examples per step.
    variant: One of `SETS`.

  Raises:
    ValueError: If the model or the set is unknown.
  """
  if model not in PUBLISHED or variant not in SETS:
    raise ValueError(
      f"Expected one of {sorted(PUBLISHED)} and of {SETS}, got {model!r} and"
      f" {variant!r}."
    )
  if variant == "published":
    return zoo.build(PUBLISHED[model], batch)
  module, inputs, num_classes = _authors(model, batch)
  step = training.make_step(
    model.lower().replace("-", "_"),
    module,
    inputs,
    num_classes=num_classes,
    optimizer=optax.sgd(0.1),
  )
  assert step.num_params == AUTHORS_PARAMS[model], (model, step.num_params)
  return step


def _authors(
  model: str, batch: int
) -> tuple[nn.Module, Sequence[jax.ShapeDtypeStruct], int]:
  """Returns the module, the shapes of its inputs and labels, the classes."""
  if model in _IMAGE_MODELS:
    return _IMAGE_MODELS[model](), vision.image_batch(batch, 224), 1000
  if model == "ResNet3D":
    module = video.BasicResNet(num_classes=400)
    return module, video.clip_batch(batch, 1, 112), 400
  if model == "Transformer":
    inputs = [
      jax.ShapeDtypeStruct((batch, 10, 512), jnp.float32),
      jax.ShapeDtypeStruct((batch, 20, 512), jnp.float32),
      jax.ShapeDtypeStruct((batch, 20), jnp.int32),
    ]
    return _Transformer(), inputs, 512
  # Two words and the marks around them; features stand in for classes.
  shape = dataclasses.replace(encoder.BASE, length=4)
  module = encoder.Encoder(shape, has_head=False)
  return module, [shape.tokens(batch)] * 2, shape.width


def build_graph(step: training.Step) -> Graph:
  """Returns the graph on which the experiments are done.

  A node for each equation. As in PyTorch, reshapes and transposes are views,
  each other operation allocates its result, and the optimizer writes over its
  state.
  """
  traced = jaxpr_order.from_function(
    step.function, *step.args, jit_kwargs=dict(step.jit_kwargs)
  )
  return update_in_place(view_transposes(traced.graph))


def view_transposes(graph: Graph) -> Graph:
  """Returns the graph with transposed values where their operands are."""
  owner: dict[int, int] = {}
  for v, node in enumerate(graph.nodes):
    if not node.name.startswith("transpose."):
      continue
    touched = graph.buffers_of_node[v]
    results = [b for b in touched if graph.buffers[b].definer == v]
    operands = [b for b in touched if b not in results]
    if len(results) == len(operands) == 1:
      owner[results[0]] = operands[0]
  shares = [
    [(_root(owner, a), b) for a, b in n.shares if b not in owner]
    for n in graph.nodes
  ]
  return _merge(graph, owner, [n.predecessors for n in graph.nodes], shares)


def update_in_place(graph: Graph) -> Graph:
  """Makes each piece of donated state one buffer, old and new.

  Args:
    graph: A graph with shares: the places where an output may be written over
      an operand. Those of the state are used, the others are dropped.

  Returns:
    The graph without shares. Whatever else reads the old value precedes the
    node that writes the new one.
  """
  owner = _updates(graph)
  before = [{*n.predecessors} for n in graph.nodes]
  for output, operand in owner.items():
    writer = graph.buffers[output].definer
    assert writer is not None, "An output has a definer."
    before[writer] |= {*graph.buffers[operand].touchers} - {writer}
  return _merge(graph, owner, before, [()] * graph.num_nodes)


def _merge(
  graph: Graph,
  owner: dict[int, int],
  before: Sequence[Iterable[int]],
  shares: Sequence[Iterable[tuple[int, int]]],
) -> Graph:
  """Makes each buffer one with its owner; replaces precedences and shares."""
  touchers = [{*b.touchers} for b in graph.buffers]
  live_at_end = [b.live_at_end for b in graph.buffers]
  for buffer in owner:
    root = _root(owner, buffer)
    touchers[root] |= touchers[buffer]
    live_at_end[root] |= live_at_end[buffer]
  kept = [b for b in range(graph.num_buffers) if b not in owner]
  number = {b: i for i, b in enumerate(kept)}
  return dataclasses.replace(
    graph,
    nodes=tuple(
      dataclasses.replace(
        node,
        predecessors=tuple(sorted(before[v])),
        shares=tuple((number[a], number[b]) for a, b in shares[v]),
      )
      for v, node in enumerate(graph.nodes)
    ),
    buffers=tuple(
      dataclasses.replace(
        graph.buffers[b],
        touchers=tuple(sorted(touchers[b])),
        live_at_end=live_at_end[b],
      )
      for b in kept
    ),
  )


def _updates(graph: Graph) -> dict[int, int]:
  """Returns output -> operand: what is written over what, node by node.

  State is written over if it dies in program order, and so are the gradients
  from which an update is computed in several equations.
  """
  owner: dict[int, int] = {}
  given: set[int] = set()
  todo = []
  for v, node in enumerate(graph.nodes):
    for operand, output in node.shares:
      is_state = graph.buffers[operand].live_at_start or operand in owner
      if is_state and _may_replace(graph, owner, given, operand, output):
        owner[output] = operand
        given.add(operand)
        todo.append(v)
  while todo:
    v = todo.pop()
    for result in graph.buffers_of_node[v]:
      writer = graph.buffers[result].definer
      if writer is None or graph.buffers[result].touchers != (writer, v):
        continue
      for operand, output in graph.nodes[writer].shares:
        if output == result and _may_replace(
          graph, owner, given, operand, output
        ):
          owner[output] = operand
          given.add(operand)
          todo.append(writer)
          break
  return owner


def _may_replace(
  graph: Graph,
  owner: dict[int, int],
  given: set[int],
  operand: int,
  output: int,
) -> bool:
  old, new = graph.buffers[operand], graph.buffers[output]
  return (
    operand not in given
    and output not in owner
    and not old.live_at_end
    and old.size_bytes == new.size_bytes
    and old.touchers[-1] == new.definer
  )


def _root(owner: dict[int, int], buffer: int) -> int:
  while buffer in owner:
    buffer = owner[buffer]
  return buffer


def weight_bytes(buffers: Sequence[Buffer]) -> int:
  """Returns the bytes that are live at the start: state and inputs."""
  return sum(b.size_bytes for b in buffers if b.live_at_start)
