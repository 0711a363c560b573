// Traces: a search over messages, and the tree of one. Trees come in slices, as far as they are opened.
import { count, h, millis, moment, named, secs, table } from "./draw.js";

const FATES = { acked: "ACTIVE", failed: "FAILED", held: "INACTIVE", open: "INACTIVE", waiting: "INACTIVE" };
const SAID = { open: "not acked", held: "held", waiting: "not executed" };
const VERDICTS = [["FAILED", "failed"], ["TIMED_OUT", "timed out"], ["ACKED", "acked"], ["OPEN", "open"]];

export const traces = { query: {}, page: null, after: [""], whole: null, asked: null, slices: {}, closed: {} };

const at = (id, ...parts) => `/topologies/${encodeURIComponent(id)}/${parts.map(encodeURIComponent).join("/")}`;
const badge = (fate) => h("span", { class: `badge ${FATES[fate] || ""}` }, SAID[fate] || fate);
const verdict = (said) => h("span", { class: `badge ${said === "ACKED" ? "ACTIVE" : said ? "FAILED" : "INACTIVE"}` }, said ? said.replace("_", " ").toLowerCase() : "open");
const shown = (values) => `(${values.map((each) => (typeof each === "string" ? each : JSON.stringify(each))).join(", ")})`;

export function forget() {
  traces.page = traces.whole = traces.asked = null;
  traces.after = [""];
  traces.slices = {};
  traces.closed = {};
}

export async function loadTraces(ask, id) {
  const query = new URLSearchParams({ ...traces.query, limit: 50, after: traces.after[traces.after.length - 1] });
  traces.page = await ask(`${at(id, "traces")}?${query}`);
}

// Several events may ask for the same trace at once. Once its verdict is known one answer is enough.
const isSettled = (root) => traces.whole?.message.root === root && traces.whole.message.verdict;

export async function loadTrace(ask, id, root) {
  traces.asked = root;
  if (isSettled(root)) return;
  const whole = await ask(at(id, "traces", root)), fresh = { ...whole.slices, [root]: whole.tree };
  // What a reader has opened beyond that stays open, and is as new as the rest: the tree may have changed since.
  const slices = opened(root).some((edge) => isMore(edge, fresh)) ? (await ask(`${at(id, "traces", root)}?all=true`)).slices : {};
  if (traces.asked !== root || isSettled(root)) return;
  for (const edge of opened(root)) if (isMore(edge, fresh)) fresh[edge] = slices[edge] || traces.slices[edge];
  traces.whole = whole;
  traces.slices = fresh;
}

const opened = (root) => traces.whole?.message.root === root ? Object.keys(traces.slices) : [];
const isMore = (edge, fresh) => !fresh[edge] || traces.slices[edge].lines.length > fresh[edge].lines.length;

async function loadSlice(ask, id, root, edge, first = 0) {
  const { tree } = await ask(`${at(id, "traces", root)}?${new URLSearchParams({ edge, first })}`);
  if (traces.asked !== root) return;
  const before = first ? traces.slices[edge]?.lines || [] : [];
  if (before.length === first) traces.slices[edge] = { ...tree, lines: [...before, ...tree.lines] }; // else there are more by now
}

async function loadAll(ask, id, root) {
  const { slices } = await ask(`${at(id, "traces", root)}?all=true`);
  if (traces.asked !== root) return;
  traces.slices = slices;
  traces.closed = {};
}

