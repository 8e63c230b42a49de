// The page around the two panels: zoom, pointers, search, list, tooltip.

const started = performance.now();
const MODEL = new Model(JSON.parse(byId("data").textContent));
const STATE = {
  xSpan: MODEL.numSteps,
  ySpan: MODEL.maxAddress,
  theme: readTheme(),
  colourBy: "kind",
  matches: null,
  selected: null,
  hovered: null,
  listed: null,
};
const ROWS_AT_ONCE = 100;
let rows = [];
let numShown = 0;
let frame = 0;

function byId(id) {
  return document.getElementById(id);
}

function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function makePanel(side) {
  const arena = MODEL.arenas[side];
  const section = make("section", "", "panel");
  const header = make("header");
  const plot = make("div", "", "plot");
  const peak = make(
    "button",
    `Peak ${formatBytes(arena.peakBytes)}, step ${arena.peakStep}`,
  );
  peak.type = "button";
  peak.title = "List the buffers live at the peak";
  peak.addEventListener("click", () => listStep(side, arena.peakStep));
  header.append(
    make("h2", arena.title),
    make("b", formatBytes(arena.height)),
    make("span", headline(side)),
    peak,
  );
  section.append(header, plot);
  byId("panels").append(section);
  Object.assign(section.dataset, {
    peakBytes: arena.peakBytes,
    peakStep: arena.peakStep,
    heightBytes: arena.height,
    numBuffers: arena.count,
  });
  const panel = new Panel(MODEL, side, STATE, plot);
  Object.assign(panel.over, { tabIndex: 0, ariaLabel: describe(arena) });
  panel.over.setAttribute("role", "img");
  return panel;
}

function headline(side) {
  const { count, height } = MODEL.arenas[side];
  const was = MODEL.arenas[0].height;
  const words = `temp, ${formatCount(count, "buffer")}`;
  if (side === 0 || height === was || !was) return words;
  const share = ((100 * Math.abs(was - height)) / was).toFixed(1);
  return `${words}, ${share}% ${height < was ? "less" : "more"}`;
}

function describe(arena) {
  return (
    `${arena.title}: ${formatCount(arena.count, "buffer")} in ` +
    `${formatBytes(arena.height)} over ${formatCount(arena.steps, "step")}, ` +
    `peak ${formatBytes(arena.peakBytes)} at step ${arena.peakStep}. ` +
    "Arrow keys pan, plus and minus zoom, 0 shows the whole step."
  );
}

function redraw() {
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    for (const panel of PANELS) panel.draw();
  });
}

function isZoomed() {
  return STATE.xSpan < MODEL.numSteps || STATE.ySpan < MODEL.maxAddress;
}

// Both panels keep one scale; each stays where it is but for the zoom.
function setSpans(xSpan, ySpan, fractionX, fractionY) {
  const oldX = STATE.xSpan;
  const oldY = STATE.ySpan;
  STATE.xSpan = Math.min(
    MODEL.numSteps, Math.max(xSpan, Math.min(2, MODEL.numSteps)));
  STATE.ySpan = Math.min(
    MODEL.maxAddress, Math.max(ySpan, MODEL.maxAddress / 1e6));
  for (const panel of PANELS) {
    panel.x0 += (oldX - STATE.xSpan) * fractionX;
    panel.y0 += (oldY - STATE.ySpan) * fractionY;
    panel.clamp();
  }
  byId("panels").classList.toggle("zoomed", isZoomed());
  redraw();
}

function zoomAt(panel, x, y, scaleX, scaleY) {
  const fractionX = Math.min(1, Math.max(0, (x - GUTTER) / panel.plotWidth));
  const fractionY = Math.min(1, Math.max(0, 1 - y / panel.mainHeight));
  setSpans(
    STATE.xSpan * scaleX, STATE.ySpan * scaleY, fractionX, fractionY);
}

function showAll() {
  setSpans(MODEL.numSteps, MODEL.maxAddress, 0, 0);
}

function pan(panel, dx, dy) {
  panel.x0 -= (dx / panel.plotWidth) * STATE.xSpan;
  panel.y0 += (dy / panel.mainHeight) * STATE.ySpan;
  panel.clamp();
  redraw();
}

