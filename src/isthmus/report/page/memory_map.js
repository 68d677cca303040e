/* The memory map: steps from left to right, addresses from bottom to top, each block at its address and lifetime. */

const MAP_LEFT = 68, MAP_RIGHT = 8, MAP_TOP = 22, MAP_BOTTOM = 24;
const LABEL_HEIGHT = 14; // Labels of an axis are this far apart.
const MIN_ZOOM_STEPS = 2; // The fewest steps that fill the map.
const KEYS = "Arrow keys choose blocks, plus and minus zoom, 0 shows all, P goes to the peak.";

/** Draw the section of a map: search, zoom, blocks, an overview of live bytes, and the tensors at the peak. */
function drawMap(data, facts) {
  const report = facts.reports[data.report];
  const plan = planFacts(report);
  const section = framed(data, "map");
  if (!plan.blocks.length) {
    section.append(element("p", "muted", "No scratch memory is in use."));
    return section;
  }
  const height = largest(plan.blocks.map((block) => block.end), Math.max(data.bytes, report.scratch_bytes, 1));
  const whole = { left: plan.begin, right: plan.end, low: 0, high: height };
  const view = { ...whole };
  // `node` is the node of the graph that a reader points at, `own` has its blocks.
  const state = { hover: null, chosen: null, text: "", matches: new Set(), node: null, own: new Set() };

  const blocks = element("canvas", "blocks");
  blocks.tabIndex = 0;
  blocks.setAttribute("role", "application");
  blocks.setAttribute("aria-label", `Map of ${plan.blocks.length} blocks of memory over ${report.steps} steps. ${KEYS}`);
  const overview = element("canvas", "overview");
  overview.setAttribute("role", "img");
  overview.setAttribute("aria-label", `Live bytes at each step, at most ${grouped(report.peak ? report.peak.live_bytes : 0)}`);
  const tip = element("div", "tip");
  tip.hidden = true;
  const chosen = element("div", "chosen-block muted");
  chosen.setAttribute("aria-live", "polite");
  const count = element("span", "muted");
  count.setAttribute("aria-live", "polite");

  // -- geometry -------------------------------------------------------------------------------------------------------

  // The size of the map in pixels. Asking an element is slow, so it is measured once for each picture.
  const box = { width: 1, height: 1 };
  function measure() {
    box.width = Math.max(blocks.clientWidth - MAP_LEFT - MAP_RIGHT, 1);
    box.height = Math.max(blocks.clientHeight - MAP_TOP - MAP_BOTTOM, 1);
  }
  const x = (step) => MAP_LEFT + ((step - view.left) / (view.right - view.left)) * box.width;
  const y = (bytes) => MAP_TOP + (1 - (bytes - view.low) / (view.high - view.low)) * box.height;
  const stepAt = (px) => view.left + ((px - MAP_LEFT) / box.width) * (view.right - view.left);
  const byteAt = (py) => view.low + (1 - (py - MAP_TOP) / box.height) * (view.high - view.low);

  /** Show a range of steps and bytes, moved so that it is inside the whole. */
  function show(left, right, low, high) {
    const fit = (from, to, least, most, smallest) => {
      const span = Math.min(Math.max(to - from, smallest), most - least);
      const start = Math.min(Math.max(from + (to - from - span) / 2, least), most - span);
      return [start, start + span];
    };
    [view.left, view.right] = fit(left, right, whole.left, whole.right, Math.min(MIN_ZOOM_STEPS, whole.right - whole.left));
    [view.low, view.high] = fit(low, high, 0, height, Math.min(64, height));
    redraw();
  }

  /** Zoom by a factor about a point of the canvas; below 1 shows less. */
  function zoom(factor, px = MAP_LEFT + box.width / 2, py = MAP_TOP + box.height / 2) {
    const step = stepAt(px), byte = byteAt(py);
    show(step - (step - view.left) * factor, step + (view.right - step) * factor,
      byte - (byte - view.low) * factor, byte + (view.high - byte) * factor);
  }

  function pan(dx, dy) {
    const steps = (dx / box.width) * (view.right - view.left), bytes = (dy / box.height) * (view.high - view.low);
    show(view.left - steps, view.right - steps, view.low + bytes, view.high + bytes);
  }

  /** Bring a block into view, with its surroundings, if it is not there or too small to see. */
  function reveal(block) {
    const wide = (block.last + 1 - block.first) * 6, high = block.bytes * 6;
    const visible = block.last + 1 > view.left && block.first < view.right && block.end > view.low && block.offset < view.high;
    const seen = x(block.last + 1) - x(block.first) >= 3 && y(block.offset) - y(block.end) >= 3;
    if (visible && seen) return;
    const middle = (block.first + block.last + 1) / 2, level = (block.offset + block.end) / 2;
    const steps = Math.min(view.right - view.left, Math.max(wide, MIN_ZOOM_STEPS));
    const bytes = Math.min(view.high - view.low, Math.max(high, 64));
    show(middle - steps / 2, middle + steps / 2, level - bytes / 2, level + bytes / 2);
  }

  /** Return the block at a point; of blocks thinner than the pointer, the nearest. */
  function blockAt(px, py) {
    if (px < MAP_LEFT || py < MAP_TOP || py > MAP_TOP + box.height) return null;
    const step = stepAt(px), byte = byteAt(py), slack = (view.high - view.low) * (3 / box.height);
    let best = null, nearest = slack;
    for (const block of plan.blocks) {
      if (step < block.first || step >= block.last + 1) continue;
      const distance = Math.max(block.offset - byte, byte - block.end, 0);
      if (distance === 0) return block;
      if (distance < nearest) [best, nearest] = [block, distance];
    }
    return best;
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  let pending = false, palette = {};

  function paint() {
    paintBlocks();
    paintOverview();
  }

  /** Draw again before the next frame, once for all changes until then. */
  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      paint();
    });
  }

  function paintBlocks() {
    measure();
    const context = prepared(blocks), { width, height: tall } = box;
    const bottom = MAP_TOP + tall, right = MAP_LEFT + width;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    // The top has a tick, and so has the plan's own size if the map is higher; round numbers keep clear of both.
    const marks = [...new Set([view.high, report.scratch_bytes])].filter((bytes) => view.low < bytes && bytes <= view.high);
    const rounds = ticks(view.low, view.high, Math.max(tall / 70, 2), true);
    const isClear = (bytes) => marks.every((mark) => Math.abs(y(bytes) - y(mark)) > LABEL_HEIGHT);
    for (const bytes of [...marks, ...rounds.filter(isClear)]) {
      const level = Math.round(y(bytes)) + 0.5;
      context.beginPath();
      context.moveTo(MAP_LEFT, level);
      context.lineTo(right, level);
      context.stroke();
      context.fillStyle = palette.muted;
      context.fillText(size(bytes), MAP_LEFT - 8, Math.min(level, bottom));
    }
    context.textAlign = "center";
    for (const step of ticks(Math.max(view.left, 0), view.right, Math.max(width / 80, 2), false)) {
      if (step >= report.steps || x(step + 0.5) > right - 12) continue;
      context.fillStyle = palette.muted;
      context.fillText(String(step), x(step + 0.5), bottom + 14);
    }
    context.textAlign = "right";
    context.fillStyle = palette.muted;
    context.fillText("step", MAP_LEFT - 8, bottom + 14);

    context.save();
    context.beginPath();
    context.rect(MAP_LEFT, MAP_TOP, width, tall);
    context.clip();
    for (const block of plan.blocks) paintBlock(context, block);
    paintNode(context, bottom);
    for (const block of [state.hover, state.chosen]) {
      if (block) outline(context, block, block === state.chosen ? 2.5 : 1.5);
    }
    paintRegions(context, bottom);
    context.restore();
    paintPeak(context, bottom, right);
  }

  function paintBlock(context, block) {
    if (block.last + 1 < view.left || block.first > view.right || block.end < view.low || block.offset > view.high) return;
    const left = x(block.first), wide = x(block.last + 1) - left, top = y(block.end), tall = y(block.offset) - top;
    const isFaded = state.node ? !state.own.has(block) : state.text && !state.matches.has(block);
    context.globalAlpha = isFaded ? 0.18 : 1;
    context.fillStyle = palette[block.color];
    // A gap of one pixel between neighbours, unless nothing would be left.
    context.fillRect(left, top, Math.max(wide - (wide > 3 ? 1 : 0), 0.5), Math.max(tall - (tall > 3 ? 1 : 0), 0.5));
    if (wide > 46 && tall > 15) {
      const { from, room } = labelPlace(context, block.name, left, left + wide);
      const label = fitted(context, block.name, room - 12);
      if (label) {
        context.fillStyle = palette[block.atPeak ? "on-warm" : "on-cool"];
        context.textAlign = "left";
        const high = Math.max(top, MAP_TOP), low = Math.min(top + tall, MAP_TOP + box.height), middle = (high + low) / 2;
        const several = room > 100 && low - high > 36;
        context.fillText(label, from + 6, several ? middle - 8 : middle);
        if (several) context.fillText(size(block.bytes), from + 6, middle + 9);
      }
    }
    context.globalAlpha = 1;
  }

  /** Return where the label of a block begins and how much room it has: in view, and clear of the line of the peak. */
  function labelPlace(context, name, left, right) {
    const from = Math.max(left, MAP_LEFT), to = Math.min(right, MAP_LEFT + box.width), line = peakLine();
    const sides = from < line && line < to ? [{ from, room: line - from }, { from: line, room: to - line }] : [{ from, room: to - from }];
    const wide = context.measureText(name).width + 12;
    return sides.find((side) => side.room >= wide) || sides.sort((a, b) => b.room - a.room)[0];
  }

  function outline(context, block, thickness) {
    context.strokeStyle = palette.text;
    context.lineWidth = thickness;
    const left = x(block.first), top = y(block.end);
    context.strokeRect(left, top, Math.max(x(block.last + 1) - left - 1, 1), Math.max(y(block.offset) - top - 1, 1));
  }

  /** Mark the step that a reader points at in the graph, and the blocks that it writes. */
  function paintNode(context, bottom) {
    if (!state.node || state.node.kind !== "step") return;
    const left = x(state.node.step), wide = Math.max(x(state.node.step + 1) - left, 1.5);
    context.fillStyle = palette.text;
    context.globalAlpha = 0.14;
    context.fillRect(left, MAP_TOP, wide, bottom - MAP_TOP);
    context.globalAlpha = 1;
    for (const block of state.node.reads) outline(context, block, 1);
    for (const block of state.node.writes) outline(context, block, 2.5);
  }

  /** Mark the steps that are computed in tiles: equal tiles are drawn once. */
  function paintRegions(context, bottom) {
    context.fillStyle = palette.accent;
    context.textAlign = "left";
    for (const region of plan.regions) {
      const left = x(region.first), wide = x(region.last + 1) - left - 2;
      context.fillRect(left, bottom - 4, wide, 4);
      if (wide > 60) context.fillText(`${region.tiles} tiles`, left + 2, bottom - 12);
    }
  }

  /** Return where the line of the peak is; NaN if it is not in view. */
  function peakLine() {
    const right = MAP_LEFT + box.width;
    if (plan.peak < 0 || x(plan.peak + 1) < MAP_LEFT || x(plan.peak) > right) return NaN;
    return Math.min(Math.max(x(plan.peak + 0.5), MAP_LEFT), right);
  }

  function paintPeak(context, bottom, right) {
    const middle = peakLine();
    if (Number.isNaN(middle)) return;
    context.strokeStyle = context.fillStyle = palette.peak;
    context.lineWidth = 1.5;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(middle, MAP_TOP - 4);
    context.lineTo(middle, bottom);
    context.stroke();
    context.setLineDash([]);
    const text = `peak: step ${plan.peak}`, wide = context.measureText(text).width;
    context.textAlign = "left";
    context.font = `600 ${context.font}`;
    context.fillText(text, Math.min(Math.max(middle - wide / 2, MAP_LEFT), right - wide - 8), 9);
  }

  function paintOverview() {
    const context = prepared(overview), wide = overview.clientWidth - MAP_LEFT - MAP_RIGHT, tall = overview.clientHeight;
    const most = plan.live.reduce((a, b) => Math.max(a, b), 1), steps = plan.end - plan.begin;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = palette.muted;
    context.fillText("live", MAP_LEFT - 8, tall / 2);
    context.fillStyle = palette.track;
    context.fillRect(MAP_LEFT, 0, wide, tall);
    const bar = (k, fill, least) => {
      const high = (plan.live[k] / most) * (tall - 4), gap = wide / steps > 4 ? 1 : 0;
      context.fillStyle = fill;
      context.fillRect(MAP_LEFT + (k / steps) * wide, tall - high, Math.max(wide / steps - gap, least), high);
    };
    for (let k = 0; k < steps; k++) bar(k, palette["cool-3"], 0.6);
    // Last, so that it is seen beside thousands of others.
    if (plan.peak >= 0) bar(plan.peak - plan.begin, palette.peak, 2);
    if (view.left > whole.left || view.right < whole.right) {
      const left = MAP_LEFT + ((view.left - plan.begin) / steps) * wide;
      context.strokeStyle = palette.text;
      context.lineWidth = 1.5;
      context.strokeRect(left + 1, 1, ((view.right - view.left) / steps) * wide - 2, tall - 2);
    }
  }

  // -- choosing -------------------------------------------------------------------------------------------------------

  function choose(block, bring = true) {
    state.chosen = block;
    if (block && bring) reveal(block);
    tell();
    if (graph) graph.mark(block);
    redraw();
  }

  /** Describe below the map what a reader points at in the graph, or the chosen block. */
  function tell() {
    const lines = state.node ? nodeLines(state.node) : state.chosen ? blockLines(state.chosen, plan) : null;
    if (!lines) chosen.textContent = `Point at a block${graph ? " or an operation" : ""}, or choose one, to see what it is.`;
    else chosen.replaceChildren(element("strong", "mono", lines[0]), element("div", "", lines.slice(1).join(" · ")));
  }

  const graph = plan.nodes.length ? drawGraph(plan.nodes, plan.peak, (node) => {
    state.node = node;
    state.own = new Set(node ? [...node.reads, ...node.writes] : []);
    tell();
    redraw();
  }, (node) => {
    const own = [...node.writes, ...node.reads].sort((a, b) => b.bytes - a.bytes);
    if (own.length) choose(own[0]);
  }) : null;

  function search(text) {
    state.text = text.trim().toLowerCase();
    state.matches = new Set(plan.blocks.filter((block) => state.text && block.name.toLowerCase().includes(state.text)));
    if (graph) graph.search(state.text, state.matches);
    count.textContent = state.text ? `${grouped(state.matches.size)} of ${grouped(plan.blocks.length)}` : "";
    redraw();
  }

  /** Choose the block that follows the chosen one in a list, around its end. */
  function next(list, sign) {
    if (!list.length) return;
    const at = list.indexOf(state.chosen);
    choose(list[at < 0 ? (sign > 0 ? 0 : list.length - 1) : (at + sign + list.length) % list.length]);
  }

  function toPeak() {
    const steps = Math.min(whole.right - whole.left, Math.max(12, (whole.right - whole.left) / 8));
    show(plan.peak + 0.5 - steps / 2, plan.peak + 0.5 + steps / 2, 0, height);
  }

  const reset = () => show(whole.left, whole.right, 0, height);
  const above = (sign) => {
    const step = state.chosen ? state.chosen.first : Math.max(plan.peak, 0);
    const column = plan.blocks.filter((block) => block.first <= step && step <= block.last);
    next(column.sort((a, b) => a.offset - b.offset), sign);
  };
  const actions = {
    ArrowRight: () => next(plan.blocks, 1), ArrowLeft: () => next(plan.blocks, -1),
    ArrowUp: () => above(1), ArrowDown: () => above(-1),
    "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: reset, p: toPeak, P: toPeak,
    Escape: () => choose(null),
  };
  blocks.addEventListener("keydown", (event) => {
    const action = actions[event.key];
    if (action && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      action();
    }
  });

  // -- pointers: one drags, two zoom -----------------------------------------------------------------------------------

  const pointers = new Map();
  let moved = 0;
  const at = (event) => {
    const frame = blocks.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  };
  function hover(point) {
    state.hover = point && blockAt(point.x, point.y);
    tip.hidden = !state.hover;
    if (state.hover) placeTip(tip, blockLines(state.hover, plan), point, blocks);
    if (graph) graph.mark(state.hover || state.chosen);
    redraw();
  }
  blocks.addEventListener("pointerdown", (event) => {
    blocks.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, at(event));
    moved = 0;
  });
  blocks.addEventListener("pointermove", (event) => {
    const point = at(event), before = pointers.get(event.pointerId);
    if (!before) {
      hover(point);
      return;
    }
    if (pointers.size === 1) {
      moved += Math.abs(point.x - before.x) + Math.abs(point.y - before.y);
      if (moved > 4) {
        blocks.classList.add("dragging");
        tip.hidden = true;
        pan(point.x - before.x, event.pointerType === "touch" ? 0 : point.y - before.y);
      }
    } else {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const distance = (a, b) => Math.max(Math.hypot(a.x - b.x, a.y - b.y), 1);
      moved = 100;
      zoom(distance(before, other) / distance(point, other), (point.x + other.x) / 2, (point.y + other.y) / 2);
    }
    pointers.set(event.pointerId, point);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    blocks.addEventListener(kind, (event) => {
      if (kind === "pointerup" && pointers.size === 1 && moved <= 4) {
        const point = at(event), block = blockAt(point.x, point.y);
        choose(block, false);
        if (event.pointerType === "touch") hover(block ? point : null);
      }
      pointers.delete(event.pointerId);
      blocks.classList.remove("dragging");
    });
  }
  blocks.addEventListener("pointerleave", () => hover(null));
  blocks.addEventListener("dblclick", (event) => zoom(0.5, at(event).x, at(event).y));
  blocks.addEventListener("wheel", (event) => {
    // A plain wheel scrolls the page; with a key, or as a pinch, it zooms, and sideways it pans.
    if (event.ctrlKey || event.metaKey || event.shiftKey) {
      event.preventDefault();
      const amount = event.deltaY || event.deltaX;
      zoom(Math.exp(Math.min(Math.max(amount, -60), 60) * 0.008), at(event).x, at(event).y);
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan(-event.deltaX, 0);
    }
  }, { passive: false });
  const slide = (event) => {
    if (!event.buttons) return;
    const frame = overview.getBoundingClientRect(), wide = frame.width - MAP_LEFT - MAP_RIGHT;
    const step = plan.begin + ((event.clientX - frame.left - MAP_LEFT) / wide) * (plan.end - plan.begin);
    const half = (view.right - view.left) / 2;
    show(step - half, step + half, view.low, view.high);
  };
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    slide(event);
  });
  overview.addEventListener("pointermove", slide);

  // -- parts ----------------------------------------------------------------------------------------------------------

  const button = (text, label, action) => {
    const made = element("button", text.length === 1 ? "icon" : "", text);
    made.setAttribute("aria-label", label);
    made.title = label;
    made.addEventListener("click", action);
    return made;
  };
  const field = element("input");
  field.type = "search";
  field.placeholder = "Search names";
  field.setAttribute("aria-label", "Search tensors and operations; Enter goes to the next tensor");
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") next([...state.matches], event.shiftKey ? -1 : 1);
  });
  const key = (name, text) => {
    const swatch = element("i");
    swatch.style.background = `var(--${name})`;
    return element("span", "", swatch, text);
  };
  const hasOther = plan.blocks.some((block) => block.isWork && !block.atPeak);
  section.append(
    element("div", "tools", field, count, element("span", "space"),
      button("+", "Zoom in", () => zoom(0.6)), button("−", "Zoom out", () => zoom(1 / 0.6)),
      button("Peak", "Go to the peak", toPeak), button("All", "Show all", reset)),
    graph ? element("div", "linked", element("div", "canvas", blocks, overview, tip), element("div", "graph-frame", graph.element))
      : element("div", "canvas", blocks, overview, tip),
    element("div", "legend", key("warm-1", "live at the peak"), key("cool-1", "other tensors"),
      hasOther ? key("work", "work space of kernels") : "",
      plan.regions.length ? key("accent", "computed in tiles") : "",
      graph && graph.nodes.length < plan.nodes.length
        ? element("span", "", `The graph shows the first ${grouped(graph.nodes.length)} of ${grouped(plan.nodes.length)} inputs, operations and outputs.`) : "",
      element("span", "", "A block is a tensor: as high as its bytes, as long as its life. Drag to move, pinch or Ctrl + wheel to zoom.")),
    chosen,
    peakTable(report, plan, choose),
  );
  choose(null);

  const recolor = () => {
    palette = colors(...COOL, ...WARM, "work", "on-cool", "on-warm", "line", "track", "muted", "text", "peak", "accent");
    // At once: the first picture must not wait for a frame, which a hidden tab or a printer never gets.
    if (section.isConnected) paint();
  };
  themeListeners.push(recolor);
  new ResizeObserver(redraw).observe(blocks);
  // For tests and for a reader's console: what is shown, and where a block is on the canvas.
  section.memoryMap = { view, state, plan, graph, choose, paint: paintBlocks, place: (block) => [(x(block.first) + x(block.last + 1)) / 2, (y(block.offset) + y(block.end)) / 2] };
  return section;
}
