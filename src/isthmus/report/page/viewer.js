/* A page on which a reader opens plans from files, by dropping or choosing them, and compares them. */

const FIGURES = [
  ["scratch_bytes", "Scratch", "bytes"], ["lower_bound", "Lower bound", "bytes"], ["greedy_bytes", "Greedy by size", "bytes"],
  ["state_bytes", "State", "bytes"], ["io_bytes", "Inputs and outputs", "bytes"], ["constant_bytes", "Constants", "bytes"],
  ["steps", "Steps", "count"], ["backend_copied_bytes", "Copied by the backend", "bytes"],
];

/** Return names that tell reports apart: the model, with the backend, the file or a number where models are the same. */
function distinctNames(opened) {
  const ways = [
    ({ report }) => report.model.split("/").pop(),
    ({ report }) => `${report.model.split("/").pop()} on ${report.backend || "?"}`,
    ({ report, file }) => `${report.model.split("/").pop()}, ${file}`,
    ({ report }, number) => `${report.model.split("/").pop()} (${number + 1})`,
  ];
  const lists = ways.map((way) => opened.map(way));
  return lists.find((names) => new Set(names).size === names.length) || lists.at(-1);
}

/** Return the sections that show reports: the figures of one, or a table of several; maps on one scale; times. */
function viewedSections(reports, names) {
  const has = (key) => reports.some((report) => report[key] !== undefined);
  const known = FIGURES.filter(([key]) => has(key));
  const several = reports.length > 1;
  const latency = reports.map((report) => (report.latency_ms ? report.latency_ms.p50 * 1000 : null));
  const hasLatency = latency.some((each) => each !== null);
  const sections = [];
  if (several) {
    const rows = known.map(([key, title]) => [title, ...reports.map((report) => report[key] ?? null)]);
    if (hasLatency) rows.push(["Time of a run, µs", ...latency]);
    const columns = [{ title: "figure", unit: "text" }, ...names.map((title) => ({ title, unit: "count" }))];
    if (reports.length === 2) {
      columns.push({ title: "difference", unit: "count" }, { title: "relative", unit: "percent" });
      for (const row of rows) {
        const [, a, b] = row, isKnown = a !== null && b !== null;
        row.push(isKnown ? b - a : null, isKnown && a ? ((b - a) / a) * 100 : null);
      }
    }
    sections.push({ kind: "table", title: "Figures", note: "Memory in bytes.", columns, rows });
  } else {
    const figures = known.filter(([key]) => reports[0][key]).map(([key, title, unit]) => ({ title, value: reports[0][key], unit, part: null, tone: "" }));
    if (hasLatency) figures.push({ title: "Time of a run", value: latency[0], unit: "us", part: null, tone: "" });
    sections.push({ kind: "figures", title: names[0], figures });
  }
  const scale = largest(reports.map((report) => report.scratch_bytes), 0);
  const maps = reports.map((report, number) => ({
    kind: "map", title: several ? names[number] : "Scratch over time", report: number, bytes: scale,
    note: several ? [report.backend, size(report.scratch_bytes)].filter(Boolean).join(" · ") : "",
  })).filter((_, number) => reports[number].tensors);
  if (maps.length) sections.push({ kind: "columns", sections: maps });
  if (has("operations")) {
    const timed = reports.map((_, number) => number).filter((number) => reports[number].operations);
    const times = timed.map((number) => new Map(reports[number].operations.map((each) => [each.name, each.us])));
    const all = [...new Set(times.flatMap((each) => [...each.keys()]))];
    const rows = all.map((name) => [name, ...times.map((each) => each.get(name) ?? null)]);
    const columns = [{ title: "operation", unit: "text" }, ...timed.map((number) => ({ title: several ? `${names[number]}, µs` : "µs", unit: "us", bar: true }))];
    rows.sort((a, b) => Math.max(...b.slice(1)) - Math.max(...a.slice(1)));
    sections.push({ kind: "table", title: "Time per operation", note: "", columns, rows });
  }
  return sections;
}

