// One component: its tasks, streams, latencies and errors; a spout's waits; the acker.
import { badge, count, h, millis, moment, secs, share, table, tile } from "./draw.js";

const WINDOWS = [["10", "10 s"], ["600", "10 min"], ["10800", "3 h"], ["86400", "1 day"], [":run", "this run"], [":all-time", "all runs"]];
const WHY = {
  inactive: "it is deactivated", pending_full: "as many messages are open as may be (topology.max.spout.pending)",
  inbox_full: "the inbox is full", outage: "its queue, or what a bolt needs, is away", pause: "it asked for a pause",
};
const LATENCIES = { execute: "Execute", process: "Process", complete: "Complete", settle: "Acker, a micro-batch", batch: "Whole micro-batch" };

// What an exception is called, at the beginning of its reason; a reason without one is its own cause.
const causeOf = (error) => (error.traceback && /^[A-Za-z_][\w.]*(?=:|$)/.exec(error.reason)?.[0]) || error.reason;

// Newest first; those of a component with the same exception stand together, with the newest time, reason and traceback.
export function errorList(errors, link) {
  if (!errors.length) return h("p", { class: "soft" }, "None.");
  const groups = grouped(errors, (error) => JSON.stringify([error.component, causeOf(error)]));
  return groups.map(([key, same]) => {
    const [error] = same, reasons = grouped(same, (each) => each.reason).map(([reason, equal]) => `${reason}${times(equal.length)}`);
    return h("details", { "data-key": key }, h("summary", {},
      `${moment(error.at_ms)}  ${link ? error.component : ""}${error.task_id === null ? " " : ` task ${error.task_id}: `}`, error.reason, times(same.length)),
      link ? h("p", {}, h("a", { href: link(error.component) }, error.component)) : null,
      reasons.length > 1 ? h("ul", { "aria-label": "Reasons" }, reasons.map((reason) => h("li", { class: "wrap" }, reason))) : null,
      h("pre", { tabindex: 0 }, error.traceback || "No traceback."));
  });
}

const times = (n) => (n > 1 ? `  × ${n}` : "");

function grouped(all, keyOf) {
  const groups = new Map();
  for (const each of all) groups.set(keyOf(each), [...(groups.get(keyOf(each)) || []), each]);
  return [...groups];
}

export const outageNotes = (name, outages) => (outages || []).map((outage) => outageNote(name, outage));

function outageNote(name, outage) {
  const since = moment(outage.since_ms);
  const away = `Messages of spout ${name} wait for ${outage.dependency} since ${since}, tried ${count(outage.tries)} times`;
  if (outage.dependency) return h("p", { class: "note bad" }, `${away}: ${outage.reason}\n${outage.fix}`);
  const how = outage.tries ? `fail since ${since}, ${count(outage.tries)} times` : `have not returned since ${since}`;
  return h("p", { class: "note bad" }, `Calls of spout ${name} ${how}: ${outage.reason}\n${outage.fix}`);
}

// Where an open message is, as far as it is known; an older driver does not say.
export function heldBy(message, link) {
  const named = (name, ...more) => h("div", {}, h("a", { href: link(name) }, name), more);
  const found = (message.held_by || []).map((each) => named(each.component, ` task ${each.task_id}`, each.held_secs === null ? "" : `, ${secs(each.held_secs)}`));
  if (message.forgotten_by) found.push(h("div", {}, "forgotten by ", h("a", { href: link(message.forgotten_by) }, message.forgotten_by)));
  return found.length ? h("div", {}, found) : "";
}

function windowChoice(tools) {
  return h("label", { class: "small" }, "Window ", h("select", { onchange: (event) => tools.setWindow(event.target.value) },
    WINDOWS.map(([value, text]) => h("option", { value, selected: value === tools.window }, text))));
}

