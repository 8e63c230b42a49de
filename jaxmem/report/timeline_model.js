// The data of the page: two arenas as columns, decoded once.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const LINKS = ["collectives", "to host", "from host"];
// More layers than that are not told apart.
const MAX_LAYERS = 48;
// A scope is divided while it holds more of the bytes than that.
const LARGE_LAYER = 0.3;

// The same digits as jaxmem.units.format_bytes, so that page and text agree.
function formatBytes(bytes) {
  let size = Math.abs(bytes);
  let exponent = 0;
  while (size >= 1023.5 && exponent < UNITS.length - 1) {
    size /= 1024;
    exponent += 1;
  }
  let decimals = 2;
  if (exponent === 0 || size >= 99.95) decimals = 0;
  else if (size >= 9.995) decimals = 1;
  const sign = bytes < 0 ? "-" : "";
  return `${sign}${toFixedEven(size, decimals)} ${UNITS[exponent]}`;
}

// Python rounds ties to even, toFixed rounds them up; sizes are often ties.
function toFixedEven(value, decimals) {
  const scaled = value * 10 ** decimals;
  const low = Math.floor(scaled);
  if (scaled - low !== 0.5) return value.toFixed(decimals);
  return ((low + (low % 2)) / 10 ** decimals).toFixed(decimals);
}

function formatCount(count, noun) {
  const plural = count === 1 ? noun : `${noun}s`;
  return `${count.toLocaleString("en")} ${plural}`;
}

function formatSeconds(seconds) {
  if (!seconds) return "0 s";
  const [unit, name] =
    seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return `${Number((seconds / unit).toPrecision(3))} ${name}`;
}

// Ticks at 1, 2 or 5 times a power of ten of `unit`, at most `count` of them.
function ticks(low, high, count, unit, smallest) {
  const rough = Math.max((high - low) / unit / Math.max(count, 1), 1e-12);
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((f) => f * power >= rough * 0.999);
  const step = Math.max(factor * power * unit, smallest);
  const values = [];
  const first = Math.ceil(low / step);
  for (let i = first; i * step <= high; i += 1) values.push(i * step);
  return { values, step };
}

function byteTicks(low, high, count) {
  const exponent = Math.min(
    Math.floor(Math.log2(Math.max(high, 1)) / 10),
    UNITS.length - 1,
  );
  const unit = 1024 ** exponent;
  const { values, step } = ticks(low, high, count, unit, exponent ? 0 : 1);
  const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return values.map((value) => [
    value,
    value ? `${(value / unit).toFixed(decimals)} ${UNITS[exponent]}` : "0",
  ]);
}

// Digits are made equally long, so that block 2 comes before block 10.
function sortable(text) {
  return text.toLowerCase().replace(/\d+/g, (d) => d.padStart(9, "0"));
}

function compareTexts(a, b) {
  return a < b ? -1 : Number(a > b);
}

class Arena {
  constructor(columns) {
    Object.assign(this, columns);
    for (const key of ["name", "source", "kind", "module", "operation"]) {
      this[key] = Int32Array.from(columns[key]);
    }
    for (const key of ["size", "offset", "start", "end"]) {
      this[key] = Float64Array.from(columns[key]);
    }
    this.count = this.size.length;
    this.peakBytes = 0;
    this.peakStep = 0;
    this.live.forEach((bytes, step) => {
      if (bytes > this.peakBytes) {
        this.peakBytes = bytes;
        this.peakStep = step;
      }
    });
    if (!this.bands.length) this.bands = [["arena", 0, this.height]];
    this.top = Math.max(this.height, ...this.bands.map((b) => b[1] + b[2]));
    this.matchNames();
    this.readTiming();
    this.setAxis("steps");
  }

  // A name may occur more than once; the k-th on one side is matched with the
  // k-th on the other.
  matchNames() {
    this.ofName = new Map();
    this.rank = new Int32Array(this.count);
    for (let i = 0; i < this.count; i += 1) {
      this.top = Math.max(this.top, this.offset[i] + this.size[i]);
      const same = this.ofName.get(this.name[i]) ?? [];
      this.rank[i] = same.length;
      same.push(i);
      this.ofName.set(this.name[i], same);
    }
  }

