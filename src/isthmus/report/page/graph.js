/* The graph beside a map: a row for each step in the order of execution, and lines from results to their readers. */

const ROW = 30, LANE = 9, MAX_LANES = 6; // The height of a row, the distance of lanes, and how many there are at most.
const LINKS = ["after", "reads", "writes", "inputs", "outputs"]; // What a report says of a step that can be drawn.
let graphs = 0; // How many are on the page: rows have ids.

/** Return the nodes of a plan: inputs, steps, outputs. Each knows its neighbours by number and its blocks. */
function graphNodes(report, blockOf) {
  const order = report.order || [];
  if (!order.length || !order.every((step) => LINKS.every((name) => step[name]))) return [];
  const found = [...new Set(order.flatMap((step) => step.inputs))].map((name) => ({ kind: "input", name, op: "input" }));
  const inputs = new Map(found.map((node, number) => [node.name, number])), offset = found.length;
  const times = new Map((report.operations || []).map((each) => [each.name, each.us]));
  order.forEach((step, number) => {
    const label = `${step.op} ${step.name}`;
    found.push({
      kind: "step", name: step.name, op: step.op, step: number, us: times.get(label),
      from: [...step.inputs.map((name) => inputs.get(name)), ...step.after.map((each) => each + offset)],
      reads: step.reads.map(blockOf).filter(Boolean), writes: step.writes.map(blockOf).filter(Boolean),
    });
    times.delete(label); // Tiles of an operation have one time together, which the first shows.
  });
  order.forEach((step, number) => step.outputs.forEach((name) =>
    found.push({ kind: "output", name, op: "output", from: [number + offset] })));
  found.forEach((node, number) => {
    node.number = number;
    node.from ||= [];
    node.reads ||= [];
    node.writes ||= [];
    node.to = [];
    for (const other of node.from) found[other].to.push(number);
  });
  return found;
}

/** Choose a lane for each node whose result is read later than in the next row; return how many there are. */
function chooseLanes(nodes) {
  const busy = []; // The last row of each lane that is taken so far.
  for (const node of nodes) {
    const last = largest(node.to, node.number);
    if (last <= node.number + 1) continue;
    const free = busy.findIndex((row) => row <= node.number);
    // If all are taken, the last one is shared.
    node.lane = free >= 0 ? free : Math.min(busy.length, MAX_LANES - 1);
    busy[node.lane] = Math.max(busy[node.lane] || 0, last);
  }
  return busy.length;
}

/** Describe a node in lines; the first is its name. */
function nodeLines(node) {
  const named = (blocks) => blocks.map((block) => `${shortened(block.name, 40)} (${size(block.bytes)})`).join(", ");
  const lines = [node.name, node.kind === "step" ? `step ${node.step}, ${node.op}` : node.op];
  if (node.us !== undefined) lines.push(valueParts(node.us, "us").join(" "));
  if (node.reads.length) lines.push(`reads ${named(node.reads)}`);
  if (node.writes.length) lines.push(`writes ${named(node.writes)}`);
  return lines;
}

/**
 * Draw the graph of a plan, of which at most MAX_ROWS nodes are shown. `point` is called with the node that a reader points at or focuses, or null; `pick` with
 * one that is clicked. The result has the element, and functions that mark what belongs to a block or to a search.
 */