function select(row) {
  STATE.selected = row;
  markSelected();
  for (const panel of PANELS) panel.drawOver();
}

// Zooms so that the buffer and its surroundings fill a part of each panel.
function centre(row) {
  let longest = 0;
  for (const panel of PANELS) {
    const i = row[panel.side];
    if (i < 0) continue;
    longest = Math.max(longest, panel.arena.end[i] - panel.arena.start[i]);
  }
  const xSpan = Math.max(longest * 2.5, MODEL.numSteps / 25, 12);
  const ySpan = Math.max(MODEL.sizeOf(row) * 6, MODEL.maxAddress / 60);
  setSpans(xSpan, ySpan, 0.5, 0.5);
  for (const panel of PANELS) {
    const { arena } = panel;
    const i = row[panel.side];
    if (i < 0) continue;
    panel.x0 = (arena.start[i] + arena.end[i] - STATE.xSpan) / 2;
    panel.y0 = arena.offset[i] + (arena.size[i] - STATE.ySpan) / 2;
    panel.clamp();
  }
  select(row);
  redraw();
}

function range(arena, i) {
  return i < 0 ? "absent" : `[${arena.start[i]}, ${arena.end[i]})`;
}

function showTip(row, side, x, y) {
  const tip = byId("tip");
  const arena = MODEL.arenas[side];
  const i = row[side];
  const exact = arena.size[i].toLocaleString("en");
  const address = arena.offset[i].toLocaleString("en");
  const lines = [
    [`${formatBytes(arena.size[i])} (${exact} bytes)`, ""],
    [`${MODEL.kinds[arena.kind[i]]} at address ${address}`, ""],
    ...MODEL.arenas.map((other, k) => [
      `${other.title}: steps ${range(other, row[k])}`, ""]),
    [MODEL.sources[arena.source[i]], "quiet"],
  ].filter(([text]) => text);
  tip.replaceChildren(
    make("b", MODEL.names[arena.name[i]]),
    ...lines.map(([text, className]) => make("div", text, className)),
  );
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const right = x + 16 + width < innerWidth ? x + 16 : x - 16 - width;
  const below = y + 16 + height < innerHeight ? y + 16 : y - 16 - height;
  const left = Math.max(4, Math.min(right, innerWidth - width - 4));
  tip.style.transform = `translate(${left}px, ${Math.max(4, below)}px)`;
}

function hideTip() {
  byId("tip").hidden = true;
}

function hover(panel, event, slack) {
  const i = panel.hit(event.offsetX, event.offsetY, slack);
  const row = i < 0 ? null : MODEL.row(panel.side, i);
  if (row) showTip(row, panel.side, event.clientX, event.clientY);
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
  const step = Math.floor(panel.stepAt(event.offsetX));
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
    0: showAll,
  };
  if (!Object.hasOwn(actions, event.key) || event.ctrlKey || event.metaKey) {
    return;
  }
  event.preventDefault();
  actions[event.key]();
}

function listStep(side, step) {
  const arena = MODEL.arenas[side];
  if (!arena.steps) return;
  STATE.listed = { side, step };
  const found = MODEL.rowsLiveAt(side, step);
  const where = step === arena.peakStep ? "the peak, step" : "step";
  showList(
    `${arena.title} at ${where} ${step}: ` +
      `${formatBytes(arena.live[step])} live, ` +
      formatCount(found.length, "buffer"),
    found,
  );
  for (const panel of PANELS) panel.drawOver();
}

function search() {
  STATE.matches = MODEL.search(byId("search").value);
  redraw();
  if (!STATE.matches) {
    byId("found").textContent = "";
    listDefault();
    return;
  }
  const found = MODEL.rowsMatching(STATE.matches);
  const total = formatBytes(MODEL.numBytes(found));
  const words = `${formatCount(found.length, "buffer")}, ${total}`;
  byId("found").textContent = words;
  STATE.listed = null;
  showList(`Buffers that match the search: ${words}`, found);
}

function listDefault() {
  listStep(1, MODEL.arenas[1].peakStep);
}

function showList(title, found) {
  rows = found;
  numShown = 0;
  byId("list-title").textContent = title;
  byId("list").tBodies[0].replaceChildren();
  showMore();
}

