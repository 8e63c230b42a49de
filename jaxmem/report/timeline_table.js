// The table of buffers: of any number of rows, those in sight are elements.

const ROW_HEIGHT = 28;
// Rows above and below those in sight, so that scrolling shows no gaps.
const SPARE_ROWS = 8;

// For each text its place in sorted order.
function ranks(texts) {
  const keys = texts.map(sortable);
  const order = [...keys.keys()].sort((a, b) => compareTexts(keys[a], keys[b]));
  const found = new Float64Array(texts.length);
  order.forEach((index, place) => {
    found[index] = place;
  });
  return found;
}

// A path from the root, by its last two parts.
function shortened(source) {
  return source.replace(
    /^\/(?:[^/ ]*\/)*?([^/ ]*\/[^/ ]*)(?![^ ])/, (_, end) => `…/${end}`);
}

// A column has a title, and for a row its text and a number to sort by.
function makeColumns(model) {
  const here = (row) => model.arenas[model.sideOf(row)];
  const at = (row, key) => here(row)[key][row[model.sideOf(row)]];
  const textColumn = (title, key, texts, className) => {
    let places = null;
    return {
      title,
      className,
      text: (row) => texts[at(row, key)],
      value: (row) => (places ??= ranks(texts))[at(row, key)],
    };
  };
  const stepColumn = (side, key, word) => ({
    title: `${model.arenas[side].title} ${word}`,
    className: side ? "number" : "number wide",
    text: (row) =>
      row[side] < 0 ? "–" : String(model.arenas[side][key][row[side]]),
    value: (row) => (row[side] < 0 ? -1 : model.arenas[side][key][row[side]]),
  });
  const source = textColumn("Source", "source", model.sources, "source");
  return [
    textColumn("Buffer", "name", model.names, "name"),
    {
      title: "Size",
      className: "number",
      isLargestFirst: true,
      text: (row) => formatBytes(model.sizeOf(row)),
      // What is pasted elsewhere is to be counted with.
      unit: " (bytes)",
      whole: (row) => String(model.sizeOf(row)),
      value: (row) => model.sizeOf(row),
    },
    stepColumn(1, "start", "from"),
    stepColumn(1, "end", "to"),
    stepColumn(0, "start", "from"),
    stepColumn(0, "end", "to"),
    textColumn("Kind", "kind", model.kinds, "wide"),
    textColumn("Layer", "module", model.modules, "wide"),
    {
      ...source,
      whole: source.text,
      text: (row) => shortened(source.text(row)),
    },
  ];
}

class BufferTable {
  // `onChoose` is called with a row that was clicked, or chosen by Enter.
  constructor(model, table, scroller, onChoose) {
    this.model = model;
    this.table = table;
    this.scroller = scroller;
    this.onChoose = onChoose;
    this.columns = makeColumns(model);
    this.rows = [];
    this.sortedBy = 1;
    this.isDescending = true;
    this.active = -1;
    this.makeHead();
    scroller.addEventListener("scroll", () => this.render(), { passive: true });
    table.addEventListener("keydown", (event) => this.key(event));
    table.addEventListener("click", (event) => {
      const line = event.target.closest("tbody tr");
      if (line?.dataset.place) this.choose(Number(line.dataset.place));
    });
  }

  makeHead() {
    const line = make("tr");
    this.columns.forEach((column, k) => {
      const cell = make("th", "", column.className);
      const button = make("button", column.title);
      button.type = "button";
      button.addEventListener("click", () => this.sortBy(k));
      cell.scope = "col";
      cell.append(button);
      line.append(cell);
    });
    this.table.tHead.replaceChildren(line);
  }

  sortBy(k) {
    const first = Boolean(this.columns[k].isLargestFirst);
    this.isDescending = k === this.sortedBy ? !this.isDescending : first;
    this.sortedBy = k;
    this.show(this.rows);
  }

  show(rows) {
    const { value } = this.columns[this.sortedBy];
    const keys = Float64Array.from(rows, value);
    const sign = this.isDescending ? -1 : 1;
    const order = Uint32Array.from(rows.keys());
    order.sort((a, b) => sign * (keys[a] - keys[b]) || a - b);
    this.rows = Array.from(order, (place) => rows[place]);
    this.active = -1;
    [...this.table.tHead.rows[0].cells].forEach((cell, k) => {
      const order = this.isDescending ? "descending" : "ascending";
      cell.ariaSort = k === this.sortedBy ? order : "none";
    });
    this.table.ariaRowCount = String(rows.length + 1);
    this.scroller.scrollTop = 0;
    this.render();
  }

