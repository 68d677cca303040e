/* What a memory map shows: the blocks of a plan, their colours and texts, the ticks of its axes. */

const COOL = ["cool-1", "cool-2", "cool-3", "cool-4"], WARM = ["warm-1", "warm-2", "warm-3"];

/** Return round numbers from `low` to `high`, about `count` of them. With `binary`, multiples of a power of two. */
function ticks(low, high, count, binary) {
  const rough = Math.max((high - low) / count, 1e-9);
  let unit;
  if (binary) {
    unit = 2 ** Math.ceil(Math.log2(rough));
  } else {
    const power = 10 ** Math.floor(Math.log10(rough));
    unit = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  }
  unit = Math.max(unit, 1);
  const found = [];
  for (let value = Math.ceil(low / unit) * unit; value <= high; value += unit) found.push(value);
  return found;
}

/** Return as much of a name as fits into a width, with at least five letters, or nothing. */
function fitted(context, name, width) {
  const most = Math.floor(width / 5);
  for (let letters = Math.min(name.length, most); letters > 4; letters--) {
    const text = shortened(name, letters);
    if (context.measureText(text).width <= width) return text;
  }
  return name.length <= 4 && context.measureText(name).width <= width ? name : "";
}

/** The facts of a plan as the map uses them. */
function planFacts(report) {
  const peak = report.peak ? report.peak.step : -1;
  const order = report.order || [];
  const tensors = report.tensors.map((tensor) => ({
    ...tensor,
    end: tensor.offset + tensor.bytes,
    atPeak: tensor.first <= peak && peak <= tensor.last,
    isWork: tensor.name.endsWith(" (work)"),
  }));
  const blocks = tensors.filter((tensor) => tensor.bytes > 0);
  let cool = 0, warm = 0;
  for (const block of blocks) {
    block.color = block.atPeak ? WARM[warm++ % WARM.length] : block.isWork ? "work" : COOL[cool++ % COOL.length];
  }
  const begin = blocks.reduce((least, block) => Math.min(least, block.first), 0);
  const end = blocks.reduce((most, block) => Math.max(most, block.last + 1), Math.max(report.steps || 0, 1));
  // The live bytes of each step, from what begins and ends there.
  const live = new Float64Array(end - begin + 1);
  for (const block of blocks) {
    live[block.first - begin] += block.bytes;
    live[block.last + 1 - begin] -= block.bytes;
  }
  for (let k = 1; k < live.length; k++) live[k] += live[k - 1];
  const stepName = (step) => {
    if (step < 0) return "before the first step";
    if (step >= report.steps) return "after the last step";
    return order[step] ? `step ${step}, ${order[step].op} ${shortened(order[step].name, 60)}` : `step ${step}`;
  };
  const nodes = graphNodes(report, (number) => (tensors[number].bytes > 0 ? tensors[number] : null));
  for (const node of nodes) {
    if (node.us !== undefined) for (const block of node.writes) if (!block.isWork) block.us ??= node.us;
  }
  return { blocks, begin, end, peak, live, stepName, nodes, regions: report.regions || [] };
}

/** Describe a block in lines; the first is its name. */
function blockLines(block, facts) {
  const lives = block.first === block.last
    ? `lives in ${facts.stepName(block.first)}`
    : `lives from ${facts.stepName(block.first)} to ${facts.stepName(block.last)}`;
  const lines = [block.name, `${size(block.bytes)} (${grouped(block.bytes)} bytes) at ${grouped(block.offset)}`, lives];
  if (block.us !== undefined) lines.push(`computed in ${valueParts(block.us, "us").join(" ")}`);
  if (block.atPeak) lines.push("live at the peak");
  return lines;
}

/** Return the table of what is live at the peak; a chosen row is shown in the map. */
function peakTable(report, plan, choose) {
  if (!report.peak) return "";
  const live = plan.blocks.filter((block) => block.atPeak).sort((a, b) => b.bytes - a.bytes);
  const table = drawTable({
    title: `Live at the peak: ${grouped(live.length)} blocks, ${grouped(report.peak.live_bytes)} bytes`,
    note: `${plan.stepName(report.peak.step)}`.replace(/^s/, "S"),
    columns: [
      { title: "tensor", unit: "text" }, { title: "bytes", unit: "bytes", bar: true },
      { title: "share", unit: "percent" }, { title: "steps", unit: "text" },
    ],
    rows: live.map((block) => [
      block.name, block.bytes, (block.bytes / report.peak.live_bytes) * 100,
      `${block.first < 0 ? "start" : block.first}–${block.last >= report.steps ? "end" : block.last}`,
    ]),
  }, (row) => choose(live[row]));
  table.className = "at-peak";
  return table;
}
