"""Where in a user's program an operation comes from, by its stack frames.

jax hands XLA the frames of every operation, the innermost first, without its
own. Of these two say most: the line of the user's own code, and, where that
calls an installed package, the line in there that made the operation.
"""

import re

from jaxmem_hlo.proto import hlo_pb2

# Installed packages, and Python's own library.
_INSTALLED = re.compile(r"(?:^|/)(?:site-packages|dist-packages)/")
_STANDARD = re.compile(r"/lib/python3[^/]*/|^<")
# What jaxmem itself puts between the step and the line that asks for its plan.
# That line says nothing of the step.
_OWN = re.compile(
  r"/jaxmem/(?:(?:api|batch|cli|plan_commands|step_planner)\.py$"
  r"|(?:compiler|entry|jaxpr|runtime|script|targets|versions)/)"
)
# Packages whose lines say nothing of a program.
_SILENT = re.compile(r"(?:site|dist)-packages/(?:jax|jaxlib|jaxmem|numpy)/")
_VIA = " via "


def of_frame(index: hlo_pb2.StackFrameIndex, frame_id: int) -> str:
  """Returns the lines that a stack frame stands for, or an empty text.

  Args:
    index: The frames of a module.
    frame_id: The innermost frame of an operation.

  Returns:
    "train.py:31", the innermost line outside of installed packages; and if such
    a package made the operation for it, "train.py:31 via flax/linen/a.py:5".
    Without a line of the step's own, that of the package alone.
  """
  innermost = ""
  while 0 < frame_id <= len(index.stack_frames):
    frame = index.stack_frames[frame_id - 1]
    location = index.file_locations[frame.file_location_id - 1]
    name = index.file_names[location.file_name_id - 1]
    if _OWN.search(name):
      break
    if _INSTALLED.search(name):
      if not innermost and not _SILENT.search(name):
        innermost = f"{_INSTALLED.split(name)[-1]}:{location.line}"
    elif not _STANDARD.search(name):
      line = f"{name}:{location.line}"
      return f"{line}{_VIA}{innermost}" if innermost else line
    if frame.parent_frame_id >= frame_id:
      break
    frame_id = frame.parent_frame_id
  return innermost


def split(source: str) -> tuple[str, str]:
  """Returns the user's line and that of a package; the latter may be empty."""
  line, _, package = source.partition(_VIA)
  return line, package
