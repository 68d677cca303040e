/* A profile: a value for each operation in order, on a logarithmic scale, with what is wrong in the colour of the peak. */

const PROFILE_LEFT = 52, PROFILE_TOP = 22, PROFILE_BOTTOM = 8;

/** Draw a profile. Bars are values; a line across a bar is the second value of its point. */
function drawProfile(data) {
  const section = framed(data, "profile");
  const values = data.points.flatMap((point) => [point.value, point.alone]).filter((value) => value > 0);
  const low = Math.floor(Math.log10(-largest(values.map((value) => -value), -0.1))), high = Math.max(Math.ceil(Math.log10(largest(values, 0.1))), low + 1);
  const first = data.points.findIndex((point) => point.tone === "bad");
  const canvas = element("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `${data.title}: ${grouped(data.points.length)} points. Arrow keys choose one.`);
  const tip = element("div", "tip"), chosen = element("div", "chosen-block muted", "Point at a bar, or choose one by arrow keys, to see its operation.");
  tip.hidden = true;
  chosen.setAttribute("aria-live", "polite");
  let at = -1, palette = {};

  function paint() {
    const context = prepared(canvas), wide = canvas.clientWidth - PROFILE_LEFT, tall = canvas.clientHeight - PROFILE_TOP - PROFILE_BOTTOM;
    const each = wide / data.points.length, bottom = PROFILE_TOP + tall;
    const y = (value) => bottom - ((Math.log10(value) - low) / (high - low)) * tall;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.ceil((high - low) / 6);
    for (let power = low; power <= high; power += every) {
      const level = Math.round(y(10 ** power)) + 0.5;
      context.fillStyle = palette.line;
      context.fillRect(PROFILE_LEFT, level, wide, 1);
      context.fillStyle = palette.muted;
      context.fillText(real(10 ** power), PROFILE_LEFT - 8, level);
    }
    const gap = each > 4 ? 1 : 0;
    data.points.forEach((point, k) => {
      const left = PROFILE_LEFT + k * each, isWrong = point.tone === "bad";
      if (k === at) {
        context.fillStyle = palette.track;
        context.fillRect(left, PROFILE_TOP, Math.max(each, 2), tall);
      }
      context.fillStyle = palette[isWrong ? "peak" : "cool-3"];
      // A tensor inside a fused operation has a value alone only.
      const value = point.value ?? point.alone;
      if (value > 0) context.fillRect(left, y(value), Math.max(each - gap, isWrong ? 3 : 1), bottom - y(value));
      context.fillStyle = palette.text;
      if (point.alone > 0 && each > 2) context.fillRect(left, y(point.alone) - 1, each - gap, 2);
    });
    if (first >= 0) {
      const text = `first: ${shortened(data.points[first].label, 40)}`, middle = PROFILE_LEFT + (first + 0.5) * each;
      context.font = `600 ${context.font}`;
      context.textAlign = "left";
      context.fillStyle = palette.peak;
      context.fillText(text, Math.max(Math.min(middle, canvas.clientWidth - context.measureText(text).width), PROFILE_LEFT), 9);
      context.fillRect(middle - 0.75, PROFILE_TOP - 5, 1.5, 5);
    }
  }

  /** Choose a point, and describe it in the tip, or below the chart if no pointer is at it. */
  function choose(k, place) {
    at = k;
    tip.hidden = !place || k < 0;
    if (k >= 0) {
      const point = data.points[k], lines = [point.label, ...point.lines];
      if (place) placeTip(tip, lines, place, canvas);
      chosen.replaceChildren(element("strong", "mono", point.label), element("div", "", point.lines.join(" · ")));
    }
    paint();
  }

  canvas.addEventListener("pointermove", (event) => {
    const frame = canvas.getBoundingClientRect(), place = { x: event.clientX - frame.left, y: event.clientY - frame.top };
    const k = Math.floor(((place.x - PROFILE_LEFT) / (frame.width - PROFILE_LEFT)) * data.points.length);
    choose(k >= 0 && k < data.points.length ? k : -1, place);
  });
  canvas.addEventListener("pointerleave", () => choose(-1));
  canvas.addEventListener("keydown", (event) => {
    const count = data.points.length, next = { ArrowRight: at + 1, ArrowLeft: at < 0 ? count - 1 : at - 1, Home: 0, End: count - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose((next + count) % count);
  });
  const key = (name, text, className) => {
    const swatch = element("i", className);
    swatch.style.background = `var(--${name})`;
    return element("span", "", swatch, text);
  };
  section.append(element("div", "canvas", canvas, tip),
    element("div", "legend", key("peak", "wrong, or computed in one step with it"), key("cool-3", "in the model"), key("text", "alone", "thin")), chosen);
  themeListeners.push(() => {
    palette = colors("line", "muted", "track", "peak", "cool-3", "text");
    if (section.isConnected) paint();
  });
  new ResizeObserver(paint).observe(canvas);
  return section;
}
