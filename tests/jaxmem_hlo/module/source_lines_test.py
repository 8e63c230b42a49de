"""Which lines of a program an operation comes from, by its stack frames."""

from absl.testing import absltest, parameterized
from jaxmem_hlo.module import source_lines
from jaxmem_hlo.proto import hlo_pb2

_SITE = "/venv/lib/python3.12/site-packages"


def _index(*files: str) -> hlo_pb2.StackFrameIndex:
  """Frames of these files, from the outside in: line 1 of the first."""
  index = hlo_pb2.StackFrameIndex(file_names=files)
  for place in range(len(files)):
    index.file_locations.add(file_name_id=place + 1, line=place + 1)
    index.stack_frames.add(file_location_id=place + 1, parent_frame_id=place)
  return index


class SourceLinesTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("own_code", ["/u/train.py", "/u/model.py"], "/u/model.py:2"),
    (
      "a_package",
      ["/u/train.py", f"{_SITE}/gpt/model.py", f"{_SITE}/flax/linear.py"],
      "/u/train.py:1 via flax/linear.py:3",
    ),
    (
      "own_code_that_a_package_calls",
      ["/u/train.py", f"{_SITE}/flax/scan.py", "/u/block.py"],
      "/u/block.py:3",
    ),
    ("silent_packages", ["/u/a.py", f"{_SITE}/jax/_src/nn.py"], "/u/a.py:1"),
    ("only_a_package", [f"{_SITE}/gpt/model.py"], "gpt/model.py:1"),
    (
      "jaxmem_between",
      [
        "/u/train.py",
        "/clone/jaxmem/step_planner.py",
        f"{_SITE}/gpt/model.py",
      ],
      "gpt/model.py:3",
    ),
    (
      "a_clone_of_jaxmem",
      ["/u/jaxmem/examples/a.py"],
      "/u/jaxmem/examples/a.py:1",
    ),
    ("the_demo", ["/u/jaxmem/demo/gpt2.py"], "/u/jaxmem/demo/gpt2.py:1"),
    (
      "pythons_own",
      ["/u/a.py", "/usr/lib/python3.12/functools.py", "<frozen runpy>"],
      "/u/a.py:1",
    ),
    ("nobody", ["<frozen runpy>"], ""),
  )
  def test_names_the_users_line_and_the_packages(self, files, expected):
    found = source_lines.of_frame(_index(*files), len(files))
    self.assertEqual(found, expected)

  @parameterized.parameters(0, 7)
  def test_no_such_frame(self, frame_id):
    self.assertEqual(source_lines.of_frame(_index("/u/a.py"), frame_id), "")

  def test_a_frame_that_is_its_own_parent_ends(self):
    index = _index("<frozen runpy>")
    index.stack_frames[0].parent_frame_id = 1
    self.assertEqual(source_lines.of_frame(index, 1), "")

  def test_split_tells_the_two_lines_apart(self):
    self.assertEqual(
      source_lines.split("/u/a.py:1 via flax/b.py:2"),
      ("/u/a.py:1", "flax/b.py:2"),
    )
    self.assertEqual(source_lines.split("/u/a.py:1"), ("/u/a.py:1", ""))


if __name__ == "__main__":
  absltest.main()