// ---- the search -------------------------------------------------------------------------------------------
// `give` sends an order; null where none may be given.
export function tracesView(found, page, address, refresh, give) {
  const id = found.id;
  const search = (event) => {
    event.preventDefault();
    const fields = event.target.elements;
    traces.query = {};
    for (const name of ["message_id", "label", "root", "verdict", "component", "reason"]) {
      const text = fields[name].value.trim();
      if (text) traces.query[name] = text;
    }
    for (const name of ["since", "before"]) {
      const moment = Date.parse(fields[name].value && `${fields[name].value}Z`);
      if (moment) traces.query[name] = moment;
    }
    traces.after = [""];
    refresh();
  };
  const text = (name, title, size) => h("label", {}, `${title} `, h("input", { name, size, autocomplete: "off" }));
  const choice = (name, title, options) => h("label", {}, `${title} `, h("select", { name }, h("option", { value: "" }, "any"), options.map(([value, said]) => h("option", { value }, said))));
  return [
    h("h1", {}, "Traced messages"),
    h("section", {}, h("form", { class: "row search", onsubmit: search },
      text("message_id", "Message id", 14), text("label", "Label", 14), text("root", "Root", 14), text("reason", "Reason", 14),
      choice("verdict", "Verdict", VERDICTS), choice("component", "Component", Object.keys(found.components).map((name) => [name, name])),
      h("label", {}, "Since (UTC) ", h("input", { name: "since", type: "datetime-local", step: 1 })), h("label", {}, "Before (UTC) ", h("input", { name: "before", type: "datetime-local", step: 1 })),
      h("button", {}, "Search"))),
    h("section", {},
      h("p", { class: "small soft" }, page.rate >= 1 ? `Every message is traced. ${count(page.count)} are stored.` : page.rate > 0 ? `One message in ${count(1 / page.rate)} is traced, and each attempt after the first, up to a number a second. ${count(page.count)} are stored.` : `No message is traced by a rate now. ${count(page.count)} are stored.`),
      give ? h("form", { class: "row", onsubmit: (event) => {
        event.preventDefault();
        give("trace", { rate: Number(event.target.elements.percent.value) / 100 }, "The share of traced messages is changed until the run ends.");
      } }, h("label", {}, "Trace ", h("input", { name: "percent", type: "number", min: 0, max: 100, step: "any", size: 8, required: true }), " % of the messages"), h("button", {}, "Set")) : null,
      give ? h("form", { class: "row", onsubmit: (event) => {
        event.preventDefault();
        const fields = event.target.elements, id = fields.watched.value, secs = Number(fields.secs.value);
        give("trace", { message_ids: [id], secs }, `The next attempts of ${id} are traced, for ${count(secs)} s.`);
      } }, h("label", {}, "Watch the next attempts of ", h("input", { name: "watched", size: 14, autocomplete: "off", required: true })),
      h("label", {}, "for ", h("input", { name: "secs", type: "number", min: 1, max: 86400, value: 300, size: 6, required: true }), " s"), h("button", {}, "Watch")) : null,
      page.messages.length ? table("Traced messages", [["Message"], ["Emitted"], ["Verdict"], ["After", true], ["Tuples", true], ["Where"], ["Reason"]],
        page.messages.map((each) => [
          h("a", { class: "wrap", href: address(id, "trace", each.root) }, each.message_id === null ? `root ${each.root}` : named(each.label, each.message_id)),
          h("span", { class: "when" }, moment(each.emitted_ms)), [verdict(each.verdict), each.attempt > 1 ? ` attempt ${each.attempt}` : null],
          each.verdict_ms === null ? "–" : secs((each.verdict_ms - each.emitted_ms) / 1000), count(each.tuples),
          each.verdict === "ACKED" ? "" : each.component || "", h("span", { class: "wrap" }, (each.reason || "").slice(0, 160))])) : h("p", { class: "soft" }, "No traced message matches."),
      h("div", { class: "row" },
        traces.after.length > 1 ? h("button", { onclick: () => { traces.after.pop(); refresh(); } }, "Back") : null,
        page.after !== null ? h("button", { onclick: () => { traces.after.push(page.after); refresh(); } }, "Next 50") : null)),
  ];
}

// ---- the tree ---------------------------------------------------------------------------------------------
// What is drawn before the browser tells of each branch that it was closed must not open it again.
function closeAll() {
  for (const edge of Object.keys(traces.slices)) traces.closed[edge] = true;
  for (const each of document.querySelectorAll("ul.tree details[open]")) each.open = false;
}

