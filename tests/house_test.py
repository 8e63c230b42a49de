"""The limits that keep the tree readable, as tests.

No file, function or class may grow beyond what can be read at once, and what a
step's plan runs through stays within a number of lines.
"""

import ast
from collections.abc import Iterator

import source_tree
from absl.testing import absltest

_MAX_FILE_LINES = 450
_MAX_FUNCTION_LINES = 60
_MAX_ATTRIBUTES = 12
# What a plan or a measurement is handed out as may list more.
_RESULT_TYPES = frozenset({"Budget", "ModulePlan", "PlanData"})
# The lines that `jit`, `plan`, `max_batch` and the commands reach. The aim is
# 19,000; until it is reached this number may only fall, but for what is new:
# programs over several devices took 2,075, what XLA rematerialises later 60,
# limits inside of loops, branches and calls 35, mapped temporaries 35, what the
# bytes at the peak are, in text, notebooks and comparisons, 2,140, checks of
# what others wrote, and faults, 257, frontiers of all versions 20,
# traces for XProf 100, comparisons of programs and treescope 52,
# shapes and names of steps that wrappers jit 91, when steps run, and what a
# limit cost edit by edit, 741, what is not modelled and said to be so 17, what
# the bytes are on the pages of a run 52, searches for the smallest plan that
# begin at what is known 80, limits that are tried for how XLA packs 17, greedy
# runs whose work grows less 69, kernels of a CPU that run in plain loops,
# across rows or evaluate functions 135, plans for fewer temporaries than
# there is room for 132, sketches of all versions before any is refined 190,
# bounds of the seconds that a limit takes 285, loops of a CPU that lose what
# they have read 145, limits on long steps in little time 70, sums of what is
# above a limit 50, orders of callees given back 80, fusions of hundreds of
# operands in less time 20, steps that are changed before XLA sees them compared
# with what was written, and what bodies of loops share, 60, orders of callees
# that are tried together 60, the passes of derivatives of derivatives 55, moves
# to the host given up where they cannot help 15, errors that are kept without
# what was on the stack, and pass between processes, 45, versions that begin to
# compile in threads 175, what precedes a buffer's touchers asked once, and a
# hook that is kept alive, 25, what calls write over inside 45, what matrix
# units reach of products by how their factors lie, and of
# convolutions, 125, loops and blocks whose backward pass is in another
# `shard_map`, and collectives that run again, 410, parts of a `shard_map` that
# run again 148, less that loops drop where XLA saves more than was asked 46,
# versions that wait at their schedule, and go on from there, 342, orders that
# are not priced since what is live is too much 8, seconds of instructions that
# edits leave alike 33, what waits at its schedule put into jax's persistent
# cache 71, faster plans for what the planned order fits already 45, what
# kernels between products evaluate 22, ragged products and factorizations 122,
# what nodes that touch many buffers take to run 7, blocks that keep what goes
# to the host behind kernels, and plans of versions in a file of their own, 94,
# versions of steps that wait for the host 12, what is not worth refining, and
# what a benchmark of versions calls, 16, loops that stack fewer bits, and that
# update what they would have stacked, 1,000, and for speed, and XLA's order
# where another saves little, 90, the first plan that fits, with little effort,
# and which versions are compiled in a file of its own, 110, plans for a limit
# that XLA rematerialises nothing of, and answers in a file of their own, 150,
# what loops stack in place of what they drop, and bits of what they make
# again from what is broadcast, 210, versions that XLA cannot compile 100,
# kernels that write stacks 75, blocks that keep less, and whose first one
# converts no table, 45, searches of versions in four files, 65, what blocks may
# keep where the peak comes late, an error in a file of its own, and loops that
# stack products, 220, what blocks read behind barriers 64, factors of products
# that are arranged anew, what is in a cache and read by tiles, 100, XLA's order
# where another saves nothing 220, searches that another one in vain spares, and
# callees that are ordered once that is of use, 110, blocks that keep what is in
# doubt, and gradients that are views, 70, operands of products that are
# written to memory 120, what is the same in all iterations 40, and functions of
# few weights that blocks keep 50.
_MAX_REACHED_LINES = 36_050


def _sources() -> Iterator[tuple[str, str]]:
  """Yields the sources of the clone: their paths, and their texts."""
  paths = [*source_tree.modules("jaxmem", "jaxmem_hlo", "benchmarks").values()]
  paths += sorted((source_tree.ROOT / "tests").rglob("*.py"))
  for path in paths:
    yield str(path.relative_to(source_tree.ROOT)), path.read_text()


def _attributes(cls: ast.ClassDef) -> set[str]:
  """Returns the fields of a class, and what its methods set of themselves."""
  found = {
    node.target.id
    for node in cls.body
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
  }
  for node in ast.walk(cls):
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
      targets = node.targets if isinstance(node, ast.Assign) else [node.target]
      while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
          targets += target.elts
        elif (
          isinstance(target, ast.Attribute)
          and isinstance(target.value, ast.Name)
          and target.value.id == "self"
        ):
          found.add(target.attr)
  return found


def _is_dataclass(cls: ast.ClassDef) -> bool:
  return any("dataclass" in ast.unparse(each) for each in cls.decorator_list)


class LimitsTest(absltest.TestCase):
  def _check(self, found: list[str]) -> None:
    self.assertEmpty(found, "\n".join(["", *found]))

  def test_files(self):
    lines = {path: len(source.splitlines()) for path, source in _sources()}
    self._check(
      [f"{p}: {n} lines" for p, n in lines.items() if n > _MAX_FILE_LINES]
    )

  def test_functions(self):
    found = []
    for path, source in _sources():
      for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
          lines = (node.end_lineno or 0) - node.lineno + 1
          if lines > _MAX_FUNCTION_LINES:
            found.append(f"{path}: {node.name} has {lines} lines")
    self._check(found)

  def test_classes(self):
    found = []
    for path, source in _sources():
      for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
          continue
        if node.name in _RESULT_TYPES and _is_dataclass(node):
          continue
        count = len(_attributes(node))
        if count > _MAX_ATTRIBUTES:
          found.append(f"{path}: {node.name} has {count} attributes")
    self._check(found)

  def test_attributes_are_fields_and_what_methods_set(self):
    source = """
class Example:
  field: int

  def __init__(self):
    self.a, (self.b, other) = 1, (2, 3)
    self.c[self.not_set] = 4
    self.d: int = 5
    self.a += 1
"""
    cls = ast.parse(source).body[0]
    assert isinstance(cls, ast.ClassDef)
    self.assertEqual(_attributes(cls), {"field", "a", "b", "d"})

  def test_lines_that_a_plan_runs_through(self):
    known = source_tree.modules("jaxmem")
    # Commands load these by name, and nothing else does.
    ignored = ("jaxmem.experimental", "jaxmem.demo")
    found = source_tree.reachable(("jaxmem", "jaxmem.cli"), known, ignored)
    lines = {m: len(known[m].read_text().splitlines()) for m in found}
    for module in ("jaxmem.api", "jaxmem.batch", "jaxmem.planning"):
      self.assertIn(module, lines)
    total = sum(lines.values())
    largest = sorted(lines.items(), key=lambda row: -row[1])[:10]
    self.assertLess(total, _MAX_REACHED_LINES, largest)

  def test_the_experiments_stay_apart(self):
    known = source_tree.modules("jaxmem")
    found = source_tree.reachable(("jaxmem",), known, ())
    experiments = {m for m in found if m.startswith("jaxmem.experimental")}
    self.assertEmpty(experiments)


if __name__ == "__main__":
  absltest.main()
