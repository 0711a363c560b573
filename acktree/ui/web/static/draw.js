// Elements, numbers and drawings. Whatever a value holds, it becomes text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children; `on...` are handlers, a string child is a text node.
export function h(tag, given = {}, ...children) {
  return made(document.createElement(tag), given, children);
}

export function s(tag, given = {}, ...children) {
  return made(document.createElementNS(SVG, tag), given, children);
}

function made(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else if (name === "value" || name === "checked" || name === "open") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

// Make `old` look like `fresh` in place, so that focus, selection and open details stay as they are.
export function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  // Drawings and rows of text have no handlers: what is equal stays, without a look at each part.
  if (PLAIN.has(old.nodeName) && !old.querySelector("button, input, details") && old.isEqualNode(fresh)) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (HANDLING.has(old.nodeName)) for (const name of HANDLERS) old[name] = fresh[name];
  if (old.nodeName === "INPUT" && old.type === "checkbox") old.checked = fresh.checked;
  patchChildren(old, fresh);
}

// A child is the same one where it has the same `data-key`, else where it is the nth of its kind.
function patchChildren(old, fresh) {
  const kept = childrenByKey(old), wanted = childrenByKey(fresh);
  for (const [key, child] of kept) if (!wanted.has(key)) child.remove();
  let at = old.firstChild;
  for (const [key, child] of wanted) {
    const same = kept.get(key);
    if (same && same === at) at = at.nextSibling; else old.insertBefore(same || child, at);
    if (same) patch(same, child);
  }
}

function childrenByKey(element) {
  const found = new Map(), seen = new Map();
  for (const child of element.childNodes) {
    const name = child.dataset?.key || child.nodeName, nth = (seen.get(name) || 0) + 1;
    seen.set(name, nth);
    found.set(`${nth} ${name}`, child);
  }
  return found;
}

const PLAIN = new Set(["TR", "g", "a", "text"]);
const HANDLING = new Set(["BUTTON", "INPUT", "SELECT", "FORM", "DETAILS"]);
const HANDLERS = ["onclick", "onchange", "onsubmit", "ontoggle", "oninput"];

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));
export const rate = (n) => (n >= 100 || Number.isInteger(n) ? whole : fine).format(n || 0);
export const share = (n) => `${whole.format(100 * (n || 0))} %`;
export function millis(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 1000) return `${fine.format(ms / 1000)} s`;
  if (ms >= 10) return `${whole.format(ms)} ms`;
  return ms >= 0.1 || ms === 0 ? `${fine.format(ms)} ms` : `${(1000 * ms).toPrecision(2)} µs`;
}
export function secs(n) {
  if (n === null || n === undefined) return "–";
  if (n < 60) return `${fine.format(n)} s`;
  const parts = [], units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  let left = Math.floor(n);
  for (const [unit, size] of units) {
    if (left >= size || parts.length) parts.push(`${Math.floor(left / size)}${unit}`);
    left %= size;
  }
  return parts.slice(0, 2).join(" ");
}
export const moment = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "–");

// A table whose rows become cards on a narrow screen. Columns: [title, is a number].
export function table(caption, columns, rows) {
  return h("div", { class: rows.length > 50 ? "scroll long" : "scroll" }, h("table", { class: "cards" },
    h("thead", {}, h("tr", {}, columns.map(([title, n]) => h("th", { scope: "col", class: n ? "n" : null }, title)))),
    h("tbody", { "aria-label": caption }, rows.map((row) => h("tr", {}, row.map((cell, at) =>
      h("td", { "data-label": columns[at][0], class: at === 0 ? "head" : columns[at][1] ? "n" : null }, cell)))))));
}

export const named = (label, messageId) => (label ? `${label} ${messageId}` : messageId);
export const badge = (status) => h("span", { class: `badge ${status}` }, status);
export function tile(name, value, isBad) {
  return h("div", { class: isBad ? "bad" : null }, h("dt", {}, name), h("dd", {}, value));
}

const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const LOAD = [0.05, 0.25, 0.5, 0.75, 0.9];
const LATENCY = [1, 10, 100, 1000, 10000];

// 0 to 5: how hot a component is. Lightness and hue both change, and the number stands beside it.
function heat(now, by) {
  const value = by === "capacity" ? now.capacity : now.kind === "acker" ? now.settle_ms : now.kind === "spout" ? now.complete_ms : now.process_ms;
  const bounds = by === "capacity" ? LOAD : LATENCY;
  return bounds.filter((bound) => (value || 0) >= bound).length;
}

