// The data of the page: two arenas as columns, decoded once.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

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

class Arena {
  constructor(columns) {
    Object.assign(this, columns);
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
    // A name may occur more than once; the k-th on one side is matched with
    // the k-th on the other.
    this.ofName = new Map();
    this.rank = new Array(this.count);
    for (let i = 0; i < this.count; i += 1) {
      this.top = Math.max(this.top, this.offset[i] + this.size[i]);
      const same = this.ofName.get(this.name[i]) ?? [];
      this.rank[i] = same.length;
      same.push(i);
      this.ofName.set(this.name[i], same);
    }
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
}

class Model {
  constructor(data) {
    this.names = data.names;
    this.sources = data.sources;
    this.kinds = data.kinds;
    this.bound = data.lower_bound;
    this.arenas = data.arenas.map((columns) => new Arena(columns));
    this.numSteps = Math.max(1, ...this.arenas.map((a) => a.steps));
    this.top = Math.max(1, ...this.arenas.map((a) => a.top));
    // Room above the taller arena for its label.
    this.maxAddress = this.top * 1.09;
    const peak = Math.max(...this.arenas.map((a) => a.peakBytes));
    this.maxLive = Math.max(1, peak, this.bound ?? 0) * 1.3;
    this.setSizeClasses();
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
    return this.sizeLimits.filter((limit) => bytes >= limit).length;
  }

  // Names that match in name or source, as one flag per name; null for all.
  search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const flags = new Uint8Array(this.names.length);
    const inName = this.names.map((n) => n.toLowerCase().includes(wanted));
    const inSource = this.sources.map((s) => s.toLowerCase().includes(wanted));
    for (const arena of this.arenas) {
      for (let i = 0; i < arena.count; i += 1) {
        const name = arena.name[i];
        if (inName[name] || inSource[arena.source[i]]) flags[name] = 1;
      }
    }
    return flags;
  }

  // A row is one buffer: its index in each arena, -1 where it is missing.
  rowsMatching(flags) {
    const rows = [];
    const [before, after] = this.arenas;
    for (let i = 0; i < before.count; i += 1) {
      if (!flags[before.name[i]]) continue;
      rows.push([i, after.find(before.name[i], before.rank[i])]);
    }
    for (let i = 0; i < after.count; i += 1) {
      if (!flags[after.name[i]]) continue;
      if (before.find(after.name[i], after.rank[i]) < 0) rows.push([-1, i]);
    }
    return this.sorted(rows);
  }

  rowsLiveAt(side, step) {
    const rows = this.arenas[side].liveAt(step);
    return this.sorted(rows.map((i) => this.row(side, i)));
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

  // One side on which the row's buffer exists.
  sideOf(row) {
    return row[0] >= 0 ? 0 : 1;
  }

  sizeOf(row) {
    const side = this.sideOf(row);
    return this.arenas[side].size[row[side]];
  }

  sorted(rows) {
    return rows.sort((a, b) => this.sizeOf(b) - this.sizeOf(a));
  }

  numBytes(rows) {
    return rows.reduce((sum, row) => sum + this.sizeOf(row), 0);
  }
}