// `tools`: address, window, setWindow, and debug where it may be ordered.
export function componentView(found, detail, tools) {
  const isSpout = detail.about.kind === "spout", { about, total } = detail;
  return [
    h("div", { class: "title" }, h("h1", {}, detail.name, " ", badge(found.status)), h("div", { class: "row" },
      tools.debug ? h("button", { onclick: tools.debug }, "Debug") : null, windowChoice(tools))),
    h("p", { class: "soft small wrap" }, about.gate_of ? ["gate: what ", h("a", { href: tools.address(found.id, "component", about.gate_of) }, about.gate_of), " emits passes when its messages are ACKED"] : `${about.kind} ${about.class}`, `, tasks ${about.task_ids.join(", ")}`,
      about.remembers.length ? `, remembers ${about.remembers.join(", ")}` : "", about.retry ? `, ${about.retry}` : "", `; the numbers cover ${secs(detail.secs)}`),
    outageNotes(detail.name, detail.now.outages),
    h("dl", { class: "tiles" }, isSpout ? [tile("Emitted", count(total.emitted)), tile("Open", count(detail.now.open)), tile("Oldest open", secs(detail.now.oldest_open_secs)), tile(about.gate_of ? "Waiting" : "Lag", count(detail.now.lag))]
      : [tile("Executed", count(total.executed)), tile("Busy", share(detail.capacity)), tile("Emitted", count(total.emitted))],
      tile("Acked", count(total.acked)), about.gate_of ? tile("Superseded", count(total.superseded)) : null, tile("Failed", count(total.failed), total.failed > 0), isSpout ? tile("Timed out", count(total.timed_out), total.timed_out > 0) : null, tile("Errors", count(total.errors), total.errors > 0),
      holds(detail) ? [tile("Held", count(detail.now.held)), tile("Oldest held", secs(detail.now.oldest_held_secs))] : null),
    taskSection(detail, isSpout),
    isSpout ? [causeSection(detail.failed_by || {}), lagSection(detail.now.lag_by_partition || {}), waitSection(detail)] : null,
    latencySection(detail.latencies, isSpout && tools.window !== ":run" && tools.window !== ":all-time"),
    streamSections(found, detail, isSpout, tools.address),
    metricSection(detail.metrics || {}),
    h("section", {}, h("h2", {}, "Errors"), errorList(detail.errors, null)),
  ];
}

const holds = (detail) => detail.now.held !== null && detail.now.held !== undefined;

function taskSection(detail, isSpout) {
  const held = holds(detail);
  const columns = [["Task"], ["Emitted", true], ["Transferred", true], ...(isSpout ? [] : [["Executed", true], ["Busy", true]]), ["Acked", true], ["Failed", true],
    ...(isSpout ? [["Timed out", true], ["Complete", true]] : [["Execute", true], ["Process", true]]), ...(held ? [["Held", true], ["Oldest held", true]] : [])];
  return h("section", {}, h("h2", {}, "Tasks"), table("Tasks", columns, Object.entries(detail.tasks).map(([task, each]) => [
    `task ${task}`, count(each.emitted), count(each.transferred), ...(isSpout ? [] : [count(each.executed), share(each.capacity)]), count(each.acked), count(each.failed),
    ...(isSpout ? [count(each.timed_out), millis(each.complete_ms)] : [millis(each.execute_ms), millis(each.process_ms)]),
    ...(held ? [count(each.held), secs(each.oldest_held_secs)] : [])])));
}

// Of which cause messages failed. Those that timed out are not among them.
function causeSection(byStream) {
  const rows = Object.entries(byStream).flatMap(([stream, causes]) => Object.entries(causes).map(([cause, n]) => [stream, cause, count(n)]));
  return rows.length ? h("section", { "data-key": "causes" }, h("h2", {}, "Why messages failed"), table("Causes", [["Stream"], ["Cause"], ["Failed", true]], rows)) : null;
}

function lagSection(lags) {
  const rows = Object.entries(lags).sort((a, b) => b[1] - a[1]).map(([partition, n]) => [partition, count(n)]);
  return rows.length ? h("section", { "data-key": "lags" }, h("h2", {}, "What waits at the source"), table("Lag", [["Partition"], ["Messages", true]], rows)) : null;
}

// For how long, and which share of the time of its tasks, a spout was not asked for messages.
function waitSection(detail) {
  const tasks = Object.entries(detail.tasks), all = {};
  for (const [, each] of tasks) for (const [why, n] of Object.entries(each.not_asked_window)) all[why] = (all[why] || 0) + n;
  const rows = Object.entries(all).sort((a, b) => b[1] - a[1]).map(([why, n]) => [
    WHY[why] || why, secs(n), detail.secs > 0 ? share(Math.min(1, n / detail.secs / tasks.length)) : "–",
    tasks.filter(([, each]) => each.not_asked_window[why]).map(([task, each]) => `task ${task}: ${secs(each.not_asked_window[why])}`).join(", ")]);
  return h("section", {}, h("h2", {}, "Why it was not asked for messages"),
    rows.length ? table("Not asked", [["Because"], ["Time", true], ["Of the time", true], ["By task"]], rows) : h("p", { class: "soft" }, "It was asked all the time."));
}

