// Search, colours, legend, list, and the keys that work everywhere.

function hexOf(rgb) {
  return `#${rgb.map((v) => Math.round(v).toString(16).padStart(2, "0")).join("")}`;
}

// A colour between those of a ramp, at a share of its length.
function between(ramp, share) {
  const place = share * (ramp.length - 1);
  const low = Math.min(Math.floor(place), ramp.length - 2);
  const parse = (hex) =>
    [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const [a, b] = [parse(ramp[low]), parse(ramp[low + 1])];
  return hexOf(a.map((v, i) => v + (place - low) * (b[i] - v)));
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = [
    "surface", "ink", "quiet", "rule", "grid", "bound", "curve", "busy",
    "hidden", "exposed",
  ];
  const several = (name, count) =>
    Array.from({ length: count }, (_, i) => read(`${name}-${i}`));
  return {
    ...Object.fromEntries(names.map((name) => [name, read(name)])),
    kind: several("kind", 10),
    layer: several("layer", 6),
    size: several("size", 6),
  };
}

// What buffers are coloured by: the words of each class, their colours, and the
// class of a buffer.
function colouring() {
  const { theme, colourBy } = STATE;
  if (colourBy === "kind") {
    return {
      words: MODEL.kinds,
      colours: MODEL.kindColours.map((k) => theme.kind[k]),
      classOf: (arena, i) => arena.kind[i],
    };
  }
  if (colourBy === "layer") {
    const last = MODEL.layers.length - 1;
    return {
      words: MODEL.layers,
      colours: MODEL.layers.map((_, k) =>
        k === last
          ? theme.kind[9]
          : between(theme.layer, last > 1 ? k / (last - 1) : 0.5)),
      classOf: (arena, i) => MODEL.layerOf[arena.module[i]],
    };
  }
  const round = (limit) => formatBytes(limit).replace(/\.0+ /, " ");
  const limits = MODEL.sizeLimits;
  return {
    words: [`< ${round(limits[0])}`, ...limits.map((l) => `≥ ${round(l)}`)],
    colours: theme.size,
    classOf: (arena, i) => MODEL.sizeClass(arena.size[i]),
  };
}

function setColours() {
  const { words, colours, classOf } = colouring();
  STATE.colours = colours;
  const used = new Set();
  STATE.classes = MODEL.arenas.map((arena) => {
    const classes = new Uint8Array(arena.count);
    for (let i = 0; i < arena.count; i += 1) {
      classes[i] = classOf(arena, i);
      if (arena.end[i] > arena.start[i]) used.add(classes[i]);
    }
    return classes;
  });
  // Kinds in the order of their colours, whatever comes first in the plan.
  const place = (k) =>
    STATE.colourBy === "kind" ? MODEL.kindColours[k] : k;
  drawLegend([...used].sort((a, b) => place(a) - place(b)), words);
  redraw();
}

function drawLegend(used, words) {
  const { colours, theme } = STATE;
  const swatch = (colour, className = "") => {
    const mark = make("i", "", className);
    mark.style.background = colour;
    return mark;
  };
  const items = used.map((k) => {
    const item = make("li");
    const button = make("button");
    button.type = "button";
    button.dataset.place = k;
    button.ariaPressed = String(STATE.chosen === k);
    button.title = `Show only what is ${words[k]}`;
    button.append(swatch(colours[k]), words[k]);
    button.addEventListener("click", () => choose(k));
    item.append(button);
    return item;
  });
  const add = (mark, text) => {
    const item = make("li");
    item.append(mark, text);
    items.push(item);
  };
  if (MODEL.bound !== null) add(make("i", "", "line"), "lower bound");
  if (MODEL.arenas.some((arena) => arena.spans.length)) {
    add(swatch(theme.hidden, "bar"), "transfer beside kernels");
    add(swatch(theme.exposed, "bar"), "device waits");
  }
  byId("legend").replaceChildren(...items);
}

// Shows one class of the legend alone, or all of them again.
function choose(k) {
  STATE.chosen = STATE.chosen === k ? null : k;
  for (const button of byId("legend").querySelectorAll("button")) {
    button.ariaPressed = String(Number(button.dataset.place) === STATE.chosen);
  }
  redraw();
}

function setColourBy(colourBy) {
  STATE.colourBy = colourBy;
  STATE.chosen = null;
  byId("colour").value = colourBy;
  setColours();
}

function listStep(side, step) {
  const arena = MODEL.arenas[side];
  if (!arena.steps) return;
  STATE.listed = { side, step };
  const found = MODEL.rowsLiveAt(side, step);
  const isPeak = step === arena.peakStep;
  byId("scope").value = isPeak && side === 1 ? "peak" : "step";
  showList(
    `${arena.title} at ${isPeak ? "the peak, step" : "step"} ${step}: ` +
      `${formatBytes(arena.live[step])} live, ` +
      formatCount(found.length, "buffer"),
    found,
  );
  for (const panel of PANELS) panel.drawOver();
}

function listAll() {
  const found = MODEL.rowsMatching(null);
  STATE.listed = null;
  byId("scope").value = "all";
  showList(`All ${formatCount(found.length, "buffer")}`, found);
  for (const panel of PANELS) panel.drawOver();
}

function listDefault() {
  listStep(1, MODEL.arenas[1].peakStep);
}

function showList(title, found) {
  byId("list-title").textContent = title;
  TABLE.show(found);
}

function search() {
  STATE.matches = MODEL.search(byId("search").value);
  STATE.found = -1;
  redraw();
  for (const id of ["previous", "next"]) byId(id).disabled = !STATE.matches;
  if (!STATE.matches) {
    byId("found").textContent = "";
    listDefault();
    return;
  }
  STATE.listed = null;
  byId("scope").value = "all";
  const found = MODEL.rowsMatching(STATE.matches);
  STATE.numFound = found.length;
  STATE.foundWords =
    `${formatCount(found.length, "buffer")}, ` +
    formatBytes(MODEL.numBytes(found));
  byId("found").textContent = STATE.foundWords;
  showList(`Buffers that match the search: ${STATE.foundWords}`, found);
}

// Goes to the next match, or the one before, in the order of the table.
function jump(by) {
  if (!STATE.matches || !STATE.numFound) return;
  if (TABLE.rows.length !== STATE.numFound) search();
  const from = STATE.found < 0 && by < 0 ? 0 : STATE.found;
  STATE.found = (from + by + STATE.numFound) % STATE.numFound;
  byId("found").textContent = `${STATE.found + 1} of ${STATE.foundWords}`;
  centre(TABLE.rows[STATE.found]);
  TABLE.moveTo(STATE.found);
}

async function copyTable() {
  const count = TABLE.rows.length;
  const isCopied = await copyText(TABLE.asText());
  byId("copied").textContent = isCopied
    ? `${formatCount(count, "row")} copied`
    : "The browser allows no copies.";
}

function setAxis(axis) {
  if (!(MODEL.maxSeconds > 0)) return;
  MODEL.setAxis(axis);
  byId("axis").value = axis;
  showAll();
}

function escape() {
  hideTip();
  select(null);
  if (STATE.chosen !== null) choose(STATE.chosen);
}

function listenToPage() {
  const on = (id, type, act) => byId(id).addEventListener(type, act);
  on("search", "input", search);
  on("search", "keydown", (event) => {
    if (event.key === "Enter") jump(event.shiftKey ? -1 : 1);
  });
  on("next", "click", () => jump(1));
  on("previous", "click", () => jump(-1));
  on("colour", "change", (event) => setColourBy(event.target.value));
  on("axis", "change", (event) => setAxis(event.target.value));
  on("peak", "click", zoomToPeak);
  on("reset", "click", showAll);
  on("copy", "click", copyTable);
  on("scope", "change", (event) => {
    if (event.target.value === "all") listAll();
    else listDefault();
  });
  document.addEventListener("keydown", keyAnywhere);
  document.addEventListener("scroll", hideTip, { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener(
    "change", applyTheme);
}

function keyAnywhere(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") escape();
  if (event.target.matches("input, select, textarea")) return;
  const actions = {
    "/": () => byId("search").focus(),
    "?": () => { byId("help").open = !byId("help").open; },
    p: zoomToPeak,
    0: showAll,
    n: () => jump(1),
    N: () => jump(-1),
    t: () => setAxis(MODEL.axis === "time" ? "steps" : "time"),
  };
  if (!Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  actions[event.key]();
}

function applyTheme() {
  STATE.theme = readTheme();
  setColours();
}