export function traceView(found, whole, address, ask, draw) {
  const { message } = whole, id = found.id;
  const open = async (line) => {
    if (!traces.slices[line.edge]) await loadSlice(ask, id, message.root, line.edge).catch(() => {});
    draw();
  };
  const more = async (slice) => { await loadSlice(ask, id, message.root, slice.edge, slice.lines.length); draw(); };
  const others = whole.attempts.filter((each) => each.root !== message.root);
  const root = whole.message;
  return [
    h("div", { class: "title" }, h("h1", {}, message.message_id === null ? "Message" : `Message ${named(message.label, message.message_id)} `, " ", verdict(message.verdict)), h("a", { href: address(id, "traces") }, "All traced messages")),
    h("p", { class: "soft small" }, `root ${message.root}, attempt ${message.attempt}, emitted ${moment(message.emitted_ms)} by ${message.spout}${message.verdict_ms === null ? "" : `, verdict after ${secs((message.verdict_ms - message.emitted_ms) / 1000)}`}, ${count(message.tuples)} tuples recorded`),
    message.reason ? h("p", { class: "note bad" }, message.component ? `${message.component}: ` : "", message.reason) : null,
    message.traceback ? h("section", { "data-key": "traceback" }, h("details", {}, h("summary", {}, "Traceback"), h("pre", { tabindex: 0 }, message.traceback))) : null,
    whole.unacked_count && message.verdict !== "ACKED" ? h("section", { "data-key": "unacked" }, h("h2", {}, `${count(whole.unacked_count)} not acked`),
      h("ul", {}, whole.unacked.slice(0, 20).map((each) => h("li", { class: "wrap" }, h("a", { href: address(id, "component", each.component) }, each.component), ` task ${each.task_id}: `, badge(each.fate), ` ${shown(each.values)}`)))) : null,
    h("section", {}, h("div", { class: "title" }, h("h2", {}, "Tree"), h("div", { class: "row" },
      h("button", { id: "open-all", onclick: async () => { await loadAll(ask, id, message.root); draw(); } }, "Open all"),
      h("button", { onclick: closeAll }, "Close all"))),
      h("p", { class: "about" }, h("a", { href: address(id, "component", root.spout) }, root.spout), ` emitted ${shown(root.values)}`),
      branch(traces.slices[message.root], message, open, more, 1),
      Object.entries(whole.more).map(([name, n]) => h("p", { class: "soft" }, `${count(n)} more tuples at ${name} are not recorded.`))),
    others.length ? h("section", {}, h("h2", {}, "Other attempts"), h("ul", {}, others.map((each) => h("li", {}, h("a", { href: address(id, "trace", each.root) }, `attempt ${each.attempt}`), " ", verdict(each.verdict), ` ${moment(each.emitted_ms)}`)))) : null,
  ];
}

const aboutLine = (line, message) => [
  h("strong", {}, line.component), ` task ${line.task_id}`, ["default", ""].includes(line.stream) ? "" : ` [${line.stream}]`, " ", badge(line.fate),
  line.alike > 1 ? h("strong", {}, ` × ${count(line.alike)}`) : null, h("span", { class: "values" }, ` ${shown(line.values)}`),
  h("span", { class: "soft small" }, line.began_ms === null ? "" : ` +${millis(Math.max(0, line.began_ms - message.emitted_ms))}, took ${millis(line.took_ms)}${line.together > 1 ? ` of ${count(line.together)} together` : ""}`),
  line.reason ? h("span", { class: "why" }, ` ${line.reason}`) : null,
];

function branch(slice, message, open, more, depth) {
  if (!slice) return h("p", { class: "soft small" }, "…");
  if (depth > MOST_INDENTED) return h("ul", { class: "tree" }, flat(slice, message, open, more, depth, []));
  const rest = slice.count - slice.lines.length;
  return h("ul", { class: "tree" }, slice.lines.map((line) => {
    if (!line.below) return h("li", {}, aboutLine(line, message));
    return h("li", {}, h("details", { open: Boolean(traces.slices[line.edge]) && !traces.closed[line.edge], ontoggle: (event) => {
      if (!event.target.isConnected) return; // of the drawing that the shown tree was compared with: it tells late
      traces.closed[line.edge] = !event.target.open;
      if (event.target.open && !traces.slices[line.edge]) open(line);
    } }, h("summary", {}, aboutLine(line, message), h("span", { class: "soft small" }, `, ${count(line.below)} below`)), branch(traces.slices[line.edge], message, open, more, depth + 1)));
  }), rest > 0 ? h("li", {}, h("button", { onclick: () => more(slice) }, `${count(rest)} more`)) : null);
}

// Below a depth, branches are one list in which each line says its depth: there is no room to indent them, and
// a browser gives up over a thousand elements inside each other.
const MOST_INDENTED = 10;
function flat(slice, message, open, more, depth, found) {
  for (const line of slice.lines) {
    const below = traces.slices[line.edge];
    found.push(h("li", {}, h("span", { class: "soft small" }, `depth ${count(depth)} `), aboutLine(line, message),
      line.below && !below ? [" ", h("button", { onclick: () => open(line) }, `${count(line.below)} below`)] : null));
    if (line.below && below) flat(below, message, open, more, depth + 1, found);
  }
  const rest = slice.count - slice.lines.length;
  if (rest > 0) found.push(h("li", {}, h("button", { onclick: () => more(slice) }, `${count(rest)} more`)));
  return found;
}