  render() {
    const { scrollTop, clientHeight } = this.scroller;
    const inSight = Math.ceil(clientHeight / ROW_HEIGHT);
    const first = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - SPARE_ROWS);
    const last = Math.min(
      this.rows.length, first + inSight + 2 * SPARE_ROWS);
    const lines = [this.spacer(first)];
    for (let k = first; k < last; k += 1) lines.push(this.makeRow(k));
    lines.push(this.spacer(this.rows.length - last));
    this.table.tBodies[0].replaceChildren(...lines.filter(Boolean));
    const shown = this.active >= first && this.active < last;
    this.table.setAttribute(
      "aria-activedescendant", shown ? `row-${this.active}` : "");
  }

  // Stands for rows that are out of sight.
  spacer(count) {
    if (!count) return null;
    const line = make("tr");
    line.ariaHidden = "true";
    const cell = make("td");
    cell.colSpan = this.columns.length;
    cell.className = "spacer";
    cell.style.height = `${count * ROW_HEIGHT}px`;
    line.append(cell);
    return line;
  }

  makeRow(k) {
    const row = this.rows[k];
    const line = make("tr");
    line.id = `row-${k}`;
    line.dataset.place = k;
    line.ariaRowIndex = String(k + 2);
    const isSelected = this.isSelected(row);
    line.ariaSelected = String(isSelected);
    line.classList.toggle("selected", isSelected);
    line.classList.toggle("active", k === this.active);
    for (const column of this.columns) {
      const cell = make("td", column.text(row), column.className);
      cell.title = (column.whole ?? column.text)(row);
      line.append(cell);
    }
    return line;
  }

  isSelected(row) {
    const { selected } = STATE;
    return Boolean(selected && row.every((i, side) => i === selected[side]));
  }

  choose(place) {
    this.active = place;
    this.onChoose(this.rows[place]);
    this.render();
  }

  // Brings a row into sight and makes it the one that keys act on.
  moveTo(place) {
    if (!this.rows.length) return;
    this.active = Math.max(0, Math.min(place, this.rows.length - 1));
    const top = this.active * ROW_HEIGHT;
    const head = this.table.tHead.offsetHeight;
    const room = this.scroller.clientHeight - head - ROW_HEIGHT;
    const { scrollTop } = this.scroller;
    this.scroller.scrollTop = Math.min(top, Math.max(scrollTop, top - room));
    this.render();
  }

  key(event) {
    if (event.target !== this.table) return;
    const page = Math.max(
      1, Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 2);
    const moves = {
      ArrowDown: this.active + 1,
      ArrowUp: this.active - 1,
      PageDown: this.active + page,
      PageUp: this.active - page,
      Home: 0,
      End: this.rows.length - 1,
    };
    if (Object.hasOwn(moves, event.key)) {
      event.preventDefault();
      this.moveTo(moves[event.key]);
    } else if (event.key === "Enter" && this.active >= 0) {
      this.choose(this.active);
    }
  }

  // All rows as spreadsheets read them; sizes in bytes.
  asText() {
    const head = this.columns.map((column) =>
      `${column.title}${column.unit ?? ""}`);
    const lines = this.rows.map((row) =>
      this.columns.map((column) => (column.whole ?? column.text)(row)));
    return [head, ...lines].map((cells) =>
      cells.map((cell) => cell.replace(/[\t\r\n]+/g, " ")).join("\t"),
    ).join("\n");
  }
}

// Pages that are opened from disk may have no clipboard of their own.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea");
    area.className = "hidden";
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}

// Lets a table that is in the page already be sorted by each of its columns.
function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((cell, k) => {
    const button = make("button", cell.textContent);
    button.type = "button";
    cell.replaceChildren(button);
    const isNumber = cell.classList.contains("number");
    button.addEventListener("click", () => {
      const was = cell.ariaSort;
      for (const other of heads) other.ariaSort = "none";
      // Of numbers, the largest come first.
      const isDown =
        was === "ascending" || (isNumber && was !== "descending");
      cell.ariaSort = isDown ? "descending" : "ascending";
      const sign = isDown ? -1 : 1;
      const of = (line) =>
        isNumber
          ? Number(line.cells[k].dataset.value)
          : sortable(line.cells[k].textContent);
      const lines = [...body.rows].map((line) => [of(line), line]);
      lines.sort(([a], [b]) => sign * compareTexts(a, b));
      body.replaceChildren(...lines.map(([, line]) => line));
    });
  });
}
