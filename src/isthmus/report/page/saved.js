/* Reports from files: pages and the output of --json. They may be edited, so they are checked as saved.py does. */

const MAX_FILE_BYTES = 2 ** 28, MAX_STEPS = 2 ** 20;

/** Make a check: it returns a value that is as it must be, and throws otherwise. */
const checked = (isRight) => (value) => {
  if (!isRight(value)) throw new TypeError();
  return value;
};
const anInteger = checked(Number.isSafeInteger);
const aNumber = checked((value) => typeof value === "number" && Math.abs(value) < 1e18);
const aText = checked((value) => typeof value === "string");
const optional = (check) => (value) => (value === null ? null : check(value));
const listOf = (check) => (value) => checked(Array.isArray)(value).map(check);
/** Check an object that has all of the first keys and may have the others; further keys are dropped. */
const record = (needed, known = {}) => (value) => {
  checked((each) => typeof each === "object" && each !== null && !Array.isArray(each))(value);
  const present = Object.entries(known).filter(([name]) => Object.hasOwn(value, name));
  return Object.fromEntries([...Object.entries(needed), ...present].map(([name, check]) => [name, check(value[name])]));
};

const PLACE = { name: aText, bytes: anInteger, offset: anInteger };
const NEEDED = { model: aText, scratch_bytes: anInteger, state_bytes: anInteger, io_bytes: anInteger, constant_bytes: anInteger };
const KNOWN = {
  backend: aText, target: optional(aText), threads: anInteger, steps: anInteger, status: aText, lower_bound: anInteger,
  greedy_bytes: anInteger, backend_copied_bytes: anInteger,
  latency_ms: record({ p50: aNumber, p99: aNumber }),
  operations: listOf(record({ name: aText, us: aNumber })),
  order: listOf(record({ op: aText, name: aText }, {
    after: listOf(anInteger), reads: listOf(anInteger), writes: listOf(anInteger), inputs: listOf(aText), outputs: listOf(aText),
  })),
  regions: listOf(record({ tiles: anInteger, first: anInteger, last: anInteger })),
  peak: optional(record({ step: anInteger, op: aText, name: aText, live_bytes: anInteger, live: listOf(record(PLACE)) })),
  tensors: listOf(record({ ...PLACE, first: anInteger, last: anInteger })),
};

/** Return what a page uses of a report. The error of one that cannot be drawn is a sentence for its reader. */
function savedReport(report) {
  if (!Object.keys(NEEDED).every((name) => Object.hasOwn(report, name))) throw new Error("it has no plan of memory");
  try {
    const found = record(NEEDED, KNOWN)(report), steps = Math.max(found.steps || 0, 0), tensors = found.tensors || [];
    const isOne = checked(Boolean);
    isOne(steps <= MAX_STEPS);
    // Inputs and outputs may live one step before and after the others.
    for (const { first, last, bytes, offset } of tensors) isOne(-1 <= first && first <= last && last <= steps && bytes >= 0 && offset >= 0);
    (found.order || []).forEach(({ after = [], reads = [], writes = [] }, number) => {
      isOne(after.every((other) => other >= 0 && other < number));
      isOne([...reads, ...writes].every((other) => other >= 0 && other < tensors.length));
    });
    if (found.peak) isOne(found.peak.step >= 0 && found.peak.step < steps);
    return found;
  } catch {
    throw new Error("it is damaged");
  }
}

/** Return the reports of a page that was saved, or the one of a command's JSON. */
function savedReports(text) {
  let found = null;
  try {
    // A parsed document runs no script and loads nothing.
    const facts = new DOMParser().parseFromString(text, "text/html").getElementById("facts");
    const data = JSON.parse(facts ? facts.textContent : text);
    found = facts ? data.reports : [data];
  } catch { /* Neither: said below. */ }
  const isReport = (each) => typeof each === "object" && each !== null && !Array.isArray(each);
  if (!Array.isArray(found) || !found.length || !found.every(isReport)) throw new Error("it is neither a page of --html nor the output of --json");
  return found.map(savedReport);
}
