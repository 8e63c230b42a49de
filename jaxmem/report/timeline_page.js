// The page around the two panels: zoom, pointers, tooltip.

const started = performance.now();
const MODEL = new Model(JSON.parse(byId("data").textContent));
const STATE = {
  xSpan: MODEL.extent,
  ySpan: MODEL.maxAddress,
  theme: readTheme(),
  colourBy: "kind",
  colours: [],
  classes: [],
  chosen: null,
  matches: null,
  found: -1,
  selected: null,
  hovered: null,
  listed: null,
};
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
  const lanes = makeLanes(MODEL);
  plot.style.setProperty("--lanes", `${lanes.height}px`);
  section.append(header, make("p", timeSummary(arena), "times"), plot);
  byId("panels").append(section);
  Object.assign(section.dataset, {
    peakBytes: arena.peakBytes,
    peakStep: arena.peakStep,
    heightBytes: arena.height,
    numBuffers: arena.count,
  });
  const panel = new Panel(MODEL, side, STATE, plot, lanes);
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
    `${timeSummary(arena)} ` +
    "Arrow keys pan, plus and minus zoom, p shows the peak, 0 the whole step."
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
  return STATE.xSpan < MODEL.extent || STATE.ySpan < MODEL.maxAddress;
}

// Both panels keep one scale; each stays where it is but for the zoom.
function setSpans(xSpan, ySpan, fractionX, fractionY) {
  const oldX = STATE.xSpan;
  const oldY = STATE.ySpan;
  const { extent, numSteps, maxAddress } = MODEL;
  STATE.xSpan = Math.min(
    extent, Math.max(xSpan, Math.min(1, 2 / numSteps) * extent));
  STATE.ySpan = Math.min(maxAddress, Math.max(ySpan, maxAddress / 1e6));
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
  setSpans(MODEL.extent, MODEL.maxAddress, 0, 0);
}

// Each panel goes to its own peak, as wide as a few buffers live there.
function zoomToPeak() {
  const { extent, numSteps, maxAddress } = MODEL;
  setSpans(Math.max(extent / 12, (12 / numSteps) * extent), maxAddress, 0, 0);
  for (const panel of PANELS) {
    const { arena } = panel;
    panel.x0 = arena.at(arena.peakStep + 0.5) - STATE.xSpan / 2;
    panel.clamp();
  }
  listDefault();
}

function pan(panel, dx, dy) {
  panel.x0 -= (dx / panel.plotWidth) * STATE.xSpan;
  panel.y0 += (dy / panel.mainHeight) * STATE.ySpan;
  panel.clamp();
  redraw();
}

function select(row) {
  STATE.selected = row;
  TABLE.render();
  for (const panel of PANELS) panel.drawOver();
}

// Zooms so that the buffer and its surroundings fill a part of each panel.
function centre(row) {
  const ofRow = PANELS.filter((panel) => row[panel.side] >= 0);
  const longest = Math.max(...ofRow.map(({ arena, side }) =>
    arena.right[row[side]] - arena.left[row[side]]));
  const { extent, numSteps, maxAddress } = MODEL;
  const xSpan = Math.max(
    longest * 2.5, extent / 25, (12 / numSteps) * extent);
  setSpans(xSpan, Math.max(MODEL.sizeOf(row) * 6, maxAddress / 60), 0.5, 0.5);
  for (const panel of ofRow) {
    const { arena } = panel;
    const i = row[panel.side];
    panel.x0 = (arena.left[i] + arena.right[i] - STATE.xSpan) / 2;
    panel.y0 = arena.offset[i] + (arena.size[i] - STATE.ySpan) / 2;
    panel.clamp();
  }
  select(row);
  redraw();
}

function range(arena, i) {
  return i < 0 ? "absent" : `[${arena.start[i]}, ${arena.end[i]})`;
}

function showBuffer(row, side, x, y) {
  const arena = MODEL.arenas[side];
  const i = row[side];
  const exact = arena.size[i].toLocaleString("en");
  const address = arena.offset[i].toLocaleString("en");
  const operation = MODEL.operations[arena.operation[i]];
  const module = MODEL.modules[arena.module[i]];
  showTip(x, y, [
    MODEL.names[arena.name[i]],
    `${formatBytes(arena.size[i])} (${exact} bytes)`,
    `${MODEL.kinds[arena.kind[i]]} at address ${address}`,
    ...MODEL.arenas.map((other, k) =>
      `${other.title}: steps ${range(other, row[k])}`),
    [module, operation].filter(Boolean).join(": "),
    MODEL.sources[arena.source[i]],
  ]);
}

// The first line is the title.
function showTip(x, y, [title, ...lines]) {
  const tip = byId("tip");
  tip.replaceChildren(
    make("b", title),
    ...lines.filter(Boolean).map((text) => make("div", text)),
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

// Both panels first: each draws what the other has, too.
const PANELS = [];
const TABLE = new BufferTable(
  MODEL, byId("list"), byId("rows"), (row) => {
    centre(row);
    byId("panels").scrollIntoView({ block: "nearest" });
  });
PANELS.push(makePanel(0), makePanel(1));
setColours();
for (const panel of PANELS) {
  panel.resize();
  panel.draw();
  listen(panel);
}
// Drawn at once: a resized canvas is empty until then.
const OBSERVER = new ResizeObserver(() => {
  for (const panel of PANELS) {
    if (panel.resize()) panel.draw();
  }
});
for (const panel of PANELS) OBSERVER.observe(panel.plot);
listDefault();
listenToPage();
for (const table of document.querySelectorAll("table.sortable")) {
  makeSortable(table);
}
for (const element of document.querySelectorAll(".timed")) {
  element.hidden = !(MODEL.maxSeconds > 0);
}
document.body.dataset.lowerBoundBytes = MODEL.bound ?? "";
document.body.dataset.renderMs = (performance.now() - started).toFixed(1);
document.body.dataset.ready = "1";
