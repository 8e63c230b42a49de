"""What docs/promises.md, docs/faults.md and SECURITY.md name is there."""

import importlib.util
import re

import source_tree
from absl.testing import absltest, parameterized

_PAGES = ("docs/promises.md", "docs/faults.md", "SECURITY.md")
_FILE = re.compile(
  r"`((?:tests|benchmarks|docs|jaxmem|examples)/[\w./-]*[\w])`"
)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def _read(name):
  return (source_tree.ROOT / name).read_text(encoding="utf-8")


def _commands(text):
  """Returns the commands of a page: in code that begins with a program."""
  pattern = r"`((?:python -m|make) [^`]+)`|^    ((?:python -m|make) .+)$"
  return ["".join(found) for found in re.findall(pattern, text, re.MULTILINE)]


def _fault(command):
  """Says what of a command does not exist; empty if all does."""
  program, _, rest = command.partition(" ")
  if program == "make":
    targets = re.findall(r"^([\w-]+)(?: [\w-]+)*:", _read("Makefile"), re.M)
    targets += re.findall(r"^[\w-]+ ([\w-]+):", _read("Makefile"), re.M)
    word = rest.split()[0]
    return "" if word in targets else f"no target {word}"
  module, *words = rest.removeprefix("-m ").split()
  if importlib.util.find_spec(module) is None:
    return f"no module {module}"
  if module == "pytest":
    paths = [word for word in words if word.startswith("tests/")]
    gone = [p for p in paths if not (source_tree.ROOT / p).exists()]
    return f"no file {gone[0]}" if gone or not paths else ""
  if module.startswith("benchmarks."):
    source = _read(module.replace(".", "/") + ".py")
    for word in words:
      flag = re.match(r"--(\w+)", word)
      if flag and f'"{flag[1]}"' not in source:
        return f"no flag {flag[0]} of {module}"
  return ""


class PromisesTest(parameterized.TestCase):
  @parameterized.parameters(*_PAGES)
  def test_every_command_exists(self, page):
    for command in _commands(_read(page)):
      with self.subTest(command=command):
        self.assertEqual(_fault(command), "")

  @parameterized.parameters(*_PAGES)
  def test_every_file_exists(self, page):
    text = _read(page)
    folder = (source_tree.ROOT / page).parent
    paths = [source_tree.ROOT / name for name in _FILE.findall(text)]
    paths += [folder / link for link in _LINK.findall(text)]
    self.assertNotEmpty(paths)
    for path in paths:
      with self.subTest(path=str(path)):
        self.assertTrue(path.exists())

  def test_every_test_that_faults_names_exists(self):
    text = _read("docs/faults.md")
    pattern = r"`(tests/[\w./]+\.py)` \(`(\w+)`\)"
    named = re.findall(pattern, text)
    self.assertGreater(len(named), 8)
    for path, name in named:
      with self.subTest(test=f"{path} {name}"):
        self.assertRegex(_read(path), rf"(?m)^ *(?:class|def) {name}\b")

  def test_each_promise_has_a_command_and_a_date(self):
    rows = re.findall(r"^\| (?!promise|---)(.+) \|$", _read(_PAGES[0]), re.M)
    self.assertGreater(len(rows), 20)
    for row in rows:
      with self.subTest(row=row):
        self.assertNotEmpty(_commands(row))
        self.assertRegex(row, r"20\d\d-\d\d-\d\d")

  def test_what_the_readme_promises_is_here(self):
    section = _read("README.md").partition("## What stays the same")[2]
    section = section.partition("\n## ")[0]
    page = _read(_PAGES[0])
    for name in re.findall(r"^- \*\*([^*]+?)\.?\*\*", section, re.M):
      with self.subTest(promise=name):
        self.assertIn(name.lower(), page.lower())

  @parameterized.parameters(
    ("make no-such-target", "no target no-such-target"),
    ("make test-all", ""),
    ("python -m benchmarks.no_such_benchmark", "no module"),
    (
      "python -m benchmarks.long_run_benchmark --no_such=1",
      "no flag --no_such",
    ),
    ("python -m pytest tests/no_such_test.py", "no file tests/no_such_test.py"),
    ("python -m pytest tests/promises_test.py", ""),
  )
  def test_what_does_not_exist_is_found(self, command, fault):
    self.assertStartsWith(_fault(command), fault)
    self.assertEqual(bool(fault), bool(_fault(command)))


if __name__ == "__main__":
  absltest.main()
