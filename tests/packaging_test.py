"""One version everywhere, and archives that hold what users need."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile

import pytest
from absl.testing import absltest, parameterized
from packaging import requirements

import jaxmem

_ROOT = next(
  folder
  for folder in pathlib.Path(__file__).resolve().parents
  if (folder / "pyproject.toml").exists()
)
# Both packages, the marks of types, what is read at run time.
_NEEDED = (
  "jaxmem/__init__.py",
  "jaxmem/__main__.py",
  "jaxmem/py.typed",
  "jaxmem_hlo/__init__.py",
  "jaxmem_hlo/py.typed",
)
_TOP_LEVEL = {"jaxmem", "jaxmem_hlo"}
_DATA = (".txtpb", ".html", ".css", ".js", ".proto", ".pyi")

# A step of two layers, from a folder where only what is installed is found.
_PLAN_A_STEP = """
import jax, jax.numpy as jnp
import jaxmem, jaxmem_hlo

def step(weights, x):
  return weights - 0.1 * jnp.tanh(x @ weights), (x @ weights).sum()

plan = jaxmem.plan(step, *[jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 2)
plan.save_html("plan.html")
print(jaxmem.__file__)
print(jaxmem_hlo.__file__)
print(plan)
"""


def _read(name):
  return (_ROOT / name).read_text(encoding="utf-8")


class VersionTest(parameterized.TestCase):
  """jaxmem/version.py is the place; what else names a version agrees."""

  @parameterized.parameters(
    ("MODULE.bazel", r'^ *version = "(.+)",$'),
    ("CITATION.cff", r"^version: (.+)$"),
    ("CHANGELOG.md", r"^## \[(\d.*)\]"),
  )
  def test_first_version_named(self, file, pattern):
    found = re.search(pattern, _read(file), re.MULTILINE)
    assert found is not None, f"{file} names no version"
    self.assertEqual(found[1], jaxmem.__version__)

  def test_pyproject_reads_it(self):
    project = tomllib.loads(_read("pyproject.toml"))
    self.assertIn("version", project["project"]["dynamic"])
    path = project["tool"]["hatch"]["version"]["path"]
    self.assertEqual(path, "jaxmem/version.py")
    self.assertIn(f'__version__ = "{jaxmem.__version__}"', _read(path))


class ReleaseTest(parameterized.TestCase):
  """What a tag has to agree with before anything is published."""

  def _check(self, tag, changelog):
    """Runs scripts/check_release on a copy of what it reads."""
    with tempfile.TemporaryDirectory() as name:
      folder = pathlib.Path(name)
      for file in ("scripts/check_release", "jaxmem/version.py"):
        (folder / file).parent.mkdir()
        shutil.copy(_ROOT / file, folder / file)
      (folder / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
      return subprocess.run(
        [folder / "scripts/check_release", tag],
        capture_output=True,
        text=True,
        check=False,
      )

  def test_a_version_with_its_date_is_released(self):
    heading = f"# Changelog\n\n## [{jaxmem.__version__}] - 2026-01-02\n"
    done = self._check(f"v{jaxmem.__version__}", heading)
    self.assertEqual(done.returncode, 0, done.stderr)

  @parameterized.parameters(
    ("v0.0.0", "2026-01-02", "The tag must be v"),
    (f"v{jaxmem.__version__}", "unreleased", "CHANGELOG.md must begin with"),
  )
  def test_refuses(self, tag, date, message):
    heading = f"# Changelog\n\n## [{jaxmem.__version__}] - {date}\n"
    done = self._check(tag, heading)
    self.assertEqual(done.returncode, 1)
    self.assertIn(message, done.stderr)

  def test_the_workflow_checks_builds_and_publishes_without_a_password(self):
    workflow = _read(".github/workflows/release.yml")
    steps = (
      "scripts/check_release",
      "make dist",
      "pypa/gh-action-pypi-publish",
    )
    places = [workflow.index(step) for step in steps]
    self.assertEqual(places, sorted(places))
    self.assertIn("id-token: write", workflow)
    self.assertNotIn("password:", workflow)


class RandomProgramsTest(absltest.TestCase):
  def test_github_tries_each_seed_of_a_night_once(self):
    workflow = _read(".github/workflows/random-programs.yml")
    [parts] = re.findall(r"^ +part: \[(.+)\]$", workflow, re.MULTILINE)
    numbers = {
      name: int(re.findall(rf"^ +{name}: (\d+)$", workflow, re.MULTILINE)[0])
      for name in ("PER_NIGHT", "PER_PART")
    }
    self.assertEqual(
      [int(part) for part in parts.split(",")],
      [*range(numbers["PER_NIGHT"] // numbers["PER_PART"])],
    )
    self.assertEqual(numbers["PER_NIGHT"], 100_000)
    command = workflow[workflow.index("benchmarks.random_programs_benchmark") :]
    benchmark = _read("benchmarks/random_programs_benchmark.py")
    for option in re.findall(r"--(\w+)=", command):
      self.assertIn(f'"{option}"', benchmark)


class JaxVersionTest(absltest.TestCase):
  """The Makefile says which versions of jax are tested beside the newest."""

  def test_the_oldest_that_pyproject_allows_is_tested(self):
    project = tomllib.loads(_read("pyproject.toml"))["project"]
    allowed = {
      requirement.name: requirement.specifier
      for requirement in map(requirements.Requirement, project["dependencies"])
    }
    self.assertEqual(allowed["jax"], allowed["jaxlib"])
    [oldest] = [
      each.version for each in allowed["jax"] if each.operator == ">="
    ]
    self.assertEqual(_older_versions_of_jax()[0], oldest)
    for version in _older_versions_of_jax():
      self.assertIn(version, allowed["jax"])

  def test_github_runs_all_tests_on_them(self):
    workflow = _read(".github/workflows/ci.yml")
    [versions] = re.findall(r"^ +jax: \[(.+)\]$", workflow, re.MULTILINE)
    self.assertContainsSubset(
      _older_versions_of_jax(), re.findall(r'"(.+?)"', versions)
    )


def _older_versions_of_jax():
  [line] = re.findall(r"^OLDER_JAX := (.+)$", _read("Makefile"), re.MULTILINE)
  return line.split()


def _run(*command, cwd):
  """Runs a Python that sees nothing of this clone; returns what it printed."""
  environment = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "XLA_FLAGS")
  }
  done = subprocess.run(
    command,
    cwd=cwd,
    env=environment | {"JAX_PLATFORMS": "cpu", "PIP_NO_INPUT": "1"},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode != 0:
    raise AssertionError(f"{command} failed:\n{done.stdout}\n{done.stderr}")
  return done.stdout


def _sources():
  """Returns the files of both packages, as they are named when installed."""
  return {
    file.relative_to(parent).as_posix()
    for parent, package in ((_ROOT, "jaxmem"), (_ROOT / "hlo", "jaxmem_hlo"))
    for file in (parent / package).rglob("*")
    if file.is_file() and "__pycache__" not in file.parts
  }


def _dependencies(distribution, found):
  """Adds to `found` what a distribution requires, directly or not."""
  for text in distribution.requires or ():
    requirement = requirements.Requirement(text)
    marker = requirement.marker
    if marker is not None and not marker.evaluate({"extra": ""}):
      continue
    other = importlib.metadata.distribution(requirement.name)
    if other.name not in found:
      found[other.name] = other
      _dependencies(other, found)


def _link(distribution, site_packages):
  """Makes an installed distribution importable from another site-packages."""
  for file in distribution.files:
    if ".." in file.parts or "__pycache__" in file.parts:
      continue
    link = site_packages.joinpath(*file.parts)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(distribution.locate_file(file))


@pytest.mark.slow
class ArchivesTest(absltest.TestCase):
  """Builds the archives once, as a release would: the wheel from the sdist."""

  folder: pathlib.Path

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    holder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    cls.addClassCleanup(holder.cleanup)
    cls.folder = pathlib.Path(holder.name)
    # Without isolation nothing is fetched: hatchling is of the test extra.
    options = ("--no-isolation", "--outdir", str(cls.folder / "dist"))
    build = (sys.executable, "-m", "build", *options, str(_ROOT))
    _run(*build, cwd=cls.folder)
    [cls.wheel] = (cls.folder / "dist").glob("*.whl")
    [cls.sdist] = (cls.folder / "dist").glob("*.tar.gz")

  def test_wheel_holds_both_packages_and_nothing_else(self):
    with zipfile.ZipFile(self.wheel) as archive:
      names = {n for n in archive.namelist() if ".dist-info/" not in n}
    self.assertContainsSubset(_NEEDED, names)
    self.assertEqual({name.split("/")[0] for name in names}, _TOP_LEVEL)
    self.assertEqual(names, _sources())
    self.assertContainsSubset(_DATA, {pathlib.Path(n).suffix for n in names})

  def test_wheel_says_what_it_is(self):
    with zipfile.ZipFile(self.wheel) as archive:
      [name] = [n for n in archive.namelist() if n.endswith("/METADATA")]
      metadata = archive.read(name).decode()
      licenses = [n for n in archive.namelist() if n.endswith("/LICENSE")]
    self.assertIn(f"\nVersion: {jaxmem.__version__}\n", metadata)
    self.assertIn("\nLicense-Expression: Apache-2.0\n", metadata)
    self.assertIn("https://github.com/jaxmem/jaxmem", metadata)
    self.assertIn("\nClassifier: Typing :: Typed\n", metadata)
    self.assertLen(licenses, 1)
    # The README as PyPI shows it, with no files beside it.
    raw = "https://raw.githubusercontent.com/jaxmem/jaxmem/main/docs"
    self.assertIn(f"]({raw}/before-and-after.svg)", metadata)
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    self.assertEqual([x for x in links if not x.startswith("https://")], [])

  def test_sdist_holds_what_the_wheel_is_built_from(self):
    with tarfile.open(self.sdist) as archive:
      names = {n.split("/", 1)[1] for n in archive.getnames()}
    expected = {
      f"hlo/{name}" if name.startswith("jaxmem_hlo/") else name
      for name in _sources()
    }
    expected |= {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    # Hatchling adds the last two: its own metadata, and how to ignore files.
    expected |= {"CITATION.cff", "PKG-INFO", ".gitignore"}
    expected |= {"scripts/readme_hook.py"}
    self.assertEqual(names, expected)

  def test_wheel_plans_a_step_where_it_is_installed(self):
    # What the wheel declares to depend on, at the versions that are tested
    # here, and nothing else: a dependency that is not declared would be missed.
    environment = self.folder / "venv"
    venv.create(environment, symlinks=True)
    scheme = {"base": str(environment), "platbase": str(environment)}
    paths = sysconfig.get_paths(scheme="venv", vars=scheme)
    python = pathlib.Path(paths["scripts"], "python")
    install = ("install", "--no-deps", "--no-index", str(self.wheel))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "--python", str(python), *install, cwd=self.folder)
    site_packages = pathlib.Path(paths["purelib"])
    [wheel] = importlib.metadata.distributions(path=[str(site_packages)])
    found = {}
    _dependencies(wheel, found)
    for distribution in found.values():
      _link(distribution, site_packages)
    elsewhere = self.folder / "elsewhere"
    elsewhere.mkdir()
    printed = _run(str(python), "-c", _PLAN_A_STEP, cwd=elsewhere)
    first, second, *plan = printed.splitlines()
    self.assertEqual(first, str(site_packages / "jaxmem" / "__init__.py"))
    self.assertEqual(second, str(site_packages / "jaxmem_hlo" / "__init__.py"))
    self.assertStartsWith(plan[0], "step on cpu: ")
    self.assertIn("<script", (elsewhere / "plan.html").read_text())
    command = pathlib.Path(paths["scripts"], "jaxmem")
    self.assertIn("plan", _run(str(command), "--help", cwd=elsewhere))


if __name__ == "__main__":
  absltest.main()
