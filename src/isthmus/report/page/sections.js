/* Sections: each kind has a function that returns its element. */

const ROWS_AT_FIRST = 20; // Of a table; a button shows the others.
const LONG = 60; // Names that a converter joined are shortened in a cell if they are longer; the tooltip has all.
const BRIEF = 14; // Texts of a column that has no longer one stay in one line.

/** Return an empty section with its title and note. */
function framed(data, className) {
  const section = element("section", className);
  if (data.title) section.append(element("h2", "", data.title));
  if (data.note) section.append(element("p", "", data.note));
  return section;
}

function drawFigures(data) {
  const section = framed(data, "figures");
  const grid = element("div");
  for (const figure of data.figures) {
    const [value, unit] = valueParts(figure.value, figure.unit);
    const large = element("div", "value", value, unit ? element("span", "unit", unit) : "");
    const exact = figure.unit === "bytes" ? `${grouped(figure.value)} bytes` : "";
    if (exact) large.title = exact;
    const body = element("dd", "", large);
    if (figure.part !== null) {
      const fill = element("i");
      fill.style.width = `${Math.min(Math.max(figure.part, 0), 1) * 100}%`;
      body.append(element("div", "meter", fill));
    }
    if (figure.note) body.append(element("div", "note", figure.note));
    grid.append(element("dl", `figure ${figure.tone}`, element("dt", "", figure.title), body));
  }
  section.append(grid);
  return section;
}

function drawBars(data) {
  const section = framed(data, "");
  const most = largest(data.bars.map((bar) => Math.max(bar.value, bar.limit || 0)), 1e-9);
  const grid = element("div", "bars");
  for (const bar of data.bars) {
    const over = bar.limit !== null && bar.value > bar.limit;
    const fill = element("div", `fill ${over ? "bad" : bar.tone}`);
    fill.style.width = `${(bar.value / most) * 100}%`;
    const track = element("div", "track", fill);
    let amount = cellText(bar.value, data.unit);
    if (bar.limit !== null) {
      const mark = element("div", "limit");
      mark.style.left = `calc(${(bar.limit / most) * 100}% - 2px)`;
      track.append(mark);
      amount += ` of ${cellText(bar.limit, data.unit)}`;
    }
    grid.append(element("div", "bar",
      element("div", "label", bar.label), track, element("div", `amount ${over ? "bad" : ""}`, amount),
      bar.note ? element("div", "note", bar.note) : ""));
  }
  section.append(grid);
  return section;
}

/** Compare two cells for sorting: numbers by value, texts by their parts, empty ones last. `sign` is -1 to descend. */
function compared(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
}

/** Draw a table. `picked` is called with the number of a row that a reader chooses, if given. */
function drawTable(data, picked) {
  const section = framed(data, "table");
  const body = element("tbody");
  const head = element("tr");
  const state = { column: -1, sign: 1, text: "", all: false };
  const peaks = data.columns.map((column, k) =>
    largest(data.rows.map((row) => (typeof row[k] === "number" ? row[k] : 0)), 1e-12));
  const isNumber = (column) => column.unit !== "text";
  const classes = data.columns.map((column, k) => isNumber(column) ? "number"
    : data.rows.every((row) => String(row[k] ?? "").length <= BRIEF) ? "text brief" : "text");
  const more = element("button", "more");

  function cell(value, column, k) {
    const text = cellText(value, column.unit), isJoined = text.length > LONG && text.includes(";");
    const made = element("td", classes[k], isJoined ? shortened(text, LONG) : text);
    if (isJoined) made.title = text;
    if (column.bar && typeof value === "number") {
      const bar = element("i", "inline");
      bar.style.width = `${(Math.max(value, 0) / peaks[k]) * 100}%`;
      made.append(bar);
    }
    return made;
  }

  function show() {
    let order = data.rows.map((_, index) => index);
    if (state.text) {
      order = order.filter((index) => data.rows[index].some((value) => String(value).toLowerCase().includes(state.text)));
    }
    if (state.column >= 0) {
      order.sort((a, b) => compared(data.rows[a][state.column], data.rows[b][state.column], state.sign) || a - b);
    }
    const shown = order.slice(0, state.all ? MAX_ROWS : ROWS_AT_FIRST);
    body.replaceChildren(...shown.map((index) => {
      const row = element("tr", picked ? "pick" : (data.tones || [])[index] || "", ...data.columns.map((column, k) => cell(data.rows[index][k], column, k)));
      if (picked) {
        row.tabIndex = 0;
        row.addEventListener("click", () => picked(index));
        row.addEventListener("keydown", (event) => {
          if (event.key === "Enter") picked(index);
        });
      }
      return row;
    }));
    more.hidden = shown.length === order.length;
    more.disabled = state.all;
    more.textContent = state.all ? `${grouped(shown.length)} of ${grouped(order.length)} are shown`
      : `Show ${order.length > MAX_ROWS ? `${grouped(MAX_ROWS)} of` : "all"} ${grouped(order.length)}`;
  }

  data.columns.forEach((column, k) => {
    const button = element("button", "", column.title);
    const title = element("th", isNumber(column) ? "number" : "", button);
    title.scope = "col";
    button.addEventListener("click", () => {
      // The first click shows the largest numbers, or texts from A.
      state.sign = state.column === k ? -state.sign : isNumber(column) ? -1 : 1;
      state.column = k;
      for (const other of head.children) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", state.sign > 0 ? "ascending" : "descending");
      show();
    });
    head.append(title);
  });
  more.addEventListener("click", () => {
    state.all = true;
    show();
  });
  if (data.rows.length > 12) {
    const search = element("input");
    search.type = "search";
    search.placeholder = "Search";
    search.setAttribute("aria-label", `Search ${data.title || "the table"}`);
    search.addEventListener("input", () => {
      state.text = search.value.trim().toLowerCase();
      show();
    });
    section.append(element("div", "tools", search));
  }
  show();
  section.append(element("div", "scroll", element("table", "", element("thead", "", head), body)), more);
  return section;
}

function drawNotes(data) {
  const section = framed(data, "");
  const items = data.notes.map((note) =>
    element("li", note.tone, element("div", "", note.text), note.detail ? element("div", "detail", note.detail) : ""));
  section.append(element("ul", "notes", ...items));
  return section;
}

function drawSides(data, facts) {
  const holder = element("div", "");
  if (data.title) holder.append(element("h2", "between", data.title));
  const sides = ["left", "right"].map((side, k) =>
    element("div", "", element("h3", "", data.headings[k]), ...data[side].map((section) => drawn(section, facts))));
  holder.append(element("div", "sides", ...sides));
  return holder;
}

const KINDS = {
  figures: drawFigures,
  bars: drawBars,
  table: (data) => drawTable(data, null),
  notes: drawNotes,
  profile: drawProfile,
  map: drawMap,
  domains: drawDomains,
  heading: (data) => element("h2", "between", data.title),
  sides: drawSides,
  viewer: () => drawViewer(),
  columns: (data, facts) => drawColumns(data, facts),
};

/** Return the element of a section. */
function drawn(data, facts) {
  return KINDS[data.kind](data, facts);
}
