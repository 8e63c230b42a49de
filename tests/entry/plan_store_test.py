"""Files of plans: whose are believed, and what becomes of bad ones."""

import contextlib
import errno
import os
import pathlib
import tempfile
import threading
from unittest import mock

from absl.testing import absltest, parameterized

from jaxmem.entry import plan_store
from jaxmem.entry.plan_store import PlanStore

_KEY = "ab" * 32
_CONTENT = b"what was planned" * 100


class _StoreTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    parent = self.enter_context(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(parent, "a", "plans")
    self.store = PlanStore(self.folder)

  @property
  def path(self):
    return self.folder / f"{_KEY}.plan"

  def assert_forgotten(self):
    """The file is ignored; a new one takes its place."""
    self.assertIsNone(self.store.get(_KEY))
    self.store.put(_KEY, _CONTENT)
    self.assertEqual(self.store.get(_KEY), _CONTENT)


class PrivateTest(_StoreTest):
  def test_nobody_else_can_read(self):
    before = os.umask(0)
    self.addCleanup(os.umask, before)
    self.store.put(_KEY, _CONTENT)
    self.assertEqual(self.store.get(_KEY), _CONTENT)
    self.assertEqual(self.folder.stat().st_mode & 0o777, 0o700)
    self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
    self.assertEqual([p.name for p in self.folder.iterdir()], [self.path.name])

  @parameterized.parameters(0o640, 0o602, 0o660)
  def test_a_file_open_to_others(self, mode):
    self.store.put(_KEY, _CONTENT)
    self.path.chmod(mode)
    self.assert_forgotten()
    self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)

  @parameterized.parameters(0o770, 0o702, 0o1777)
  def test_a_folder_that_others_may_write(self, mode):
    self.store.put(_KEY, _CONTENT)
    self.folder.chmod(mode)
    self.assertIsNone(self.store.get(_KEY))
    self.store.forget(_KEY)
    self.store.put("cd" * 32, _CONTENT)
    self.assertEqual([*self.folder.iterdir()], [self.path])

  def test_a_folder_of_somebody_else(self):
    self.store.put(_KEY, _CONTENT)
    with mock.patch.object(os, "geteuid", return_value=os.geteuid() + 1):
      self.assertIsNone(self.store.get(_KEY))
      self.store.put("cd" * 32, _CONTENT)
    self.assertEqual([*self.folder.iterdir()], [self.path])

  def test_a_file_of_somebody_else(self):
    self.store.put(_KEY, _CONTENT)
    other = os.stat_result((0o100600, 0, 0, 1, os.geteuid() + 1, *(0,) * 5))
    own = os.stat(self.folder)
    with mock.patch.object(os, "fstat", side_effect=[own, other]):
      self.assertIsNone(self.store.get(_KEY))

  def test_links_and_pipes_are_no_files(self):
    self.store.put(_KEY, _CONTENT)
    elsewhere = self.folder.parent / "elsewhere"
    self.path.rename(elsewhere)
    self.path.symlink_to(elsewhere)
    self.assert_forgotten()
    self.assertFalse(self.path.is_symlink())
    self.path.unlink()
    os.mkfifo(self.path, 0o600)
    self.assert_forgotten()


class DamagedTest(_StoreTest):
  def setUp(self):
    super().setUp()
    self.store.put(_KEY, _CONTENT)
    self.sound = self.path.read_bytes()

  def test_each_byte_counts(self):
    for position in range(len(self.sound)):
      changed = bytearray(self.sound)
      changed[position] ^= 1
      self.path.write_bytes(changed)
      self.assertIsNone(self.store.get(_KEY))
    self.assert_forgotten()

  def test_each_length_counts(self):
    for length in range(len(self.sound)):
      self.path.write_bytes(self.sound[:length])
      self.assertIsNone(self.store.get(_KEY))
    self.path.write_bytes(self.sound + b"\0")
    self.assert_forgotten()

  def test_a_file_under_another_name(self):
    other = "cd" * 32
    self.path.rename(self.folder / f"{other}.plan")
    self.assertIsNone(self.store.get(other))

  def test_another_format(self):
    with mock.patch.object(plan_store, "_FORMAT", b"jaxmem plan 0\n"):
      self.store.put(_KEY, _CONTENT)
    self.assert_forgotten()

  def test_what_unpacks_to_too_much(self):
    with mock.patch.object(plan_store, "_MAX_CONTENT_BYTES", 99):
      self.assertIsNone(self.store.get(_KEY))


