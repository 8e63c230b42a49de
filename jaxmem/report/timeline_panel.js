// One arena: rectangles in address against step, live bytes and lanes of time
// below them. What moves with the pointer is on a second canvas, so that
// hovering over many buffers redraws none of them.

const GUTTER = 70;
const STRIP = 92;
const AXIS = 34;
const LABEL_FONT =
  "11px ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace";
const TEXT_FONT =
  "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
// Where buffers are as small as pixels, more names than that are unreadable.
const MAX_LABELS = 400;
const FADED = 0.14;
// Buffers of fewer square pixels are set pixel by pixel: of tens of thousands
// that is faster by far than to fill each.
const SMALL = 30;

// Black or white, whichever has the higher contrast on the colour.
function ink(hex) {
  const [r, g, b] = [1, 3, 5].map(
    (i) => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return luminance > 0.18 ? "#10131a" : "#ffffff";
}

// Small rectangles, as pixels of a canvas of their own.
class Pixels {
  constructor(width, height, scale) {
    this.canvas = document.createElement("canvas");
    Object.assign(this.canvas, { width, height });
    this.context = this.canvas.getContext("2d");
    this.image = this.context.createImageData(width, height);
    this.values = new Uint32Array(this.image.data.buffer);
    Object.assign(this, { width, height, scale });
  }

  clear(colours) {
    this.values.fill(0);
    this.colours = Uint32Array.from(colours, (hex) => {
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
      return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    });
    this.isEmpty = true;
  }

  fill(x, y, w, h, k) {
    const { width, height, scale, values } = this;
    const left = Math.max(0, Math.floor(x * scale));
    const right = Math.min(
      width, Math.max(left + 1, Math.round((x + w) * scale)));
    const top = Math.max(0, Math.floor(y * scale));
    const bottom = Math.min(
      height, Math.max(top + 1, Math.round((y + h) * scale)));
    for (let line = top; line < bottom; line += 1) {
      values.fill(this.colours[k], line * width + left, line * width + right);
    }
    this.isEmpty = false;
  }

  drawTo(context, x, width, height) {
    if (this.isEmpty) return;
    this.context.putImageData(this.image, 0, 0);
    context.drawImage(this.canvas, x, 0, width, height);
  }
}

class Panel {
  // `state` is shared by both panels: spans, theme, colouring, matches.
  constructor(model, side, state, plot, lanes) {
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
    this.lanes = new Lanes(this, lanes);
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
    const below = STRIP + 8 + this.lanes.height + AXIS;
    this.mainHeight = Math.max(1, this.height - below - 12);
    this.stripTop = this.mainHeight + 12;
    this.lanesTop = this.stripTop + STRIP + 8;
    this.axisTop = this.lanesTop + this.lanes.height;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(this.width * scale);
      canvas.height = Math.round(this.height * scale);
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    return true;
  }

  // Where a step begins, or a place within one, from the left of the panel.
  x(step) {
    const place = this.arena.at(step) - this.x0;
    return GUTTER + (place / this.state.xSpan) * this.plotWidth;
  }

  y(bytes) {
    return this.mainHeight * (1 - (bytes - this.y0) / this.state.ySpan);
  }

  yLive(bytes) {
    return this.stripTop + STRIP * (1 - bytes / this.model.maxLive);
  }

  stepAt(x) {
    return this.arena.stepAt(
      this.x0 + ((x - GUTTER) / this.plotWidth) * this.state.xSpan);
  }

  clamp() {
    const { xSpan, ySpan } = this.state;
    const inside = (low, high) => Math.max(0, Math.min(low, high));
    this.x0 = inside(this.x0, this.model.extent - xSpan);
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
    const { left, right, offset, size, count, start, end } = this.arena;
    const scaleX = this.plotWidth / this.state.xSpan;
    const scaleY = this.mainHeight / this.state.ySpan;
    const atX = this.x0 + (x - GUTTER) / scaleX;
    const atY = this.y0 + (this.mainHeight - y) / scaleY;
    let best = -1;
    let bestScore = Infinity;
    for (let i = 0; i < count; i += 1) {
      const dx = Math.max(left[i] - atX, 0, atX - right[i]) * scaleX;
      if (dx > slack + 1 || end[i] <= start[i]) continue;
      const top = offset[i] + size[i];
      const dy = Math.max(offset[i] - atY, 0, atY - top) * scaleY;
      if (dy > slack + 1) continue;
      const away = Math.hypot(Math.max(0, dx - 0.5), Math.max(0, dy - 0.5));
      if (away > slack) continue;
      const area = (right[i] - left[i]) * scaleX * size[i] * scaleY;
      const score = away * 1e9 + area;
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
    drawGrid(this, context);
    this.clipped(context, 0, this.mainHeight, () => {
      drawSaving(this, context);
      this.drawBuffers(context);
      drawBands(this, context);
    });
    this.clipped(context, this.stripTop, STRIP, () => {
      drawLive(this, context);
    });
    this.lanes.draw(context);
    drawMarks(this, context);
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

  // Buffers of one colour are drawn together. Matches, and what is chosen in
  // the legend, come last and stay visible however small they are.
  drawBuffers(context) {
    const { matches, chosen, classes } = this.state;
    const { count, name } = this.arena;
    const own = classes[this.side];
    if (!matches && chosen === null) {
      this.drawClasses(context, null, 0.8);
      return;
    }
    const shown = new Uint8Array(count);
    for (let i = 0; i < count; i += 1) {
      const isMatch = !matches || matches[name[i]];
      shown[i] = Number(isMatch && (chosen === null || own[i] === chosen));
    }
    context.globalAlpha = FADED;
    this.drawClasses(context, (i) => !shown[i], 0.8);
    context.globalAlpha = 1;
    this.drawClasses(context, (i) => shown[i], 4);
  }

  drawClasses(context, isDrawn, least) {
    const { left, right, offset, size, count, start, end } = this.arena;
    const { xSpan, ySpan, colours, classes } = this.state;
    const own = classes[this.side];
    const scaleX = this.plotWidth / xSpan;
    const scaleY = this.mainHeight / ySpan;
    const small = this.clearedPixels(colours);
    const labels = [];
    let last = -1;
    for (let i = 0; i < count; i += 1) {
      if (end[i] <= start[i] || (isDrawn && !isDrawn(i))) continue;
      let w = (right[i] - left[i]) * scaleX;
      let h = size[i] * scaleY;
      let x = (left[i] - this.x0) * scaleX;
      let y = this.mainHeight - (offset[i] + size[i] - this.y0) * scaleY;
      if (w < least) [x, w] = [x - (least - w) / 2, least];
      if (h < least) [y, h] = [y - (least - h) / 2, least];
      if (x > this.plotWidth || x + w < 0) continue;
      if (y > this.mainHeight || y + h < 0) continue;
      if (w * h < SMALL) {
        small.fill(x, y, w, h, own[i]);
        continue;
      }
      if (own[i] !== last) {
        last = own[i];
        context.fillStyle = colours[last];
      }
      context.fillRect(
        GUTTER + x, y, w - (w > 4 ? 1 : 0), h - (h > 4 ? 1 : 0));
      if (h >= 15 && w >= 34 && labels.length < MAX_LABELS) labels.push(i);
    }
    small.drawTo(context, GUTTER, this.plotWidth, this.mainHeight);
    for (const i of labels) this.drawName(context, i);
  }

  clearedPixels(colours) {
    const scale = this.base.width / Math.max(1, this.width);
    const width = Math.max(1, Math.round(this.plotWidth * scale));
    const height = Math.max(1, Math.round(this.mainHeight * scale));
    if (this.pixels?.width !== width || this.pixels?.height !== height) {
      this.pixels = new Pixels(width, height, scale);
    }
    this.pixels.clear(colours);
    return this.pixels;
  }

  drawName(context, i) {
    const [x, y, w, h] = this.box(i, 1);
    const left = Math.max(x, GUTTER);
    const top = Math.max(y, 0);
    const width = Math.min(x + w, GUTTER + this.plotWidth) - left;
    const height = Math.min(y + h, this.mainHeight) - top;
    context.font = LABEL_FONT;
    this.letter ??= context.measureText("0").width;
    const room = Math.floor((width - 8) / this.letter);
    if (room < 4 || height < 14) return;
    const name = this.model.names[this.arena.name[i]];
    const short = name.length <= room ? name : `${name.slice(0, room - 1)}…`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const own = this.state.classes[this.side][i];
    context.fillStyle = ink(this.state.colours[own]);
    context.fillText(short, left + 4, top + 8);
    const size = formatBytes(this.arena.size[i]);
    if (height < 29 || size.length > room) return;
    context.fillText(size, left + 4, top + 22);
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
    this.line(context, x, 0, x, this.axisTop, theme.bound, [], 1.2);
  }
}