  // Seconds until each step, and of these what is spent on kernels. At a step
  // that ends a transfer the device only waits.
  readTiming() {
    this.clock = new Float64Array(this.steps + 1);
    this.spans = this.spans.map((span) => ({
      name: span[0], link: LINKS[span[1]], start: span[2], end: span[3],
      seconds: span[4], exposed: span[5], isSynchronous: Boolean(span[6]),
      source: span[7],
    }));
    this.kernels = Float64Array.from(this.seconds);
    for (const { end } of this.spans) this.kernels[end - 1] = 0;
    this.seconds.forEach((seconds, step) => {
      this.clock[step + 1] = this.clock[step] + seconds;
    });
    this.total = this.clock[this.seconds.length ? this.steps : 0];
  }

  // Places the steps on the axis that is in use: by number, or in time.
  setAxis(axis) {
    this.inTime = axis === "time";
    this.left = this.start.map((step) => this.at(step));
    this.right = this.end.map((step) => this.at(step));
  }

  // Where a step, or a part of one, lies on the axis.
  at(step) {
    if (!this.inTime) return step;
    const whole = Math.max(0, Math.min(Math.floor(step), this.steps));
    const begin = this.clock[whole];
    const end = this.clock[Math.min(whole + 1, this.steps)];
    return begin + (step - whole) * (end - begin);
  }

  // The step at a place on the axis; of several, the last that begins there.
  stepAt(place) {
    if (!this.inTime) return Math.floor(place);
    let low = 0;
    let high = this.steps;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.clock[middle] <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // The index of the k-th buffer of that name, or -1.
  find(name, rank) {
    return this.ofName.get(name)?.[rank] ?? -1;
  }

  liveAt(step) {
    const found = [];
    for (let i = 0; i < this.count; i += 1) {
      if (this.start[i] <= step && step < this.end[i]) found.push(i);
    }
    return found;
  }

  // Seconds of kernels, and of each link: in all, and while the device waits.
  times() {
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    const of = (link) => {
      const spans = this.spans.filter((span) => span.link === link);
      return {
        link,
        count: spans.length,
        seconds: sum(spans.map((span) => span.seconds)),
        exposed: sum(spans.map((span) => span.exposed)),
      };
    };
    return { kernels: sum(this.kernels), links: LINKS.map(of) };
  }
}

class Model {
  constructor(data) {
    for (const key of ["names", "sources", "kinds", "modules", "operations"]) {
      this[key] = data[key];
    }
    this.kindColours = data.kind_colours;
    this.bound = data.lower_bound;
    this.arenas = data.arenas.map((columns) => new Arena(columns));
    this.numSteps = Math.max(1, ...this.arenas.map((a) => a.steps));
    this.maxSeconds = Math.max(...this.arenas.map((a) => a.total));
    this.axis = "steps";
    this.top = Math.max(1, ...this.arenas.map((a) => a.top));
    // Room above the taller arena for its label.
    this.maxAddress = this.top * 1.09;
    const peak = Math.max(...this.arenas.map((a) => a.peakBytes));
    this.maxLive = Math.max(1, peak, this.bound ?? 0) * 1.3;
    this.setSizeClasses();
    this.setLayers();
  }

  setAxis(axis) {
    this.axis = axis;
    for (const arena of this.arenas) arena.setAxis(axis);
  }

  // What the whole axis stands for: steps, or seconds.
  get extent() {
    return this.axis === "time" ? this.maxSeconds : this.numSteps;
  }

  // Six classes: half the largest size as a power of two, an eighth of that...
  setSizeClasses() {
    const largest = this.arenas.reduce(
      (most, arena) => arena.size.reduce((a, b) => Math.max(a, b), most),
      1,
    );
    const power = Math.floor(Math.log2(largest)) - 1;
    this.sizeLimits = [12, 9, 6, 3, 0].map((p) => 2 ** Math.max(0, power - p));
  }