function drawGraph(all, peak, point, pick) {
  const nodes = all.slice(0, MAX_ROWS), readers = (node) => node.to.filter((to) => to < nodes.length);
  const lanes = chooseLanes(nodes), dot = 12 + lanes * LANE, prefix = `graph-${++graphs}-`;
  const most = largest(nodes.map((node) => node.us || 0), 1e-9), isTimed = nodes.some((node) => node.us !== undefined);
  const rows = nodes.map((node) => {
    const amount = node.us !== undefined ? valueParts(node.us, "us").join(" ")
      : !isTimed && node.writes.length ? size(largest(node.writes.map((block) => block.bytes), 0)) : "";
    const value = element("span", "amount", amount);
    if (node.us !== undefined) {
      const bar = element("i", "inline");
      bar.style.width = `${(node.us / most) * 100}%`;
      value.append(bar);
    }
    const row = element("div", `node ${node.kind}`, element("b", ""), element("span", "op", node.op), element("span", "name", shortened(node.name, 60)), value);
    if (node.step === peak) row.classList.add("peak");
    row.id = prefix + node.number;
    row.setAttribute("role", "option");
    return row;
  });
  const y = (number) => (number + 0.5) * ROW;
  /** Return the path of an edge: straight to the next row, else by the lane of the node that it comes from. */
  const edge = (from, to) => {
    if (to === from + 1) return `M${dot} ${y(from)}V${y(to)}`;
    const lane = dot - 12 - nodes[from].lane * LANE, half = ROW / 2;
    return `M${dot} ${y(from)}Q${lane} ${y(from)} ${lane} ${y(from) + half}V${y(to) - half}Q${lane} ${y(to)} ${dot} ${y(to)}`;
  };
  const box = element("div", "graph", ...rows);
  // Markup without any text of a model: the parser is the way to elements of SVG that names no address.
  box.insertAdjacentHTML("afterbegin", `<svg width="${dot + 8}" height="${nodes.length * ROW}" aria-hidden="true"><path/><path class="lit"/></svg>`);
  const [edges, lit] = box.querySelectorAll("path");
  edges.setAttribute("d", nodes.map((node) => readers(node).map((to) => edge(node.number, to)).join("")).join(""));
  box.style.setProperty("--dot", `${dot}px`);
  box.tabIndex = 0;
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", `Graph of ${grouped(nodes.length)} inputs, operations and outputs. Arrow keys choose one, Enter shows its memory.`);

  let active = null, marked = [];
  const reveal = (number) => {
    const top = number * ROW;
    if (top < box.scrollTop || top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
  };
  /** Point at a node, which lights its edges, or at none. */
  function enter(node) {
    if (node === active) return;
    if (active) rows[active.number].classList.remove("active");
    active = node;
    const [into, out] = node ? [node.from, readers(node)] : [[], []];
    lit.setAttribute("d", [...into.map((from) => edge(from, node.number)), ...out.map((to) => edge(node.number, to))].join(""));
    if (node) {
      rows[node.number].classList.add("active");
      box.setAttribute("aria-activedescendant", rows[node.number].id);
    }
    point(node);
  }
  /** Mark the nodes that write and read a block, and bring the first of them into view. */
  function mark(block) {
    for (const row of marked) row.classList.remove("writes", "reads");
    marked = [];
    if (!block) return;
    for (const node of nodes) {
      const role = node.writes.includes(block) ? "writes" : node.reads.includes(block) ? "reads" : "";
      if (!role) continue;
      rows[node.number].classList.add(role);
      if (!marked.length) reveal(node.number);
      marked.push(rows[node.number]);
    }
  }
  /** Dim the nodes that a search does not find. */
  function search(text, matches) {
    nodes.forEach((node, number) => {
      const isFound = `${node.op} ${node.name}`.toLowerCase().includes(text) || [...node.reads, ...node.writes].some((block) => matches.has(block));
      rows[number].classList.toggle("dim", text !== "" && !isFound);
    });
  }

  const at = (event) => nodes[Math.floor((event.clientY - box.getBoundingClientRect().top + box.scrollTop) / ROW)] || null;
  box.addEventListener("pointermove", (event) => enter(at(event)));
  box.addEventListener("pointerleave", () => enter(null));
  box.addEventListener("blur", () => enter(null));
  box.addEventListener("focus", () => {
    if (box.matches(":focus-visible")) enter(active || nodes[0]);
  });
  box.addEventListener("click", (event) => {
    const node = at(event);
    enter(node);
    if (node) pick(node);
  });
  box.addEventListener("keydown", (event) => {
    const here = active ? active.number : -1, last = nodes.length - 1;
    const next = { ArrowDown: here + 1, ArrowUp: here - 1, PageDown: here + 10, PageUp: here - 10, Home: 0, End: last }[event.key];
    if (next !== undefined) {
      enter(nodes[Math.min(Math.max(next, 0), last)]);
      reveal(active.number);
    } else if (event.key === "Enter" && active) {
      pick(active);
    } else {
      return;
    }
    event.preventDefault();
  });
  return { element: box, nodes, mark, search, enter };
}
