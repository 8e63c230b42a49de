"""Pages in a real Chromium: what their scripts see, and what they look like."""

import base64
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
from typing import Any, NoReturn

from absl.testing import parameterized

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
  "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
  "--no-first-run --disable-background-networking --disable-component-update "
  "--disable-sync --enable-logging=stderr --v=0 --hide-scrollbars"
).split()
# Scripts that wait are not waited for; the clock of a page is Chromium's own.
_VIRTUAL = "--virtual-time-budget=5000"
_DARK = "--blink-settings=preferredColorScheme=0"

# Runs events through the page's own listeners.
_FIRE = """
function fire(panel, type, x, y, more = {}) {
  const box = panel.over.getBoundingClientRect();
  const Event = type === "wheel" ? WheelEvent : PointerEvent;
  panel.over.dispatchEvent(new Event(type, {
    pointerId: 1, pointerType: "mouse", bubbles: true, cancelable: true,
    clientX: box.left + x, clientY: box.top + y, ...more }));
}
function tap(panel, x, y) {
  fire(panel, "pointerdown", x, y);
  fire(panel, "pointerup", x, y);
}
function press(element, key, more = {}) {
  element.dispatchEvent(new KeyboardEvent(
    "keydown", { key, bubbles: true, cancelable: true, ...more }));
}
function type(words) {
  byId("search").value = words;
  byId("search").dispatchEvent(new Event("input"));
}
function inside(panel, name) {
  const i = panel.arena.find(MODEL.names.indexOf(name), 0);
  const [left, top, width, height] = panel.box(i, 1);
  return [left + 0.7 * width, top + 0.8 * height];
}
const text = (id) => byId(id).innerText;
const lines = () => [...byId("list").tBodies[0].rows].filter(
  (line) => line.dataset.place);
const names = () => lines().map((line) => line.cells[0].innerText);
const heads = () => [...byId("list").tHead.rows[0].cells];
"""
# Counts the pixels of an image by colour.
_COUNT = """<!doctype html><body><script>
const image = new Image();
image.onload = () => {
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  const counts = {};
  for (let i = 0; i < data.length; i += 4) {
    const rgb = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
    const hex = "#" + rgb.toString(16).padStart(6, "0");
    counts[hex] = (counts[hex] ?? 0) + 1;
  }
  document.body.dataset.observed = JSON.stringify(counts);
};
image.src = "data:image/png;base64,PNG";
</script>"""


def _go_without(reason: str) -> NoReturn:
  """Skips a test, or fails it where CI=... promises that there is a browser."""
  if os.environ.get("CI"):
    raise AssertionError(f"{reason} Under CI these tests must run.")
  raise unittest.SkipTest(reason)


class BrowserTest(parameterized.TestCase):
  """Loads pages from disk in a real browser, without a network."""

  browser: str = ""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    found = os.environ.get("CHROMIUM") or next(
      filter(None, map(shutil.which, _BROWSERS)), None
    )
    if found is None:
      _go_without("No Chromium here; install it or set CHROMIUM to its path.")
    cls.browser = found
    try:
      document, _ = cls.open("<!doctype html><p id=started>")
    except (OSError, subprocess.TimeoutExpired) as error:
      _go_without(f"{found} does not run here: {error}.")
    if 'id="started"' not in document:
      _go_without(f"{found} --headless --dump-dom prints nothing.")

  @classmethod
  def _run(cls, page: str, flags: list[str]) -> tuple[str, list[str], bytes]:
    """Returns what it prints, what pages logged, and the picture if any."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
      path = pathlib.Path(folder, "page.html")
      path.write_text(page, encoding="utf-8")
      command = [cls.browser, *_FLAGS, f"--user-data-dir={folder}/profile"]
      picture = pathlib.Path(folder, "picture.png")
      flags = [flag.replace("PICTURE", str(picture)) for flag in flags]
      done = subprocess.run(
        [*command, *flags, path.as_uri()],
        capture_output=True,
        timeout=120,
        check=False,
      )
      png = picture.read_bytes() if picture.exists() else b""
    log = done.stderr.decode(errors="replace").splitlines()
    logged = [line for line in log if "CONSOLE" in line]
    return done.stdout.decode(), logged, png

  @classmethod
  def open(cls, page: str, *, is_timed: bool = False) -> tuple[str, list[str]]:
    """Returns the document after its scripts ran, and what they logged.

    Args:
      page: HTML.
      is_timed: Whether `performance.now()` is to tell real time.
    """
    flags = ["--window-size=1400,900", "--dump-dom"]
    if not is_timed:
      flags.append(_VIRTUAL)
    document, logged, _ = cls._run(page, flags)
    return document, logged

  def observe(
    self,
    page: str,
    expressions: dict[str, str],
    actions: str = "",
    frame_width: int | None = None,
    *,
    is_timed: bool = False,
  ) -> dict[str, Any]:
    """Returns the values of JavaScript expressions after some actions.

    A window has a least width; a frame in it can be as narrow as a phone.
    """
    pairs = ", ".join(f"{name}: {code}" for name, code in expressions.items())
    script = (
      f"{_FIRE}\n(async () => {{ {actions}\n"
      "window.top.document.body.dataset.observed = JSON.stringify("
      f"[document.body.dataset.ready, {{ {pairs} }}]); }})();"
    )
    probe = page.replace("</body>", f"<script>{script}</script></body>")
    if frame_width is not None:
      probe = (
        f'<!doctype html><body><iframe width="{frame_width}" height="844" '
        f'srcdoc="{html.escape(probe)}"></iframe>'
      )
    document, console = self.open(probe, is_timed=is_timed)
    # Chromium's own advice on reading canvases, as tests do, is no error.
    console = [line for line in console if "Canvas2D: Multiple" not in line]
    self.assertEmpty(console)
    ready, values = _observed(document)
    self.assertEqual(ready, "1")
    return values

  def colours(
    self, page: str, *, width: int, height: int, is_dark: bool = False
  ) -> dict[str, float]:
    """Returns the colours of a screenshot, and their shares of its pixels."""
    flags = [_VIRTUAL, "--screenshot=PICTURE"]
    flags.append(f"--window-size={width},{height}")
    if is_dark:
      flags.append(_DARK)
    _, console, png = self._run(page, flags)
    self.assertEmpty(console)
    self.assertStartsWith(png, b"\x89PNG")
    encoded = base64.b64encode(png).decode()
    document, _ = self.open(_COUNT.replace("PNG", encoded))
    counts = _observed(document)
    total = sum(counts.values())
    return {colour: count / total for colour, count in counts.items()}


def _observed(document: str) -> Any:
  observed = re.search(r'data-observed="([^"]*)"', document)
  assert observed is not None, document[-2000:]
  return json.loads(html.unescape(observed[1]))
