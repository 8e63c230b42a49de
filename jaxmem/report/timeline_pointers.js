// Pointers and keys on a panel: what is there, zoom, pan.

function hover(panel, event, slack) {
  const { offsetX, offsetY, clientX, clientY } = event;
  const i = panel.hit(offsetX, offsetY, slack);
  const row = i < 0 ? null : MODEL.row(panel.side, i);
  const lane = row ? null : panel.lanes.describe(offsetX, offsetY);
  if (row) showBuffer(row, panel.side, clientX, clientY);
  else if (lane) showTip(clientX, clientY, lane);
  else hideTip();
  STATE.hovered = row;
  for (const other of PANELS) other.drawOver();
  return row;
}

function click(panel, event) {
  const touch = event.pointerType !== "mouse";
  if (event.offsetX < GUTTER) return;
  if (event.offsetY <= panel.mainHeight) {
    select(hover(panel, event, touch ? 12 : 3));
    return;
  }
  const { arena } = panel;
  const peakX = panel.x(arena.peakStep + 0.5);
  const near = Math.abs(event.offsetX - peakX) < (touch ? 16 : 7);
  const step = panel.stepAt(event.offsetX);
  const last = arena.steps - 1;
  listStep(
    panel.side, near ? arena.peakStep : Math.max(0, Math.min(step, last)));
}

function listen(panel) {
  const canvas = panel.over;
  const pointers = new Map();
  let moved = 0;
  let lastTap = null;
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
    if (pointers.size === 1) moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const from = pointers.get(event.pointerId);
    if (!from) {
      if (event.pointerType === "mouse") hover(panel, event, 2);
      return;
    }
    const to = [event.offsetX, event.offsetY];
    moved += Math.hypot(to[0] - from[0], to[1] - from[1]);
    if (moved < 5) return;
    hideTip();
    if (pointers.size > 1) pinch(panel, pointers, event.pointerId, to);
    else pan(panel, to[0] - from[0], to[1] - from[1]);
    pointers.set(event.pointerId, to);
  });
  canvas.addEventListener("pointerup", (event) => {
    const tapped = pointers.delete(event.pointerId) && moved < 5;
    if (!tapped || pointers.size) return;
    const tap = [event.timeStamp, event.offsetX, event.offsetY];
    if (lastTap && isDouble(lastTap, tap)) {
      lastTap = null;
      showAll();
      return;
    }
    lastTap = tap;
    click(panel, event);
  });
  canvas.addEventListener("pointercancel", (event) => {
    pointers.delete(event.pointerId);
  });
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") hover(panel, { offsetX: -1 }, 0);
  });
  canvas.addEventListener("wheel", (event) => wheel(panel, event), {
    passive: false,
  });
  canvas.addEventListener("keydown", (event) => key(panel, event));
}

function isDouble([time, x, y], [nextTime, nextX, nextY]) {
  return nextTime - time < 350 && Math.hypot(nextX - x, nextY - y) < 24;
}

function pinch(panel, pointers, id, to) {
  const [other] = [...pointers].filter(([key]) => key !== id);
  const from = pointers.get(id);
  const [x, y] = other[1];
  const was = Math.hypot(from[0] - x, from[1] - y);
  const is = Math.hypot(to[0] - x, to[1] - y);
  if (was < 1 || is < 1) return;
  zoomAt(panel, (to[0] + x) / 2, (to[1] + y) / 2, was / is, was / is);
}

// Over the address axis only addresses are scaled, over the curve only steps.
function wheel(panel, event) {
  const lines = event.deltaMode === 1 ? 16 : 1;
  const delta = (event.deltaY || event.deltaX) * lines;
  if (delta > 0 && !isZoomed()) return;
  event.preventDefault();
  hideTip();
  const scale = Math.exp(Math.max(-120, Math.min(120, delta)) * 0.003);
  const onAxis = event.offsetX < GUTTER;
  const onCurve = event.offsetY > panel.mainHeight;
  const scaleX = onAxis && !onCurve ? 1 : scale;
  const scaleY = onCurve || event.shiftKey ? 1 : scale;
  zoomAt(panel, event.offsetX, event.offsetY, scaleX, scaleY);
}

function key(panel, event) {
  const middle = [GUTTER + panel.plotWidth / 2, panel.mainHeight / 2];
  const actions = {
    ArrowLeft: () => pan(panel, 60, 0),
    ArrowRight: () => pan(panel, -60, 0),
    ArrowUp: () => pan(panel, 0, 60),
    ArrowDown: () => pan(panel, 0, -60),
    "+": () => zoomAt(panel, ...middle, 0.8, 0.8),
    "=": () => zoomAt(panel, ...middle, 0.8, 0.8),
    "-": () => zoomAt(panel, ...middle, 1.25, 1.25),
  };
  if (!Object.hasOwn(actions, event.key) || event.ctrlKey || event.metaKey) {
    return;
  }
  event.preventDefault();
  actions[event.key]();
}
