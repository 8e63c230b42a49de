// One arena: rectangles in address against step, and live bytes below them.
// What moves with the pointer is on a second canvas, so that hovering over ten
// thousand buffers redraws none of them.

const GUTTER = 66;
const STRIP = 92;
const AXIS = 34;
const LABEL_FONT =
  "11px ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace";
const TEXT_FONT =
  "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

// Black or white, whichever has the higher contrast on the colour.
function ink(hex) {
  const [r, g, b] = [1, 3, 5].map(
    (i) => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return luminance > 0.18 ? "#10131a" : "#ffffff";
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["surface", "ink", "quiet", "rule", "grid", "bound", "curve"];
  return {
    ...Object.fromEntries(names.map((name) => [name, read(name)])),
    kind: MODEL.kinds.map(read),
    size: [0, 1, 2, 3, 4, 5].map((i) => read(`size-${i}`)),
  };
}

class Panel {
  // `state` is shared by both panels: spans, theme, colouring, matches.
  constructor(model, side, state, plot) {
    this.model = model;
    this.side = side;
    this.arena = model.arenas[side];
    this.state = state;
    this.plot = plot;
    [this.base, this.over] = ["base", "over"].map(() => {
      const canvas = document.createElement("canvas");
      plot.append(canvas);
      return canvas;
    });
    this.x0 = 0;
    this.y0 = 0;
  }

  // Whether the size has changed; if so the panel must be drawn again.
  resize() {
    const scale = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.plot;
    const size = `${clientWidth} ${clientHeight} ${scale}`;
    if (size === this.size) return false;
    this.size = size;
    this.width = clientWidth;
    this.height = clientHeight;
    this.plotWidth = Math.max(1, this.width - GUTTER - 6);
    this.mainHeight = Math.max(1, this.height - STRIP - AXIS - 12);
    this.stripTop = this.mainHeight + 12;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(this.width * scale);
      canvas.height = Math.round(this.height * scale);
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    return true;
  }

  x(step) {
    return GUTTER + ((step - this.x0) / this.state.xSpan) * this.plotWidth;
  }

  y(bytes) {
    return this.mainHeight * (1 - (bytes - this.y0) / this.state.ySpan);
  }

  yLive(bytes) {
    return this.stripTop + STRIP * (1 - bytes / this.model.maxLive);
  }

  stepAt(x) {
    return this.x0 + ((x - GUTTER) / this.plotWidth) * this.state.xSpan;
  }

  clamp() {
    const { xSpan, ySpan } = this.state;
    const inside = (low, high) => Math.max(0, Math.min(low, high));
    this.x0 = inside(this.x0, this.model.numSteps - xSpan);
    this.y0 = inside(this.y0, this.model.maxAddress - ySpan);
  }

  // Screen box of a buffer: left, top, width, height, at least `least` wide.
  box(i, least) {
    const { start, end, offset, size } = this.arena;
    const left = this.x(start[i]);
    const top = this.y(offset[i] + size[i]);
    const width = this.x(end[i]) - left;
    const height = this.y(offset[i]) - top;
    const growX = Math.max(0, least - width) / 2;
    const growY = Math.max(0, least - height) / 2;
    return [
      left - growX,
      top - growY,
      Math.max(width, least),
      Math.max(height, least),
    ];
  }

  // The smallest buffer under a point, or the nearest within `slack` pixels.
  hit(x, y, slack) {
    if (x < GUTTER || y > this.mainHeight) return -1;
    let best = -1;
    let bestScore = Infinity;
    for (let i = 0; i < this.arena.count; i += 1) {
      if (this.arena.end[i] <= this.arena.start[i]) continue;
      const [left, top, width, height] = this.box(i, 1);
      const dx = Math.max(left - x, 0, x - left - width);
      const dy = Math.max(top - y, 0, y - top - height);
      const away = Math.hypot(dx, dy);
      if (away > slack) continue;
      const score = away * 1e9 + width * height;
      if (score < bestScore) {
        bestScore = score;
        best = i;
      }
    }
    return best;
  }

  draw() {
    const context = this.base.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    this.drawGrid(context);
    this.clipped(context, 0, this.mainHeight, () => {
      this.drawSaving(context);
      this.drawBuffers(context);
      this.drawBands(context);
    });
    this.clipped(context, this.stripTop, STRIP, () => {
      this.drawLive(context);
    });
    this.drawMarks(context);
    this.drawOver();
  }

  clipped(context, top, height, drawInside) {
    context.save();
    context.beginPath();
    context.rect(GUTTER, top, this.plotWidth, height);
    context.clip();
    drawInside();
    context.restore();
  }

  line(context, x1, y1, x2, y2, colour, dash = [], width = 1) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
    context.stroke();
    context.setLineDash([]);
  }

  // Text on a halo of the surface's colour, so that it reads on any fill.
  text(context, words, x, y, colour, align = "left") {
    context.font = TEXT_FONT;
    context.textAlign = align;
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.lineWidth = 4;
    context.strokeStyle = this.state.theme.surface;
    context.strokeText(words, x, y);
    context.fillStyle = colour;
    context.fillText(words, x, y);
  }

  drawGrid(context) {
    const { theme, xSpan, ySpan } = this.state;
    const right = GUTTER + this.plotWidth;
    const bottom = this.stripTop + STRIP;
    const rows = this.mainHeight / 45;
    for (const [at, label] of byteTicks(this.y0, this.y0 + ySpan, rows)) {
      const y = Math.round(this.y(at)) + 0.5;
      this.line(context, GUTTER, y, right, y, theme.grid);
      const inside = Math.max(7, Math.min(y, this.mainHeight - 2));
      this.text(context, label, GUTTER - 6, inside, theme.quiet, "right");
    }
    for (const [at, label] of byteTicks(0, this.model.maxLive, 2)) {
      const y = Math.round(this.yLive(at)) + 0.5;
      this.line(context, GUTTER, y, right, y, theme.grid);
      const inside = Math.max(this.stripTop + 6, y);
      this.text(context, label, GUTTER - 6, inside, theme.quiet, "right");
    }
    const steps = ticks(
      this.x0, this.x0 + xSpan, this.plotWidth / 80, 1, 1).values;
    for (const at of steps) {
      const x = Math.round(this.x(at)) + 0.5;
      this.line(context, x, 0, x, this.mainHeight, theme.grid);
      this.line(context, x, bottom, x, bottom + 4, theme.quiet);
      const label = at.toLocaleString("en");
      const inside = Math.min(x, this.width - 2 - label.length * 3.2);
      this.text(context, label, inside, bottom + 11, theme.quiet, "center");
    }
    const middle = GUTTER + this.plotWidth / 2;
    this.text(
      context, "schedule step", middle, bottom + 26, theme.quiet, "center");
    this.line(context, GUTTER, bottom, right, bottom, theme.quiet);
    const floor = this.mainHeight + 0.5;
    this.line(context, GUTTER, floor, right, floor, theme.quiet);
    this.title(context, "address", this.mainHeight / 2);
    this.title(context, "live bytes", this.stripTop + STRIP / 2);
  }

  title(context, words, y) {
    context.save();
    context.translate(8, y);
    context.rotate(-Math.PI / 2);
    this.text(context, words, 0, 0, this.state.theme.quiet, "center");
    context.restore();
  }

  colourOf(i) {
    const { theme, colourBy } = this.state;
    if (colourBy === "kind") return theme.kind[this.arena.kind[i]];
    return theme.size[this.model.sizeClass(this.arena.size[i])];
  }

  // Matches are drawn last and kept visible however small they are.
  drawBuffers(context) {
    const { matches } = this.state;
    const { name, count } = this.arena;
    if (!matches) {
      for (let i = 0; i < count; i += 1) this.drawBuffer(context, i, 0.8);
      return;
    }
    context.globalAlpha = 0.16;
    for (let i = 0; i < count; i += 1) {
      if (!matches[name[i]]) this.drawBuffer(context, i, 0.8);
    }
    context.globalAlpha = 1;
    for (let i = 0; i < count; i += 1) {
      if (matches[name[i]]) this.drawBuffer(context, i, 4);
    }
  }

  drawBuffer(context, i, least) {
    if (this.arena.end[i] <= this.arena.start[i]) return;
    let [left, top, width, height] = this.box(i, least);
    if (left > this.width || left + width < GUTTER) return;
    if (top > this.mainHeight || top + height < 0) return;
    const colour = this.colourOf(i);
    context.fillStyle = colour;
    const gapX = width > 4 ? 1 : 0;
    const gapY = height > 4 ? 1 : 0;
    context.fillRect(left, top, width - gapX, height - gapY);
    if (height < 15 || width < 34) return;
    const right = Math.min(left + width, GUTTER + this.plotWidth);
    left = Math.max(left, GUTTER);
    top = Math.max(top, 0);
    const bottom = Math.min(this.y(this.arena.offset[i]), this.mainHeight);
    this.drawName(context, i, left, top, right - left, bottom - top, colour);
  }

  drawName(context, i, left, top, width, height, colour) {
    context.font = LABEL_FONT;
    this.letter ??= context.measureText("0").width;
    const room = Math.floor((width - 8) / this.letter);
    if (room < 4 || height < 14) return;
    const name = this.model.names[this.arena.name[i]];
    const short = name.length <= room ? name : `${name.slice(0, room - 1)}…`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = ink(colour);
    context.fillText(short, left + 4, top + 8);
    const size = formatBytes(this.arena.size[i]);
    if (height < 29 || size.length > room) return;
    context.fillText(size, left + 4, top + 22);
  }

  // What the second arena no longer needs, hatched up to the first one's top.
  drawSaving(context) {
    const { theme } = this.state;
    const before = this.model.arenas[0].top;
    const saved = before - this.arena.top;
    if (this.side === 0 || saved <= 0) return;
    const top = this.y(before);
    const bottom = this.y(this.arena.top);
    const right = GUTTER + this.plotWidth;
    context.save();
    context.beginPath();
    context.rect(GUTTER, top, this.plotWidth, bottom - top);
    context.clip();
    const low = Math.min(bottom, this.mainHeight);
    const high = Math.max(top, 0);
    const lean = low - high;
    for (let x = GUTTER - lean; x < right; x += 9) {
      this.line(context, x, low, x + lean, high, theme.rule);
    }
    context.restore();
    this.line(context, GUTTER, top, right, top, theme.quiet, [5, 4]);
    const title = this.model.arenas[0].title;
    const words = `${title} ${formatBytes(before)}`;
    this.text(context, words, right - 6, top - 9, theme.quiet, "right");
    if (lean < 16) return;
    const middle = GUTTER + this.plotWidth / 2;
    this.text(
      context, `${formatBytes(saved)} less`, middle, (low + high) / 2,
      theme.ink, "center");
  }

  drawBands(context) {
    const { theme } = this.state;
    const right = GUTTER + this.plotWidth;
    this.arena.bands.forEach(([name, offset, size], k) => {
      const top = this.y(offset + size);
      const highest = offset + size >= this.arena.top;
      const edge = k === 0 || highest;
      this.line(
        context, GUTTER, top, right, top, edge ? theme.ink : theme.surface);
      if (this.y(offset) - top < 14) return;
      const words = `${name} ${formatBytes(size)}`;
      if (k === 0 && highest) {
        this.text(context, words, GUTTER + 6, top - 9, theme.ink);
      } else {
        this.text(context, words, right - 6, top + 9, theme.ink, "right");
      }
    });
  }

  drawLive(context) {
    const { theme, xSpan } = this.state;
    const { live } = this.arena;
    const first = Math.max(0, Math.floor(this.x0));
    const last = Math.min(live.length, Math.ceil(this.x0 + xSpan));
    const path = new Path2D();
    const floor = this.yLive(0);
    for (let step = first; step < last; step += 1) {
      const y = this.yLive(live[step]);
      if (step === first) path.moveTo(this.x(step), y);
      path.lineTo(this.x(step), y);
      path.lineTo(this.x(step + 1), y);
    }
    context.strokeStyle = theme.curve;
    context.lineWidth = 1.4;
    context.stroke(path);
    path.lineTo(this.x(last), floor);
    path.lineTo(this.x(first), floor);
    context.globalAlpha = 0.13;
    context.fillStyle = theme.curve;
    if (last > first) context.fill(path);
    context.globalAlpha = 1;
  }

  // The bound and the peak, over the curve and up through the rectangles.
  drawMarks(context) {
    const { theme } = this.state;
    const { bound } = this.model;
    const right = GUTTER + this.plotWidth;
    if (bound !== null) {
      const y = this.yLive(bound);
      this.line(context, GUTTER, y, right, y, theme.bound, [6, 4], 1.5);
      const words = `lower bound ${formatBytes(bound)}`;
      this.text(context, words, GUTTER + 6, y + 9, theme.bound);
    }
    const x = this.x(this.arena.peakStep + 0.5);
    if (!this.arena.live.length || x < GUTTER || x > right) return;
    const y = this.yLive(this.arena.peakBytes);
    const high = Math.max(0, Math.min(this.y(this.arena.top), this.stripTop));
    this.line(context, x, high, x, this.stripTop + STRIP, theme.ink, [2, 4]);
    context.fillStyle = theme.ink;
    context.beginPath();
    context.arc(x, y, 4, 0, 2 * Math.PI);
    context.fill();
    const toLeft = x > GUTTER + this.plotWidth / 2;
    const words = `peak ${formatBytes(this.arena.peakBytes)}`;
    this.text(
      context, words, toLeft ? x - 8 : x + 8, y - 9, theme.ink,
      toLeft ? "right" : "left");
  }

  // Outlines of the selected and the hovered buffer, and the listed step.
  drawOver() {
    const { theme, selected, hovered, listed } = this.state;
    const context = this.over.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    this.clipped(context, 0, this.mainHeight, () => {
      for (const row of [selected, hovered]) {
        if (!row || row[this.side] < 0) continue;
        const [left, top, width, height] = this.box(row[this.side], 5);
        context.lineWidth = 5;
        context.strokeStyle = theme.surface;
        context.strokeRect(left, top, width, height);
        context.lineWidth = 2.5;
        context.strokeStyle = theme.ink;
        context.strokeRect(left, top, width, height);
      }
    });
    if (listed?.side !== this.side) return;
    if (listed.step === this.arena.peakStep) return;
    const x = this.x(listed.step + 0.5);
    if (x < GUTTER || x > GUTTER + this.plotWidth) return;
    this.line(context, x, 0, x, this.stripTop + STRIP, theme.bound, [], 1.2);
  }
}
