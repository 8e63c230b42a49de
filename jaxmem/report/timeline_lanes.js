// Lanes of time below the live bytes: kernels, and each link that is used.

const LANE = 20;
const ROW = 11;
const LANE_GAP = 5;
// Transfers under way at once have rows of their own, up to so many.
const MAX_ROWS = 3;
const LANE_TITLES = {
  kernels: "compute",
  collectives: "network",
  "to host": "to host",
  "from host": "from host",
};

// The first free row of each span, the last one for what finds none.
function packed(spans) {
  const ends = [];
  return spans
    .toSorted((a, b) => a.start - b.start || a.end - b.end)
    .map((span) => {
      let row = ends.findIndex((end) => end <= span.start);
      if (row < 0) row = Math.min(ends.length, MAX_ROWS - 1);
      ends[row] = Math.max(ends[row] ?? 0, span.end);
      return { ...span, row };
    });
}

// The lanes that either side has anything in, with room for both sides.
function makeLanes(model) {
  const lanes = [];
  let top = 0;
  const add = (key, height, spans) => {
    lanes.push({ key, top, height, spans });
    top += height + LANE_GAP;
  };
  if (model.maxSeconds > 0) add("kernels", LANE, []);
  for (const link of LINKS) {
    const spans = model.arenas.map((arena) =>
      packed(arena.spans.filter((span) => span.link === link)));
    const rows = Math.max(0, ...spans.flat().map((span) => span.row + 1));
    if (rows) add(link, rows * ROW, spans);
  }
  return { lanes, height: top };
}

class Lanes {
  // `panel` places steps; `lanes` is what makeLanes returned.
  constructor(panel, { lanes, height }) {
    this.panel = panel;
    this.lanes = lanes;
    this.height = height;
    this.most = Math.max(...panel.model.arenas.map(
      (arena) => arena.kernels.reduce((a, b) => Math.max(a, b), 0)));
  }

  draw(context) {
    const { panel } = this;
    const { theme } = panel.state;
    for (const lane of this.lanes) {
      const top = panel.lanesTop + lane.top;
      context.fillStyle = theme.grid;
      context.globalAlpha = 0.55;
      context.fillRect(GUTTER, top, panel.plotWidth, lane.height);
      context.globalAlpha = 1;
      const middle = top + lane.height / 2;
      panel.text(
        context, LANE_TITLES[lane.key], GUTTER - 6, middle, theme.quiet,
        "right");
      panel.clipped(context, top, lane.height, () => {
        if (lane.key === "kernels") this.drawKernels(context, top);
        else this.drawSpans(context, lane, top);
      });
    }
  }

  // By steps a bar is as high as its step is long; in time, as much of a pixel
  // as kernels take.
  drawKernels(context, top) {
    const { arena, plotWidth, state } = this.panel;
    const columns = new Float64Array(Math.ceil(plotWidth) + 1);
    const scale = plotWidth / state.xSpan;
    const first = Math.max(0, arena.stepAt(this.panel.x0) - 1);
    for (let step = first; step < arena.kernels.length; step += 1) {
      const seconds = arena.kernels[step];
      const left = (arena.at(step) - this.panel.x0) * scale;
      if (left > plotWidth) break;
      if (!seconds) continue;
      const right = (arena.at(step + 1) - this.panel.x0) * scale;
      const last = Math.min(columns.length, Math.max(right, left + 1));
      for (let x = Math.max(0, Math.floor(left)); x < last; x += 1) {
        if (arena.inTime) {
          columns[x] += Math.min(x + 1, right) - Math.max(x, left);
        } else {
          columns[x] = Math.max(columns[x], Math.sqrt(seconds / this.most));
        }
      }
    }
    context.fillStyle = state.theme.busy;
    columns.forEach((share, x) => {
      if (share <= 0) return;
      const height = Math.max(1.5, Math.min(1, share) * LANE);
      context.fillRect(GUTTER + x, top + LANE - height, 1, height);
    });
  }

  drawSpans(context, lane, top) {
    const { panel } = this;
    const { theme } = panel.state;
    for (const span of lane.spans[panel.side]) {
      const left = panel.x(span.start);
      const right = Math.max(panel.x(span.end), left + 2);
      if (right < GUTTER || left > GUTTER + panel.plotWidth) continue;
      const y = top + span.row * ROW;
      context.fillStyle = span.isSynchronous ? theme.exposed : theme.hidden;
      context.fillRect(left, y, right - left, ROW - 2);
      if (span.isSynchronous || !span.exposed) continue;
      const wait = Math.min(panel.x(span.end - 1), right - 2);
      context.fillStyle = theme.exposed;
      context.fillRect(wait, y, right - wait, ROW - 2);
    }
  }

  // What a point in the lanes shows, in lines; null outside of them.
  describe(x, y) {
    const { panel } = this;
    const lane = this.lanes.find(({ top, height }) =>
      y >= panel.lanesTop + top && y < panel.lanesTop + top + height);
    if (!lane || x < GUTTER) return null;
    const { arena } = panel;
    if (lane.key === "kernels") {
      const step = Math.min(panel.stepAt(x), arena.steps - 1);
      if (step < 0 || !arena.kernels[step]) return null;
      return [
        `step ${step.toLocaleString("en")}`,
        `${formatSeconds(arena.kernels[step])} of kernels`,
        `begins at ${formatSeconds(arena.clock[step])}`,
      ];
    }
    const row = Math.floor((y - panel.lanesTop - lane.top) / ROW);
    const span = lane.spans[panel.side].findLast((each) =>
      each.row === row && panel.x(each.start) - 1 <= x &&
      x <= Math.max(panel.x(each.end), panel.x(each.start) + 2) + 1);
    if (!span) return null;
    const hidden = Math.max(0, span.seconds - span.exposed);
    return [
      span.name,
      `${LANE_TITLES[lane.key]}, ` +
        (span.isSynchronous ? "nothing runs beside it" : "asynchronous"),
      `takes ${formatSeconds(span.seconds)}: ${formatSeconds(hidden)} hidden, ` +
        `${formatSeconds(span.exposed)} exposed`,
      `steps [${span.start}, ${span.end})`,
      span.source,
    ];
  }
}

// One line for each side: what its time goes to.
function timeSummary(arena) {
  if (!arena.total) return "";
  const { kernels, links } = arena.times();
  const words = [
    `${formatSeconds(arena.total)} by estimate: compute ` +
      formatSeconds(kernels),
  ];
  for (const { link, count, seconds, exposed } of links) {
    if (!count) continue;
    words.push(
      `${LANE_TITLES[link]} ${formatSeconds(seconds)} ` +
        `(${formatSeconds(exposed)} exposed)`);
  }
  return words.join(", ");
}