  sizeClass(bytes) {
    let found = 0;
    while (found < 5 && bytes >= this.sizeLimits[found]) found += 1;
    return found;
  }

  // Layers are scopes: the outermost ones, and those in the scopes that hold
  // most of the bytes, until none holds most of them.
  setLayers() {
    const paths = this.modules.map((path) => (path ? path.split("/") : []));
    const bytes = new Float64Array(paths.length);
    for (const arena of this.arenas) {
      arena.module.forEach((m, i) => {
        bytes[m] += arena.size[i] * (arena.end[i] - arena.start[i]);
      });
    }
    const known = paths.map((_, m) => m).filter((m) => paths[m].length);
    const total = known.reduce((sum, m) => sum + bytes[m], 0);
    let groups = divided(paths, known, 0);
    for (;;) {
      const large = groups.find((group) => {
        const held = group.members.reduce((sum, m) => sum + bytes[m], 0);
        return !group.isWhole && held > LARGE_LAYER * total;
      });
      if (!large) break;
      const parts = divided(paths, large.members, large.depth);
      large.isWhole = true;
      if (groups.length - 1 + parts.length > MAX_LAYERS) continue;
      if (parts.length > 1 || !parts[0].isWhole) {
        groups = groups.filter((g) => g !== large).concat(parts);
      }
    }
    groups.sort((a, b) => compareTexts(sortable(a.name), sortable(b.name)));
    const others = groups.splice(MAX_LAYERS);
    this.layers = groups.map((group) => group.name);
    this.layers.push(others.length ? "others" : "no module");
    this.layerOf = new Int32Array(paths.length).fill(groups.length);
    groups.forEach((group, k) => {
      for (const m of group.members) this.layerOf[m] = k;
    });
  }

  // Names whose buffer matches in name, operation, module or source, as one
  // flag per name; null for all.
  search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const has = (texts) =>
      Uint8Array.from(texts, (t) => Number(t.toLowerCase().includes(wanted)));
    const flags = has(this.names);
    const [sources, modules, operations] = [
      this.sources, this.modules, this.operations].map(has);
    for (const { count, name, source, module, operation } of this.arenas) {
      for (let i = 0; i < count; i += 1) {
        flags[name[i]] |=
          sources[source[i]] | modules[module[i]] | operations[operation[i]];
      }
    }
    return flags;
  }

  // A row is one buffer: its index in each arena, -1 where it is missing.
  rowsMatching(flags) {
    const rows = [];
    const [before, after] = this.arenas;
    for (let i = 0; i < before.count; i += 1) {
      if (flags && !flags[before.name[i]]) continue;
      rows.push([i, after.find(before.name[i], before.rank[i])]);
    }
    for (let i = 0; i < after.count; i += 1) {
      if (flags && !flags[after.name[i]]) continue;
      if (before.find(after.name[i], after.rank[i]) < 0) rows.push([-1, i]);
    }
    return rows;
  }

  rowsLiveAt(side, step) {
    return this.arenas[side].liveAt(step).map((i) => this.row(side, i));
  }

  row(side, index) {
    const here = this.arenas[side];
    const row = [index, index];
    row[1 - side] = this.arenas[1 - side].find(
      here.name[index],
      here.rank[index],
    );
    return row;
  }

  // One side on which the row's buffer exists: jaxmem's, if it does there.
  sideOf(row) {
    return row[1] >= 0 ? 1 : 0;
  }

  sizeOf(row) {
    const side = this.sideOf(row);
    return this.arenas[side].size[row[side]];
  }

  numBytes(rows) {
    return rows.reduce((sum, row) => sum + this.sizeOf(row), 0);
  }
}

// Groups modules by their scopes up to one level more than `depth`.
function divided(paths, members, depth) {
  const groups = new Map();
  for (const m of members) {
    const name = paths[m].slice(0, depth + 1).join("/");
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(m);
  }
  return [...groups].map(([name, group]) => ({
    name,
    members: group,
    depth: depth + 1,
    isWhole: group.every((m) => paths[m].length <= depth + 1),
  }));
}
