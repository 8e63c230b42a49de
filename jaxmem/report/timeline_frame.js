// What is drawn around the buffers of a panel: axes, tops, curve and peak.

function stepTicks(panel) {
  const { x0, model, plotWidth } = panel;
  const { xSpan } = panel.state;
  const count = plotWidth / 80;
  if (model.axis === "steps") {
    const at = ticks(x0, x0 + xSpan, count, 1, 1).values;
    return at.map((step) => [step, step.toLocaleString("en")]);
  }
  const at = ticks(x0, x0 + xSpan, count, 1, 0).values;
  return at.map((seconds) => [seconds, formatSeconds(seconds)]);
}

function drawGrid(panel, context) {
  const { theme, xSpan, ySpan } = panel.state;
  const right = GUTTER + panel.plotWidth;
  const bottom = panel.axisTop;
  const rows = panel.mainHeight / 45;
  for (const [at, label] of byteTicks(panel.y0, panel.y0 + ySpan, rows)) {
    const y = Math.round(panel.y(at)) + 0.5;
    panel.line(context, GUTTER, y, right, y, theme.grid);
    const inside = Math.max(7, Math.min(y, panel.mainHeight - 2));
    panel.text(context, label, GUTTER - 6, inside, theme.quiet, "right");
  }
  for (const [at, label] of byteTicks(0, panel.model.maxLive, 2)) {
    const y = Math.round(panel.yLive(at)) + 0.5;
    panel.line(context, GUTTER, y, right, y, theme.grid);
    const inside = Math.max(panel.stripTop + 6, y - (at ? 0 : 5));
    panel.text(context, label, GUTTER - 6, inside, theme.quiet, "right");
  }
  for (const [at, label] of stepTicks(panel)) {
    const place = ((at - panel.x0) / xSpan) * panel.plotWidth;
    const x = Math.round(GUTTER + place) + 0.5;
    panel.line(context, x, 0, x, panel.mainHeight, theme.grid);
    panel.line(context, x, bottom, x, bottom + 4, theme.quiet);
    const inside = Math.min(x, panel.width - 2 - label.length * 3.2);
    panel.text(context, label, inside, bottom + 11, theme.quiet, "center");
  }
  const words =
    panel.model.axis === "time" ? "estimated time" : "schedule step";
  const middle = GUTTER + panel.plotWidth / 2;
  panel.text(context, words, middle, bottom + 26, theme.quiet, "center");
  panel.line(context, GUTTER, bottom, right, bottom, theme.quiet);
  const floor = panel.mainHeight + 0.5;
  panel.line(context, GUTTER, floor, right, floor, theme.quiet);
  drawTitle(panel, context, "address", panel.mainHeight / 2);
  drawTitle(panel, context, "live bytes", panel.stripTop + STRIP / 2);
}

function drawTitle(panel, context, words, y) {
  context.save();
  context.translate(8, y);
  context.rotate(-Math.PI / 2);
  panel.text(context, words, 0, 0, panel.state.theme.quiet, "center");
  context.restore();
}

// What the second arena no longer needs, hatched up to the first one's top.
function drawSaving(panel, context) {
  const { theme } = panel.state;
  const before = panel.model.arenas[0].top;
  const saved = before - panel.arena.top;
  if (panel.side === 0 || saved <= 0) return;
  const top = panel.y(before);
  const bottom = panel.y(panel.arena.top);
  const right = GUTTER + panel.plotWidth;
  context.save();
  context.beginPath();
  context.rect(GUTTER, top, panel.plotWidth, bottom - top);
  context.clip();
  const low = Math.min(bottom, panel.mainHeight);
  const high = Math.max(top, 0);
  const lean = low - high;
  for (let x = GUTTER - lean; x < right; x += 9) {
    panel.line(context, x, low, x + lean, high, theme.rule);
  }
  context.restore();
  panel.line(context, GUTTER, top, right, top, theme.quiet, [5, 4]);
  const { title } = panel.model.arenas[0];
  const words = `${title} ${formatBytes(before)}`;
  panel.text(context, words, right - 6, top - 9, theme.quiet, "right");
  if (lean < 34) return;
  const middle = GUTTER + panel.plotWidth / 2;
  panel.text(
    context, `${formatBytes(saved)} less`, middle, (low + high) / 2,
    theme.ink, "center");
}

function drawBands(panel, context) {
  const { theme } = panel.state;
  const right = GUTTER + panel.plotWidth;
  panel.arena.bands.forEach(([name, offset, size], k) => {
    const top = panel.y(offset + size);
    const highest = offset + size >= panel.arena.top;
    const edge = k === 0 || highest;
    panel.line(
      context, GUTTER, top, right, top, edge ? theme.ink : theme.surface);
    if (panel.y(offset) - top < 14) return;
    const words = `${name} ${formatBytes(size)}`;
    if (k === 0 && highest) {
      panel.text(context, words, GUTTER + 6, top - 9, theme.ink);
    } else {
      panel.text(context, words, right - 6, top + 9, theme.ink, "right");
    }
  });
}

// The curve has as many corners as it has pixels, or fewer: of the steps in
// one pixel the most live bytes count.
function drawLive(panel, context) {
  const { theme } = panel.state;
  const { live } = panel.arena;
  const first = Math.max(0, panel.stepAt(GUTTER));
  const path = new Path2D();
  const floor = panel.yLive(0);
  const start = panel.x(first);
  path.moveTo(start, floor);
  let right = start;
  for (let step = first; step < live.length && right <= panel.width; ) {
    const left = right;
    let most = 0;
    do {
      most = Math.max(most, live[step]);
      step += 1;
      right = panel.x(step);
    } while (step < live.length && right < left + 0.5);
    const y = panel.yLive(most);
    path.lineTo(left, y);
    path.lineTo(right, y);
  }
  path.lineTo(right, floor);
  context.globalAlpha = 0.13;
  context.fillStyle = theme.curve;
  context.fill(path);
  context.globalAlpha = 1;
  context.strokeStyle = theme.curve;
  context.lineWidth = 1.4;
  context.stroke(path);
}

// The bound and the peak, over the curve and up through the rectangles.
function drawMarks(panel, context) {
  const { theme } = panel.state;
  const { bound } = panel.model;
  const { arena } = panel;
  const right = GUTTER + panel.plotWidth;
  const x = panel.x(arena.peakStep + 0.5);
  const toLeft = x > GUTTER + panel.plotWidth / 2;
  if (bound !== null) {
    const y = panel.yLive(bound);
    panel.line(context, GUTTER, y, right, y, theme.bound, [6, 4], 1.5);
    const words = `lower bound ${formatBytes(bound)}`;
    // Away from the peak, and from its words.
    panel.text(
      context, words, toLeft ? GUTTER + 6 : right - 6, y + 9, theme.bound,
      toLeft ? "left" : "right");
  }
  if (!arena.live.length || x < GUTTER || x > right) return;
  const y = panel.yLive(arena.peakBytes);
  const high = Math.max(0, Math.min(panel.y(arena.top), panel.stripTop));
  panel.line(context, x, high, x, panel.axisTop, theme.ink, [2, 4]);
  context.fillStyle = theme.ink;
  context.beginPath();
  context.arc(x, y, 4, 0, 2 * Math.PI);
  context.fill();
  const words = `peak ${formatBytes(arena.peakBytes)}`;
  panel.text(
    context, words, toLeft ? x - 8 : x + 8, y - 9, theme.ink,
    toLeft ? "right" : "left");
}