function showMore() {
  const body = byId("list").tBodies[0];
  const next = rows.slice(numShown, numShown + ROWS_AT_ONCE);
  body.append(...next.map(makeRow));
  numShown += next.length;
  const left = rows.length - numShown;
  byId("more").hidden = left === 0;
  byId("more").textContent =
    `Show ${Math.min(left, ROWS_AT_ONCE)} of ${left} more`;
  markSelected();
}

function makeRow(row) {
  const side = MODEL.sideOf(row);
  const arena = MODEL.arenas[side];
  const i = row[side];
  const line = make("tr");
  const name = make("td");
  const button = make("button", MODEL.names[arena.name[i]]);
  button.type = "button";
  button.addEventListener("click", () => {
    centre(row);
    byId("panels").scrollIntoView({ block: "nearest" });
  });
  name.append(button);
  line.append(
    name,
    make("td", formatBytes(arena.size[i]), "number"),
    ...MODEL.arenas.map((other, k) =>
      make("td", range(other, row[k]), "number wide")),
    make("td", MODEL.sources[arena.source[i]], "source"),
  );
  return line;
}

function markSelected() {
  const { selected } = STATE;
  [...byId("list").tBodies[0].rows].forEach((line, k) => {
    const same = selected && rows[k].every((i, s) => i === selected[s]);
    line.classList.toggle("selected", Boolean(same));
  });
}

function makeHead() {
  const line = make("tr");
  const titles = MODEL.arenas.map((arena) => `${arena.title} steps`);
  line.append(
    make("th", "Buffer"),
    make("th", "Size", "number"),
    ...titles.map((title) => make("th", title, "number wide")),
    make("th", "Source"),
  );
  for (const cell of line.cells) cell.scope = "col";
  byId("list").tHead.append(line);
}

function drawLegend() {
  const { theme, colourBy } = STATE;
  const items = [];
  const add = (colour, words) => {
    const item = make("li");
    const swatch = make("i");
    swatch.style.background = colour;
    item.append(swatch, words);
    items.push(item);
  };
  if (colourBy === "kind") {
    const used = new Set();
    for (const arena of MODEL.arenas) arena.kind.forEach((k) => used.add(k));
    [...used].sort().forEach((k) => add(theme.kind[k], MODEL.kinds[k]));
  } else {
    const round = (limit) => formatBytes(limit).replace(/\.0+ /, " ");
    add(theme.size[0], `< ${round(MODEL.sizeLimits[0])}`);
    MODEL.sizeLimits.forEach((limit, k) =>
      add(theme.size[k + 1], `≥ ${round(limit)}`));
  }
  if (MODEL.bound !== null) {
    const item = make("li");
    item.append(make("i", "", "line"), "lower bound");
    items.push(item);
  }
  byId("legend").replaceChildren(...items);
}

function applyTheme() {
  STATE.theme = readTheme();
  drawLegend();
  redraw();
}

function listenToPage() {
  byId("search").addEventListener("input", search);
  byId("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && STATE.matches && rows.length) centre(rows[0]);
  });
  byId("colour").addEventListener("change", (event) => {
    STATE.colourBy = event.target.value;
    drawLegend();
    redraw();
  });
  byId("reset").addEventListener("click", showAll);
  byId("more").addEventListener("click", showMore);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      hideTip();
      select(null);
    } else if (event.key === "/" && !event.target.matches("input, select")) {
      event.preventDefault();
      byId("search").focus();
    }
  });
  document.addEventListener("scroll", hideTip, { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener(
    "change", applyTheme);
  // Drawn at once: a resized canvas is empty until then.
  const observer = new ResizeObserver(() => {
    for (const panel of PANELS) {
      if (panel.resize()) panel.draw();
    }
  });
  for (const panel of PANELS) observer.observe(panel.plot);
}

const PANELS = [makePanel(0), makePanel(1)];
for (const panel of PANELS) {
  panel.resize();
  panel.draw();
  listen(panel);
}
makeHead();
drawLegend();
listDefault();
listenToPage();
document.body.dataset.lowerBoundBytes = MODEL.bound ?? "";
document.body.dataset.renderMs = (performance.now() - started).toFixed(1);
document.body.dataset.ready = "1";