function latencySection(latencies, lacksComplete) {
  const percents = ["50", "90", "99"], found = Object.entries(latencies);
  const shown = (each, ms) => (ms === undefined || ms === null ? "–" : `${each.is_below ? "< " : ""}${millis(ms)}`);
  if (!found.length && !lacksComplete) return null;
  return h("section", { "data-key": "latencies" }, h("h2", {}, "How latencies are spread"),
    found.length ? table("Latencies", [["Latency"], ["Count", true], ...percents.map((each) => [`p${each}`, true])],
      found.map(([name, each]) => [LATENCIES[name], count(each.count), ...percents.map((percent) => shown(each, each.ms[percent]))])) : null,
    lacksComplete ? h("p", { class: "soft small" }, "The spread of complete latencies is known of this run and of all runs.") : null);
}

function streamSections(found, detail, isSpout, address) {
  return [
    detail.inputs.length ? h("section", {}, h("h2", {}, "Inputs"), table("Inputs", [["From"], ["Stream"], ["Grouping"], ["Executed", true], ["Acked", true], ["Failed", true], ["Execute", true], ["Process", true]],
      detail.inputs.map((edge) => {
        const from = found.components[edge.source]?.gate_of || edge.source, numbers = detail.streams[`${from}:${edge.stream}`] || {};
        return [h("a", { href: address(found.id, "component", edge.source) }, edge.source), edge.stream, edge.grouping, count(numbers.executed || 0), count(numbers.acked || 0), count(numbers.failed || 0), millis(numbers.execute_ms), millis(numbers.process_ms)];
      }))) : null,
    h("section", {}, h("h2", {}, "Output streams"), table("Output streams", [["Stream"], ["Fields"], ["Emitted", true], ["Transferred", true], ...(isSpout ? [["Acked", true], ["Failed", true], ["Timed out", true], ["Complete", true]] : [])],
      Object.entries(detail.about.streams).map(([stream, fields]) => {
        const numbers = detail.streams[stream] || {};
        return [stream, fields.join(", "), count(numbers.emitted || 0), count(numbers.transferred || 0), ...(isSpout ? [count(numbers.acked || 0), count(numbers.failed || 0), count(numbers.timed_out || 0), millis(numbers.complete_ms)] : [])];
      }))),
  ];
}

function metricSection(metrics) {
  if (!Object.keys(metrics).length) return null;
  const number = (value, unit = "") => (value === null || value === undefined ? "" : `${typeof value === "string" ? value : Number.isInteger(value) ? count(value) : Number(value.toPrecision(4))}${unit}`);
  return h("section", { "data-key": "metrics" }, h("h2", {}, "Metrics of your own"),
    h("p", { class: "soft small" }, "Of all runs on the checkpoint, whatever the window is; of a gauge the last value."), table("Metrics", [["Name"], ["Kind"], ["Value", true], ["Mean", true], ["p50", true], ["p99", true], ["1 min", true], ["15 min", true]],
    Object.entries(metrics).map(([name, each]) => {
      const unit = each.kind === "timer" ? " ms" : "";
      return [name, each.kind, each.kind === "gauge" ? number(each.value) : count(each.count), number(each.mean, unit), number(each.p50, unit), number(each.p99, unit), number(each.rates[0], "/s"), number(each.rates[2], "/s")];
    })));
}

export function ackerView(found, detail, tools) {
  const { acker } = detail, received = Object.entries(acker.received);
  return [
    h("div", { class: "title" }, h("h1", {}, detail.name, " ", badge(found.status)), h("div", { class: "row" }, windowChoice(tools))),
    h("p", { class: "soft small wrap" }, `tracks messages in the driver, once a micro-batch; the numbers cover ${secs(detail.secs)}`,
      detail.next_deadline_ms ? `; next timeout ${moment(detail.next_deadline_ms)}` : ""),
    h("dl", { class: "tiles" }, tile("Open roots", count(acker.open_roots)), tile("Inits", count(acker.inits)), tile("Acks", count(acker.acks)), tile("Fails", count(acker.fails), acker.fails > 0),
      tile("Timeouts reset", count(acker.resets)), tile("Late", count(acker.late), acker.late > 0), tile("Busy", share(detail.capacity)), tile("Micro-batches", count(acker.micro_batches))),
    h("section", {}, h("h2", {}, "Verdicts"), table("Verdicts", [["Verdict"], ["Messages", true]],
      [["acked", count(acker.acked)], ["failed", count(acker.failed)], ["timed out", count(acker.timed_out)]])),
    h("section", {}, h("h2", {}, "What it was sent"), received.length ? table("What it was sent", [["From"], ["Stream"], ["Tuples", true]], received.map(([input, n]) => {
      const at = input.lastIndexOf(":"), name = input.slice(0, at);
      return [h("a", { href: tools.address(found.id, "component", name) }, name), input.slice(at + 1), count(n)];
    })) : h("p", { class: "soft" }, "Nothing.")),
    latencySection(Object.fromEntries(Object.entries(detail.latencies).filter(([, each]) => each)), false),
  ];
}
