"""Files that keep plans from one start of a program to the next.

What a file holds decides which program runs, so that only the user's own files
are believed. The folder is made for the user alone (mode 0700), and is left
alone if somebody else owns it or may write to it. Files are made with mode
0600; one that another user owns, that others may read or write, or that is a
link, is not read. Each begins with a format number and a SHA-256 of its name
and content, and holds JSON, compressed: data of checked types, never code.

A file is written under another name first and then renamed, so that processes
may read and write at once, and none sees half a file. All files together take
at most 1 GiB; those that were not used for longest go first. Whatever is wrong
(damage, a full disk, a folder that cannot be written) is the same as no file:
it costs planning once more, never an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import pathlib
import secrets
import stat
import zlib
from collections.abc import Iterator

_LOG = logging.getLogger("jaxmem")
_VARIABLE = "JAXMEM_CACHE_DIR"
# Raised when what files hold, or what it means, changes.
_FORMAT = b"jaxmem plan 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_MAX_BYTES = 2**30
# A plan of a large step takes less than one MiB.
_MAX_FILE_BYTES = 2**26
_MAX_CONTENT_BYTES = 2**28
# A file takes at least that much of a disk.
_LEAST_FILE_BYTES = 4096
_SUFFIX = ".plan"
_UNFINISHED = ".tmp"


@dataclasses.dataclass(frozen=True, slots=True)
class PlanStore:
  """A folder of plans.

  Attributes:
    folder: Made when the first plan is kept.
    max_bytes: Of all files.
  """

  folder: pathlib.Path
  max_bytes: int = _MAX_BYTES

  @classmethod
  def of_user(cls) -> PlanStore | None:
    """Returns the store that the environment asks for; None if it is off.

    It is in $JAXMEM_CACHE_DIR, or $XDG_CACHE_HOME/jaxmem/plans, or
    ~/.cache/jaxmem/plans; an empty JAXMEM_CACHE_DIR switches it off.
    """
    given = os.environ.get(_VARIABLE)
    if given is not None:
      folder = os.path.expanduser(given)
      return cls(pathlib.Path(folder).absolute()) if given else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # As its specification says.
      base = os.path.expanduser("~/.cache")
    folder = pathlib.Path(base, "jaxmem", "plans")
    return cls(folder) if folder.is_absolute() else None

  def get(self, key: str) -> bytes | None:
    """Returns what was kept under a key; None if there is nothing sound.

    Args:
      key: Hexadecimal digits.
    """
    try:
      with self._opened() as folder:
        return _unpacked(key, _read(f"{key}{_SUFFIX}", folder))
    except FileNotFoundError:
      return None
    except (OSError, ValueError, zlib.error) as error:
      _LOG.debug("A remembered plan is left aside: %s", error)
      return None

  def put(self, key: str, content: bytes) -> None:
    """Keeps bytes under a key, if that is possible."""
    packed = _packed(key, content)
    if len(packed) > min(_MAX_FILE_BYTES, self.max_bytes):
      return
    try:
      self.folder.parent.mkdir(parents=True, exist_ok=True)
      with contextlib.suppress(FileExistsError):
        self.folder.mkdir(mode=0o700)
      with self._opened() as folder:
        _write(f"{key}{_SUFFIX}", packed, folder)
        _make_room(folder, self.max_bytes)
    except OSError as error:
      _LOG.debug("A plan is not remembered: %s", error)

  def forget(self, key: str) -> None:
    """Removes what was kept under a key, if that is possible."""
    with contextlib.suppress(OSError), self._opened() as folder:
      os.unlink(f"{key}{_SUFFIX}", dir_fd=folder)

  @contextlib.contextmanager
  def _opened(self) -> Iterator[int]:
    """Opens the folder, if it is the user's own.

    Yields:
      Its descriptor: files are opened within it, whatever becomes of its path.
    """
    folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
      _check_own(os.fstat(folder), self.folder, stat.S_IWGRP | stat.S_IWOTH)
      yield folder
    finally:
      os.close(folder)


def _check_own(
  found: os.stat_result, name: pathlib.Path | str, forbidden: int
) -> None:
  """Raises PermissionError if others own something, or may do too much."""
  if found.st_uid != os.geteuid():
    raise PermissionError(f"{name} belongs to another user.")
  if found.st_mode & forbidden:
    raise PermissionError(f"{name} is open to other users.")


def _read(name: str, folder: int) -> bytes:
  flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
  with open(os.open(name, flags, dir_fd=folder), "rb") as file:
    found = os.fstat(file.fileno())
    _check_own(found, name, stat.S_IRWXG | stat.S_IRWXO)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_FILE_BYTES:
      raise ValueError(f"{name} is not a file of plans.")
    packed = file.read(_MAX_FILE_BYTES)
    with contextlib.suppress(OSError):  # Where nothing can be written.
      os.utime(file.fileno())  # It was used just now.
  return packed


def _write(name: str, packed: bytes, folder: int) -> None:
  unfinished = f".{secrets.token_hex(8)}{_UNFINISHED}"
  flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
  descriptor = os.open(unfinished, flags, 0o600, dir_fd=folder)
  try:
    with open(descriptor, "wb") as file:
      file.write(packed)
    os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
  except BaseException:
    with contextlib.suppress(OSError):
      os.unlink(unfinished, dir_fd=folder)
    raise


def _make_room(folder: int, max_bytes: int) -> None:
  """Removes the files that were not used for longest, if all are too large.

  What processes left unfinished that were killed goes in its turn.
  """
  files: list[tuple[int, str, int]] = []
  for name in os.listdir(folder):
    if name.endswith((_SUFFIX, _UNFINISHED)):
      with contextlib.suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        size_bytes = max(found.st_size, _LEAST_FILE_BYTES)
        files.append((found.st_mtime_ns, name, size_bytes))
  total_bytes = sum(size_bytes for _, _, size_bytes in files)
  for _, name, size_bytes in sorted(files):
    if total_bytes <= max_bytes:
      return
    with contextlib.suppress(FileNotFoundError):
      os.unlink(name, dir_fd=folder)
    total_bytes -= size_bytes


def _packed(key: str, content: bytes) -> bytes:
  body = zlib.compress(content)
  return _FORMAT + _digest(key, body) + body


def _unpacked(key: str, packed: bytes) -> bytes:
  start = len(_FORMAT) + _DIGEST_BYTES
  body = packed[start:]
  if packed[:start] != _FORMAT + _digest(key, body):
    raise ValueError("it is damaged, or of another format.")
  unpacker = zlib.decompressobj()
  content = unpacker.decompress(body, _MAX_CONTENT_BYTES)
  if not unpacker.eof:
    raise ValueError("it is too large.")
  return content


def _digest(key: str, body: bytes) -> bytes:
  return hashlib.sha256(key.encode() + body).digest()