// The graph: a box for each component, an edge for each subscription; boxes are links.
// `room`: the pixels that it may be wide; boxes and gaps shrink to fit as far as they can be read.
export function graph(topology, components, by, href, isNarrow, room) {
  const columns = 1 + Math.max(0, ...Object.values(topology.places).map(([column]) => column)), places = {};
  const within = (least, most, wanted) => Math.floor(Math.min(most, Math.max(least, wanted)));
  const wide = isNarrow ? 148 : within(148, 178, (room - 24 - 40 * (columns - 1)) / columns), isShort = wide < 170;
  const [high, gapX, gapY] = [66, within(40, 86, (room - 24 - columns * wide) / Math.max(1, columns - 1)), 26];
  let width = 0, height = 0;
  for (const [name, [column, place]] of Object.entries(topology.places)) {
    const [x, y] = isNarrow
      ? [6 + place * (wide + 10), 10 + column * (high + 46)]
      : [12 + column * (wide + gapX), 10 + place * (high + gapY)];
    places[name] = [x, y];
    width = Math.max(width, x + wide + (isNarrow ? 6 : 12));
    height = Math.max(height, y + high + 10);
  }
  const edges = new Map();
  for (const edge of topology.graph.subscriptions) {
    const key = JSON.stringify([edge.source, edge.subscriber]);
    edges.set(key, [...(edges.get(key) || []), edge]);
  }
  for (const [subscriber, { gate_of: source, streams }] of Object.entries(topology.graph.components)) {
    if (source) edges.set(JSON.stringify([source, subscriber]), Object.keys(streams).map((stream) => ({ source, stream, subscriber, grouping: "gate" })));
  }
  const drawn = [...edges.values()].map((same) => {
    const { source, subscriber } = same[0], [x1, y1] = places[source], [x2, y2] = places[subscriber];
    const toGate = Boolean(components[subscriber].gate_of);
    const from = components[source].gate_of || source; // what passed a gate counts as its source's
    const flow = toGate ? components[subscriber].rates.emitted : same.reduce((sum, edge) => sum + (components[subscriber].inputs[`${from}:${edge.stream}`] || 0), 0);
    const [ax, ay, bx, by_] = isNarrow
      ? [x1 + wide / 2, y1 + high, x2 + wide / 2, y2] : [x1 + wide, y1 + high / 2, x2, y2 + high / 2];
    const toAcker = components[subscriber].kind === "acker";
    const bend = toAcker && !isNarrow
      ? (x1 < x2 ? `M${x1 + wide / 2} ${y1 + high} C${x1 + wide / 2} ${y2 + high / 2} ${x1 + wide} ${by_} ${bx} ${by_}` : `M${x1 + wide / 2} ${y1 + high} L${x2 + wide / 2} ${y2}`)
      : isNarrow
      ? `M${ax} ${ay} C${ax} ${(ay + by_) / 2} ${bx} ${(ay + by_) / 2} ${bx} ${by_}`
      : `M${ax} ${ay} C${(ax + bx) / 2} ${ay} ${(ax + bx) / 2} ${by_} ${bx} ${by_}`;
    const what = same.map((edge) => `${edge.stream} by ${edge.grouping}`).join(", ");
    return s("g", {},
      s("title", {}, `${source} to ${subscriber}: ${what}, ${rate(flow)} tuples a second`),
      s("path", { class: toAcker ? "flow system" : toGate ? "flow gate" : "flow", d: bend, "stroke-width": Math.min(9, 1.2 + Math.log10(1 + flow) * 1.5).toFixed(1) }),
      toAcker ? null : s("text", { class: "about flow-rate", x: (ax + bx) / 2 + (isNarrow ? 6 : 0), y: (ay + by_) / 2 - (isNarrow ? -4 : 6), "text-anchor": isNarrow ? "start" : "middle" }, `${rate(flow)}/s`));
  });
  const levels = {};
  for (const level of topology.graph.levels) for (const name of level.components) levels[name] = level.index;
  const boxes = Object.entries(places).map(([name, [x, y]]) => {
    const now = components[name], latency = { spout: now.complete_ms, acker: now.settle_ms }[now.kind] ?? now.process_ms;
    const second = now.kind === "spout" ? `${rate(now.rates.acked)}/s${isNarrow ? "" : " acked"}, ${count(now.open)} open`
      : `${rate(now.rates.executed)}/s, busy ${share(now.capacity)}`;
    const third = now.gate_of ? `${millis(latency)}, ${count(now.lag)} wait` : now.kind === "acker" ? `${millis(latency)} a batch, ${count(now.open_roots)} open` : `${millis(latency)}, level ${levels[name]}${now.errors ? `, ${now.errors} errors` : ""}`;
    const kind = now.gate_of ? "gate" : now.kind, shown = now.gate_of ? ["gate", ...Object.keys(topology.graph.components[name].streams).filter((stream) => stream !== "default")].join(" ") : name;
    return s("a", { href: href(name), class: `${kind} heat-${heat(now, by)}`, "aria-label": `${kind} ${name}: ${second}, ${third}` },
      s("rect", { class: "box", x, y, width: wide, height: high, rx: now.kind === "spout" ? 30 : 6 }),
      s("text", { class: "name", x: x + 14, y: y + 22 }, short(shown, isShort ? 17 : 21)),
      s("text", { class: "about", x: x + 14, y: y + 39 }, short(second, isShort ? 23 : 28)),
      s("text", { class: "about", x: x + 14, y: y + 54 }, short(third, isShort ? 23 : 28)));
  });
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Graph of the topology" }, drawn, boxes);
}