class FailingTest(_StoreTest):
  def assert_nothing_happens(self, store):
    store.put(_KEY, _CONTENT)
    self.assertIsNone(store.get(_KEY))
    store.forget(_KEY)

  def test_where_no_folder_can_be(self):
    file = self.folder.parent
    file.touch()
    for folder in (file, file / "plans", pathlib.Path("/proc/none/plans")):
      self.assert_nothing_happens(PlanStore(folder))

  @parameterized.parameters("open", "replace", "listdir")
  def test_a_full_or_broken_disk(self, name):
    self.store.put("cd" * 32, _CONTENT)
    error = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(os, name, side_effect=error):
      self.store.put(_KEY, _CONTENT)
    # Nothing unfinished stays.
    names = {path.suffix for path in self.folder.iterdir()}
    self.assertEqual(names, {".plan"})
    self.assert_nothing_else_is_lost()

  def assert_nothing_else_is_lost(self):
    self.assertEqual(self.store.get("cd" * 32), _CONTENT)

  def test_a_folder_that_can_only_be_read(self):
    self.store.put(_KEY, _CONTENT)
    error = OSError(errno.EROFS, "Read-only file system")
    with mock.patch.object(os, "utime", side_effect=error):
      self.assertEqual(self.store.get(_KEY), _CONTENT)

  def test_forget(self):
    self.store.put(_KEY, _CONTENT)
    self.store.forget(_KEY)
    self.store.forget(_KEY)
    self.assertIsNone(self.store.get(_KEY))


class SizeTest(_StoreTest):
  def test_what_was_not_used_for_longest_goes_first(self):
    store = PlanStore(self.folder, max_bytes=4 * 4096)
    for number in range(4):
      store.put(f"{number:064x}", b"plan")
      path = self.folder / f"{number:064x}.plan"
      os.utime(path, (number, number))
    unfinished = self.folder / ".killed.tmp"
    unfinished.touch(mode=0o600)
    os.utime(unfinished, (0, 0))
    # Of another program: not ours to remove.
    (self.folder / "notes").touch()
    self.assertEqual(store.get(f"{0:064x}"), b"plan")
    store.put(f"{4:064x}", b"plan")
    self.assertEqual(
      sorted(path.name for path in self.folder.iterdir()),
      [*(f"{number:064x}.plan" for number in (0, 2, 3, 4)), "notes"],
    )

  def test_what_is_too_large_is_not_kept(self):
    PlanStore(self.folder, max_bytes=50).put(_KEY, os.urandom(100))
    self.assertIsNone(self.store.get(_KEY))


class ConcurrentTest(_StoreTest):
  def test_no_reader_sees_half_a_file(self):
    contents = [bytes([number]) * 50_000 for number in range(8)]
    store = PlanStore(self.folder, max_bytes=5 * 4096)
    found, errors = set(), []

    def use(number):
      try:
        for turn in range(60):
          store.put(f"{turn % 8:064x}", contents[number])
          found.add(store.get(f"{(turn + number) % 8:064x}"))
      except Exception as error:
        errors.append(error)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertEmpty(errors)
    self.assertContainsSubset(found, {None, *contents})
    self.assertGreater(len(found), 2)
    names = [path.name for path in self.folder.iterdir()]
    self.assertLessEqual(len(names), 5)
    self.assertEmpty([name for name in names if name.endswith(".tmp")])


class FolderTest(absltest.TestCase):
  def folder(self, **variables):
    with contextlib.ExitStack() as stack:
      stack.enter_context(mock.patch.dict(os.environ, variables))
      for name in {"JAXMEM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"} - {*variables}:
        os.environ.pop(name, None)
      store = PlanStore.of_user()
    return store and str(store.folder)

  def test_which(self):
    home = {"HOME": "/home/ada"}
    default = "/home/ada/.cache/jaxmem/plans"
    self.assertEqual(self.folder(**home), default)
    self.assertEqual(self.folder(**home, XDG_CACHE_HOME="relative"), default)
    self.assertEqual(
      self.folder(**home, XDG_CACHE_HOME="/fast"), "/fast/jaxmem/plans"
    )
    self.assertEqual(
      self.folder(**home, XDG_CACHE_HOME="/fast", JAXMEM_CACHE_DIR="~/plans"),
      "/home/ada/plans",
    )

  def test_off(self):
    self.assertIsNone(self.folder(HOME="/home/ada", JAXMEM_CACHE_DIR=""))
    with mock.patch.object(os.path, "expanduser", side_effect=lambda p: p):
      self.assertIsNone(self.folder())


if __name__ == "__main__":
  absltest.main()
