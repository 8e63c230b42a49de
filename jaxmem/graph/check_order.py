"""An independent check of orders.

This file imports the graph only and looks at every precedence in the most naive
way, so that a mistake in the fast code cannot hide itself.
"""

from collections.abc import Sequence

from jaxmem.graph.graph import Graph

# A message names so many faults; `ValidationError.faults` has all of them.
_MAX_NAMED_FAULTS = 20


class ValidationError(ValueError):
  """A plan breaks a rule.

  Attributes:
    faults: One sentence per broken rule, with the names involved.
  """

  def __init__(self, faults: Sequence[str]):
    self.faults = tuple(faults)
    shown = self.faults[:_MAX_NAMED_FAULTS]
    if len(self.faults) > len(shown):
      shown += (f"and {len(self.faults) - len(shown)} more",)
    super().__init__("; ".join(shown))


def check_order(graph: Graph, order: Sequence[int]) -> None:
  """Checks that an order runs each node once, after its predecessors.

  Args:
    graph: The program.
    order: Indices into `graph.nodes`.

  Raises:
    ValidationError: Names every fault: unknown, missing or repeated nodes, and
      each precedence that the order breaks.
  """
  faults = []
  position: dict[int, int] = {}
  for step, index in enumerate(order):
    if not 0 <= index < graph.num_nodes:
      faults.append(f"step {step} runs unknown node {index}")
    elif index in position:
      name = graph.nodes[index].name
      faults.append(
        f"node {name!r} runs at step {position[index]} and again at {step}"
      )
    else:
      position[index] = step
  for index, node in enumerate(graph.nodes):
    if index not in position:
      faults.append(f"node {node.name!r} never runs")
      continue
    for predecessor in dict.fromkeys(node.predecessors):
      if position.get(predecessor, -1) >= position[index]:
        faults.append(
          f"node {node.name!r} runs at step {position[index]}, before its"
          f" predecessor {graph.nodes[predecessor].name!r} at step"
          f" {position[predecessor]}"
        )
  if faults:
    raise ValidationError(faults)