// Rates between the points of the history, which are counts of all runs. Between two runs nothing is emitted.
export function ratesOf(points) {
  const series = [];
  points.forEach((point, at) => {
    const before = points[at - 1], from = before?.until_ms, passed = (point.at_ms - from) / 1000;
    if (!before || passed <= 0) return;
    const of = (what) => (point.run === before.run ? Math.max(0, point[what] - before[what]) / passed : 0);
    const rates = { emitted: of("emitted"), acked: of("acked"), failed: of("failed") + of("timed_out") };
    const still = { emitted: 0, acked: 0, failed: 0 };
    if (from > before.at_ms) series.push({ t: before.at_ms, ...still }, { t: from, ...still });
    series.push({ t: from, ...rates }, { t: point.at_ms, ...rates });
  });
  const last = points[points.length - 1];
  if (last && last.until_ms > last.at_ms) series.push({ t: last.at_ms, emitted: 0, acked: 0, failed: 0 }, { t: last.until_ms, emitted: 0, acked: 0, failed: 0 });
  return series;
}

// Rates over a span of time that ends now; 0 for all of it. Series: [{t, emitted, acked, failed}].
export function chart(given, width, span, now, isRunning) {
  const height = 130, end = span ? Math.max(now, given.length ? given[given.length - 1].t : 0) : given.length ? given[given.length - 1].t : now;
  const long = span || Math.max(1000, end - (given.length ? given[0].t : end));
  const series = given.filter((each) => each.t >= end - long);
  const top = Math.max(1, ...series.flatMap((each) => [each.emitted, each.acked, each.failed]));
  const line = (what) => series.map((each) =>
    `${(width - 6 - (end - each.t) / long * (width - 50)).toFixed(1)},${(height - 18 - each[what] / top * (height - 32)).toFixed(1)}`).join(" ");
  return s("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": `Messages a second in ${secs(long / 1000)}, at most ${rate(top)}` },
    s("line", { class: "axis", x1: 44, x2: width - 6, y1: height - 18, y2: height - 18 }),
    s("line", { class: "axis", x1: 44, x2: width - 6, y1: 14, y2: 14 }),
    s("text", { class: "about", x: 40, y: 18, "text-anchor": "end" }, rate(top)),
    s("text", { class: "about", x: 40, y: height - 14, "text-anchor": "end" }, "0"),
    s("text", { class: "about", x: 44, y: height - 3 }, `${secs(long / 1000)} ${isRunning ? "ago" : "before"}`),
    s("text", { class: "about", x: width - 6, y: height - 3, "text-anchor": "end" }, isRunning ? "now" : moment(end)),
    s("polyline", { class: "line-a", points: line("emitted") }),
    s("polyline", { class: "line-b", points: line("acked") }),
    s("polyline", { class: "line-c", points: line("failed") }));
}

// Phases of Spark under names of ours.
const PHASES = {
  latestOffset: "admission", getBatch: "source", queryPlanning: "planning", addBatch: "levels and acker",
  walCommit: "log of offsets", commitOffsets: "commit", commitBatch: "commit of state",
};
const isPart = (phase) => phase === "acker" || phase === "log" || phase.startsWith("level_");

// Where the time of a micro-batch went, the longest first: [[name, ms]]. Spark's addBatch is shown by its parts, where
// the driver tells them, and what is left of it: tuples on their way between levels, and the start of Spark's tasks.
export function phasesOf(batchMs) {
  const { triggerExecution: whole, addBatch = 0, ...others } = batchMs, parts = Object.keys(others).filter(isPart);
  const rest = addBatch - parts.reduce((sum, part) => sum + others[part], 0);
  if (!parts.length && addBatch) others.addBatch = addBatch;
  else if (rest > 0) others["exchange and tasks"] = rest;
  return Object.entries(others).sort((a, b) => b[1] - a[1]).map(([phase, ms]) => [PHASES[phase] || phase.replace("_", " "), ms]);
}

export function phases(parts) {
  const most = Math.max(1, ...parts.map(([, ms]) => ms));
  return s("svg", { viewBox: `0 0 400 ${parts.length * 20}`, class: "phases", role: "img", "aria-label": parts.map(([name, ms]) => `${name} ${millis(ms)}`).join(", ") },
    parts.map(([name, ms], at) => [
      s("text", { x: 0, y: at * 20 + 14 }, name),
      s("rect", { class: "bar", x: 130, y: at * 20 + 5, width: (ms / most * 200).toFixed(1), height: 11, rx: 2 }),
      s("text", { class: "about", x: 336, y: at * 20 + 14 }, millis(ms))]));
}
