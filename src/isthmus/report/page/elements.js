/* Elements and texts. Names come from models: they become text nodes only, never markup. */

/** Make an element with a class and children, which are elements or texts. */
function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });

/** Write a number with separators. */
function grouped(value) {
  return GROUPED.format(value);
}

const MAX_ROWS = 20000; // Elements of one list or table; a browser stops answering with a million.

/** Return the largest of some values, of which there may be more than a call can have arguments. */
function largest(values, least) {
  return values.reduce((most, value) => Math.max(most, value), least);
}

/** Write a real number of any magnitude with three digits. */
function real(value) {
  const amount = Math.abs(value);
  if (value === 0 || (amount >= 1e-3 && amount < 1e6)) return String(Number(value.toPrecision(3)));
  return value.toExponential(2).replace(/\.?0+e/, "e");
}

/** Split bytes into an amount and its unit, with three digits. */
function sizeParts(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (Math.abs(bytes) >= 1024 && power < units.length - 1) {
    bytes /= 1024;
    power += 1;
  }
  return [power === 0 ? String(bytes) : bytes.toPrecision(Math.abs(bytes) >= 1000 ? 4 : 3), units[power]];
}

/** Write bytes in a short form. */
function size(bytes) {
  return sizeParts(bytes).join(" ");
}

/** Split a value in a unit into what is written large and what small. */
function valueParts(value, unit) {
  if (value === null || value === undefined) return ["–", ""];
  if (typeof value !== "number") return [String(value), ""];
  switch (unit) {
    case "bytes": return sizeParts(value);
    case "us": return value >= 1000 ? [(value / 1000).toPrecision(3), "ms"] : [value.toPrecision(3), "µs"];
    case "ms": return value >= 1000 ? [(value / 1000).toPrecision(3), "s"] : [value.toPrecision(3), "ms"];
    case "s": return [value.toFixed(2), "s"];
    case "times": return [value.toFixed(3), "×"];
    case "real": return [real(value), ""];
    default: return [Number.isInteger(value) ? grouped(value) : value.toPrecision(4), ""];
  }
}

/** Write a value exactly enough for a table: bytes in full, times with fixed digits so that they line up. */
function cellText(value, unit) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  switch (unit) {
    case "us": return value.toFixed(2);
    case "ms": return value.toFixed(3);
    case "s": return value.toFixed(2);
    case "percent": return `${value.toFixed(1)} %`;
    case "times": return value.toFixed(3);
    case "real": return real(value);
    default: return grouped(value);
  }
}

/** Shorten a name to a number of characters and keep its end, which tells names apart. Converters join names by ";". */
function shortened(name, length) {
  const first = name.split(";")[0] || name;
  return first.length <= length ? first : "…" + first.slice(first.length - length + 1);
}

/** Return the current value of a colour of the style sheet, for a canvas. */
function color(name) {
  const probe = color.probe || (color.probe = document.body.appendChild(element("i")));
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Return the current values of several colours, by name. */
function colors(...names) {
  return Object.fromEntries(names.map((name) => [name, color(name)]));
}

/** Return the drawing context of a canvas, cleared, in units of CSS pixels. */
function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, tall = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(tall * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(tall * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, tall);
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return context;
}

/** Fill a tip with lines, the first of which is a name, and put it beside a point, inside `frame`. */
function placeTip(tip, [name, ...lines], point, frame) {
  tip.hidden = false;
  tip.replaceChildren(element("strong", "mono", shortened(name, 160)), ...lines.map((line) => element("div", "", line)));
  const right = frame.clientWidth - tip.offsetWidth - 4, below = point.y + 16 + tip.offsetHeight < frame.clientHeight;
  tip.style.left = `${Math.max(Math.min(point.x + 14, right), 0)}px`;
  tip.style.top = `${below ? point.y + 16 : Math.max(point.y - tip.offsetHeight - 12, 0)}px`;
}

/** Call functions after the colours have changed. */
const themeListeners = [];
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themeListeners.forEach((call) => call()));

/** Return the button that switches between the system's colours, light and dark. */
function themeButton() {
  const themes = { "": "Auto", light: "Light", dark: "Dark" };
  const button = element("button", "theme");
  const apply = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    button.textContent = themes[theme];
    button.setAttribute("aria-label", `Colours: ${themes[theme]}. Change`);
    themeListeners.forEach((call) => call());
  };
  let theme = "";
  try {
    theme = localStorage.getItem("isthmus-theme") || "";
  } catch { /* Storage may be forbidden; the choice is then not kept. */ }
  apply(theme in themes ? theme : "");
  button.addEventListener("click", () => {
    const order = Object.keys(themes);
    const next = order[(order.indexOf(document.documentElement.dataset.theme || "") + 1) % order.length];
    apply(next);
    try {
      localStorage.setItem("isthmus-theme", next);
    } catch { /* As above. */ }
  });
  return button;
}