/** Return whether a report can be drawn on a page of its own. */
function isDrawable({ report }) {
  try {
    viewedSections([report], [""]).forEach((section) => drawn(section, { reports: [report] }));
    return true;
  } catch {
    return false;
  }
}

/** Draw the place where files are dropped, the list of those that are open, and what they show. */
function drawViewer() {
  const opened = []; // A report, and the name of its file.
  const result = element("div", ""), list = element("ul", "opened"), problems = element("ul", "notes");
  problems.setAttribute("role", "alert");
  const field = element("input");
  field.type = "file";
  field.multiple = true;
  field.accept = ".json,.html,.htm";
  field.id = "files";
  const label = element("label", "", "Choose files");
  label.htmlFor = field.id;
  const area = element("section", "drop", element("h2", "", "Open plans"),
    element("p", "", "Drop pages of --html or the output of --json anywhere on this page. They are read in this browser and sent nowhere."),
    element("div", "tools", field, label, element("span", "mono muted", "isthmus plan model.onnx --json > plan.json")), list, problems);
  const base = themeListeners.length;

  /** Draw what is open. What cannot be drawn is closed and named, so that it does not hide the others. */
  function show() {
    try {
      draw();
    } catch {
      // Where each can be drawn alone, they are too many together.
      const bad = opened.find((each) => !isDrawable(each)) || opened.at(-1);
      opened.splice(opened.indexOf(bad), 1);
      problems.append(element("li", "bad", `${bad.file}: it cannot be drawn`));
      show();
    }
  }

  function draw() {
    // Maps that are no longer on the page are forgotten.
    themeListeners.length = base;
    area.classList.toggle("empty", !opened.length);
    const names = distinctNames(opened), facts = { reports: opened.map((each) => each.report) };
    list.replaceChildren(...opened.map((each, number) => {
      const button = element("button", "icon", "×");
      button.setAttribute("aria-label", `Close ${names[number]}`);
      button.addEventListener("click", () => {
        opened.splice(opened.indexOf(each), 1);
        show();
        field.focus();
      });
      return element("li", "", element("span", "", names[number]), names[number].includes(each.file) ? "" : element("span", "muted", each.file), button);
    }));
    result.replaceChildren(...(opened.length ? viewedSections(facts.reports, names).map((section) => drawn(section, facts)) : []));
    themeListeners.forEach((call) => call());
  }

  async function open(files) {
    const found = await Promise.all([...files].map(async (file) => {
      try {
        if (file.size > MAX_FILE_BYTES) throw new Error(`it is larger than ${size(MAX_FILE_BYTES)}`);
        return savedReports(await file.text()).map((report) => ({ report, file: file.name }));
      } catch (problem) {
        // What the system says of a file that cannot be read is an error of another kind.
        return `${file.name}: ${problem instanceof DOMException ? "it cannot be read" : problem.message}`;
      }
    }));
    for (const each of found.flat()) if (typeof each !== "string") opened.push(each);
    problems.replaceChildren(...found.filter((each) => typeof each === "string").map((text) => element("li", "bad", text)));
    show();
  }

  field.addEventListener("change", async () => {
    await open(field.files);
    field.value = ""; // The same file can be chosen again.
  });
  let inside = 0; // How many elements under the pointer a drag has entered and not left.
  const drag = (change) => (event) => {
    event.preventDefault();
    inside = change === 0 ? 0 : inside + change;
    area.classList.toggle("over", inside > 0);
  };
  addEventListener("dragenter", drag(1));
  addEventListener("dragleave", drag(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    drag(0)(event);
    open(event.dataTransfer.files);
  });
  show();
  return element("div", "", area, result);
}

/** Draw sections beside each other if there are several and there is room. */
function drawColumns(data, facts) {
  return element("div", data.sections.length > 1 ? "sides" : "", ...data.sections.map((section) => drawn(section, facts)));
}
