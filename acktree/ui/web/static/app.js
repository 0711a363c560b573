// The page: one view for each address behind "#", drawn again at each event of the stream.
import { ackerView, componentView, errorList, heldBy, outageNotes } from "./components.js";
import { badge, chart, count, graph, h, millis, moment, named, patch, phases, phasesOf, rate, ratesOf, secs, share, table, tile } from "./draw.js";
import { askDebug, confirmed, debugLine, eventsView, orders } from "./orders.js";
import { forget, loadTrace, loadTraces, traceView, traces, tracesView } from "./traces.js";

const API = "/api/acktree/v1", SAVED = "acktree-token", KEPT_MS = 120000;
const main = document.getElementById("main"), crumbs = document.getElementById("crumbs");
const live = document.getElementById("live");
const state = { overview: null, sent: null, detail: null, events: null, error: null, refused: null, note: null, heat: "capacity", system: false, window: ":all-time", history: {}, past: {}, span: {}, about: {} };
const ACKER = "__acker", LIVE = "2m", SPANS = { "2m": ["2 minutes", KEPT_MS], "1h": ["hour", 3600000], "1d": ["day", 86400000], "30d": ["30 days", 30 * 86400000], all: ["all runs", 0] };
const spanOf = (topology) => state.span[topology.id] || (topology.is_running ? LIVE : "all");
const letters = { of: null, query: {}, page: null, after: [0], chosen: new Set(), opened: {} };

// ---- the token: from the address into this tab's storage, then gone from the address bar -------------------
const given = new URLSearchParams(location.search).get("token");
if (given) {
  sessionStorage.setItem(SAVED, given);
  history.replaceState(null, "", "/" + location.hash);
}
const headers = () => {
  const token = sessionStorage.getItem(SAVED);
  return token ? { Authorization: `Bearer ${token}`, "X-Acktree": "1" } : { "X-Acktree": "1" };
};

async function ask(path, order) {
  const options = order === undefined ? {} : { method: "POST", body: JSON.stringify(order) };
  const answer = await fetch(API + path, { ...options, headers: { ...headers(), "Content-Type": "application/json" } });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.errorMessage || answer.statusText), { status: answer.status, fix: said.fix });
  return said;
}

// ---- where we are -----------------------------------------------------------------------------------------
const address = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");
const where = () => {
  try { return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent); } catch { return []; }
};

async function load() {
  const asked = location.hash, [id, kind, name] = where(), isShown = () => location.hash === asked;
  try {
    if (!id) state.detail = null;
    else if (kind === "component") {
      const detail = await ask(`/topologies/${encodeURIComponent(id)}/components/${encodeURIComponent(name)}?window=${encodeURIComponent(state.window)}`);
      if (isShown()) state.detail = detail;
    }
    else if (kind === "letters") await loadLetters(id);
    else if (kind === "events") {
      const { events } = await ask(`/topologies/${encodeURIComponent(id)}/events?limit=200`);
      if (isShown()) state.events = events;
    }
    else if (kind === "traces") await loadTraces(ask, id);
    else if (kind === "trace") await loadTrace(ask, id, name);
    else {
      const topology = state.sent?.id === id ? state.sent : await askTopology(id);
      await loadHistory(topology);
      if (isShown()) state.detail = topology;
    }
    if (isShown()) state.error = null;
  } catch (error) {
    if (isShown()) state.error = error;
  }
}

// What the stream sends of a topology, before its first event, and where there is no stream.
async function askTopology(id) {
  const path = `/topologies/${encodeURIComponent(id)}`, isRunning = state.overview?.topologies.some((each) => each.id === id && each.is_running);
  const [topology, { open }] = await Promise.all([ask(path), isRunning ? ask(`${path}/open?limit=8`).catch(() => ({ open: [] })) : { open: [] }]);
  return Object.assign(topology, { oldest: open });
}

// The stored history: for the chart's span every five seconds, and once for what was before this page was opened.
async function loadHistory(topology) {
  const id = topology.id, span = spanOf(topology), before = state.past[id];
  if (before && before.span === span && Date.now() - before.asked < (span === LIVE ? Infinity : 5000)) return;
  const since = span === "all" ? "" : `&since=${topology.taken_ms - SPANS[span][1]}`;
  const { points } = await ask(`/topologies/${encodeURIComponent(id)}/history?limit=300${since}`).catch(() => ({ points: [] }));
  state.past[id] = { span, asked: Date.now(), series: ratesOf(points) };
  if (span !== LIVE) return;
  const live = state.history[id] ||= [], first = live.length ? live[0].t : Infinity;
  state.history[id] = [...state.past[id].series.filter((each) => each.t < first && each.t >= topology.taken_ms - KEPT_MS), ...live];
}

// Letters are numbered from 1 in each checkpoint: what was chosen, opened or asked for is of one topology alone.
async function loadLetters(id) {
  if (letters.of !== id) Object.assign(letters, { of: id, query: {}, page: null, after: [0], chosen: new Set(), opened: {} });
  const query = new URLSearchParams({ ...letters.query, limit: 50, after: letters.after[letters.after.length - 1] });
  const page = await ask(`/topologies/${encodeURIComponent(id)}/dead-letters?${query}`);
  if (letters.of === id) letters.page = page;
}

// ---- drawing ----------------------------------------------------------------------------------------------
let drawn = null;

function draw() {
  const [id, kind, name] = where(), found = state.overview?.topologies.find((each) => each.id === id);
  patch(crumbs, h("nav", { id: "crumbs", "aria-label": "Where you are" }, h("a", { href: "#/" }, "acktree"),
    id ? ["›", h("a", { href: address(id) }, found ? found.name : id)] : null,
    kind === "component" ? ["›", h("span", {}, name)] : null,
    kind === "letters" ? ["›", h("span", {}, "dead letters")] : null,
    kind === "events" ? ["›", h("span", {}, "event log")] : null,
    kind === "traces" || kind === "trace" ? ["›", h("a", { href: address(id, "traces") }, "traces")] : null,
    kind === "trace" ? ["›", h("span", {}, name)] : null));
  const fresh = h("main", { id: "main", tabindex: -1 }, note(), content(id, kind, name, found));
  // Another view shares nothing with the one before: there is nothing to keep, and it begins at its top.
  if (drawn === location.hash) {
    const focused = document.activeElement;
    patch(main, fresh);
    if (focused !== document.activeElement && main.contains(focused)) focused.focus({ preventScroll: true }); // it was moved
  } else {
    main.replaceChildren(...fresh.childNodes);
    window.scrollTo(0, 0);
  }
  drawn = location.hash;
  document.title = found ? `${found.name} – acktree` : "acktree";
}

function note() {
  if (state.error?.status === 401) return null;
  const parts = [];
  for (const error of [state.refused, state.error]) {
    if (error) parts.push(h("p", { class: "note bad", role: "alert" }, error.message, error.fix ? `\n${error.fix}` : ""));
  }
  if (state.note) parts.push(h("p", { class: "note", role: "status" }, state.note));
  return parts;
}

function content(id, kind, name, found) {
  if (state.error?.status === 401) return tokenForm();
  if (!state.overview) return h("p", { class: "soft" }, "Asking the drivers …");
  if (!id) return listView(state.overview.topologies);
  if (!found) return state.error ? null : h("p", {}, "This topology is not known (any more). ", h("a", { href: "#/" }, "All topologies"));
  if (kind === "component") {
    if (state.detail?.acker && name === ACKER) return ackerView(found, state.detail, tools(id));
    return state.detail?.streams ? componentView(found, state.detail, { ...tools(id), debug: mayOrder(found) ? () => askDebug(found, state.detail.name, giving(id)) : null }) : null;
  }
  if (kind === "events") return state.events ? eventsView(found, state.events, address) : null;
  if (kind === "traces") return traces.page ? tracesView(found, traces.page, address, refresh, mayOrder(found) ? giving(id) : null) : null;
  if (kind === "trace") return traces.whole?.message.root === name ? traceView(found, traces.whole, address, ask, draw) : null;
  if (kind === "letters") return letters.page && letters.of === id ? lettersView(found, letters.page) : null;
  return state.detail?.graph && state.detail.id === id ? topologyView(found, state.detail) : null;
}

function tokenForm() {
  return h("section", {}, h("h1", {}, "A token is needed"),
    h("p", {}, "Open the address that `acktree ui` printed, or paste its token."),
    h("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      sessionStorage.setItem(SAVED, event.target.elements.token.value.trim());
      location.reload();
    } }, h("label", {}, "Token ", h("input", { name: "token", type: "password", autocomplete: "off" })), h("button", {}, "Go on")));
}

const mayOrder = (found) => found.is_running && !state.about.read_only;
const tools = (id) => ({ address, window: state.window, setWindow: (value) => { state.window = value; refresh(); } });
const spoutsOf = (topology) => Object.values(topology.components).filter((each) => each.kind === "spout" && !each.gate_of);
const sum = (spouts, what) => spouts.reduce((total, spout) => total + spout.rates[what], 0);

function listView(topologies) {
  if (!topologies.length) return h("section", {}, h("h1", {}, "No topology is known"), h("p", {}, "Start one: acktree run MODULE:NAME --checkpoint FOLDER"));
  return [h("h1", {}, "Topologies"), h("section", {}, table("Topologies",
    [["Name"], ["Status"], ["Uptime", true], ["Tasks", true], ["Emitted/s", true], ["Acked/s", true], ["Failed", true], ["Timed out", true], ["Open", true], ["Dead letters", true]],
    topologies.map((each) => [
      [h("a", { href: address(each.id) }, each.name), h("div", { class: "soft small wrap" }, each.checkpoint)], badge(each.status), each.is_running ? secs(each.uptime_secs) : "–", count(each.tasks),
      rate(sum(spoutsOf(each), "emitted")), rate(sum(spoutsOf(each), "acked")), count(each.account.failed), count(each.account.timed_out),
      count(each.account.open), h("a", { href: address(each.id, "letters") }, count(each.account.dead_letters))])))];
}

// With "System" the acker is drawn below all others, as a bolt that reads from each.
const isSystem = (found) => state.system && Boolean(found.acker_now);
function shownGraph(found, detail) {
  if (!isSystem(found)) return [detail, found.components];
  const places = Object.values(detail.places), last = Math.max(...places.map(([at]) => at)), isNarrow = window.innerWidth < 700;
  const below = isNarrow ? [last + 1, 0] : [last, 1 + Math.max(...places.map(([, place]) => place))];
  const edges = Object.entries(found.components).flatMap(([source, { kind }]) =>
    (kind === "spout" ? ["__ack_init"] : ["__ack_ack", "__ack_fail"]).map((stream) => ({ source, stream, subscriber: ACKER, grouping: "fields" })));
  const graph = { ...detail.graph, subscriptions: [...detail.graph.subscriptions, ...edges] };
  return [{ ...detail, graph, places: { ...detail.places, [ACKER]: below } }, { ...found.components, [ACKER]: found.acker_now }];
}
function ackerRow(found) {
  const now = found.acker_now, { total } = now;
  return [h("a", { href: address(found.id, "component", ACKER) }, ACKER), count(now.tasks), count(total.acked + total.failed + total.timed_out),
    count(total.inits + total.acks + total.fails + total.resets), count(total.acked), count(total.failed), count(total.timed_out),
    share(now.capacity), `${millis(now.settle_ms)} a batch`, "", "", count(now.open_roots), "", "", ""];
}

// How wide the inside of a section is: see style.css.
const graphRoom = () => Math.min(1280, document.documentElement.clientWidth) - 74;

function topologyView(found, detail) {
  const { account } = found, id = found.id;
  const entries = Object.entries(found.components).sort(([a], [b]) => detail.places[a][0] - detail.places[b][0]); // else by name, as they came
  const narrow = window.innerWidth < 700;
  return [
    h("div", { class: "title" }, h("h1", {}, found.name, " ", badge(found.status)), mayOrder(found) ? h("div", { class: "row" }, orders(found, giving(id))) : null),
    h("p", { class: "soft small wrap" }, `${id}, run ${found.run}, micro-batch ${count(found.batch_id)}, ${found.is_running ? `up ${secs(found.uptime_secs)}` : `last seen ${moment(found.taken_ms)}`}, process ${detail.pid} on ${detail.host}, ${found.checkpoint}`),
    detail.stopped_by ? h("p", { class: "note bad" }, detail.stopped_by) : null,
    h("dl", { class: "tiles" }, tile("Emitted", count(account.emitted)), tile("Acked", count(account.acked)),
      tile("Failed", count(account.failed), account.failed > 0), tile("Timed out", count(account.timed_out), account.timed_out > 0),
      tile("Open", count(account.open)), tile("Workers lost", count(found.workers_lost), found.workers_lost > 0), tile("Traces", h("a", { href: address(id, "traces") }, "search")), tile("Event log", h("a", { href: address(id, "events") }, debugLine(found) ? "on" : "off")), tile("Dead letters", h("a", { href: address(id, "letters") }, count(account.dead_letters)), account.dead_letters > 0)),
    h("p", { class: "soft small" }, `These are of run ${found.run}. All runs: ${count(found.all_time.emitted)} emitted, ${count(found.all_time.acked)} acked, ${count(found.all_time.failed)} failed, ${count(found.all_time.timed_out)} timed out, ${count(found.all_time.workers_lost)} workers lost.`),
    found.gates?.emitted === undefined ? null : h("p", { class: "soft small" }, `Passed gates in run ${found.run}: ${count(found.gates.emitted)} emitted, ${count(found.gates.acked)} acked, of which ${count(found.gates.superseded)} superseded; ${count(found.gates.failed)} failed, ${count(found.gates.timed_out)} timed out, ${count(found.gates.open)} open, ${count(found.gates.waiting)} wait.`),
    Object.entries(found.components).map(([name, each]) => outageNotes(name, each.outages)),
    h("section", {}, h("div", { class: "title" }, h("h2", {}, "Graph"), h("div", { class: "row small" },
      found.acker_now ? h("label", {}, h("input", { type: "checkbox", checked: state.system, onchange: (event) => { state.system = event.target.checked; draw(); } }), "System") : null,
      h("label", {}, "Heat by ", h("select", { onchange: (event) => { state.heat = event.target.value; draw(); } },
        h("option", { value: "capacity" }, "capacity"), h("option", { value: "latency" }, "latency"))),
      h("span", { class: "row", "aria-hidden": "true" }, state.heat === "capacity" ? "idle" : "1 ms", [0, 1, 2, 3, 4, 5].map((n) => h("span", { class: `key heat-${n}` })), state.heat === "capacity" ? "busy" : "10 s"))),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Graph, scrolls" }, graph(...shownGraph(found, detail), state.heat, (name) => address(id, "component", name), narrow, graphRoom()))),
    h("div", { class: "two" },
      h("section", {}, h("div", { class: "title" }, h("h2", {}, "Messages a second"), h("label", { class: "small" }, "Last ",
          h("select", { onchange: (event) => { state.span[id] = event.target.value; refresh(); } },
            Object.entries(SPANS).map(([value, [text]]) => h("option", { value, selected: value === spanOf(found) }, text))))),
        chart((spanOf(found) === LIVE ? state.history[id] : state.past[id]?.series) || [], narrow ? 340 : 560, SPANS[spanOf(found)][1], found.taken_ms, found.is_running),
        h("p", { class: "small soft" }, "solid: emitted, dashed: acked, dotted: failed and timed out")),
      h("section", {}, h("h2", {}, "Where the last micro-batch's time went"),
        Object.keys(detail.batch_ms).length ? [phases(phasesOf(detail.batch_ms)), h("p", { class: "small soft" }, "A level: its time on the clock, in its slowest partition. Exchange and tasks: tuples between levels, and the start of Spark's tasks.")]
          : h("p", { class: "soft" }, "Not known."),
        h("p", { class: "small soft" }, `Inbox: ${count(detail.inbox.messages)} messages wait, ${count(Math.round(detail.inbox.bytes / 1024))} of ${count(Math.round(detail.inbox.limit_bytes / 1024))} kB. Acker: ${count(detail.acker.open_roots)} open roots.`),
        detail.keys?.kept || detail.keys?.open ? h("p", { class: "small soft" }, `Keys: ${count(detail.keys.kept)} kept${detail.keys.oldest_secs === null ? "" : `, the oldest for ${secs(detail.keys.oldest_secs)}`}; ${count(detail.keys.open)} open, ${count(detail.keys.waiting)} messages wait for one.`) : null)),
    h("section", {}, h("h2", {}, "Components"), table("Components",
      [["Component"], ["Tasks", true], ["Emitted", true], ["Executed", true], ["Acked", true], ["Failed", true], ["Timed out", true], ["Busy", true], ["Execute", true], ["Process", true], ["Complete", true], ["Open", true], ["Oldest", true], ["Lag", true], ["Errors", true]],
      entries.map(([name, each]) => [
        h("a", { href: address(id, "component", name) }, name), count(each.tasks), count(each.total.emitted),
        each.kind === "bolt" ? count(each.total.executed) : "", count(each.total.acked), count(each.total.failed), each.kind === "spout" ? count(each.total.timed_out) : "",
        each.kind === "bolt" ? share(each.capacity) : "", each.kind === "bolt" ? millis(each.total.execute_ms) : "", each.kind === "bolt" ? millis(each.total.process_ms) : "",
        each.kind === "spout" ? millis(each.total.complete_ms) : "", each.open === null ? "" : count(each.open), each.oldest_open_secs === null ? "" : secs(each.oldest_open_secs),
        each.lag === null ? "" : count(each.lag), count(each.total.errors)]).concat(isSystem(found) ? [ackerRow(found)] : []))),
    detail.oldest?.length ? h("section", { "data-key": "oldest" }, h("h2", {}, "Oldest open messages"), table("Oldest open messages",
      [["Message"], ["Spout"], ["Age", true], ["Attempt", true], ["State"], ["Held by"], ["Root", true]],
      detail.oldest.map((each) => [named(each.label, each.message_id), each.spout, secs(each.age_secs), count(each.attempt), each.state === "retry" ? "waits for its next attempt" : "open",
        heldBy(each, (name) => address(id, "component", name)), each.root || ""]))) : null,
    h("section", {}, h("h2", {}, "Last errors"), errorList(detail.errors.slice().reverse(), (name) => address(id, "component", name))),
    h("section", {}, h("details", {}, h("summary", {}, "Settings"), table("Settings", [["Setting"], ["Value"]],
      Object.entries(detail.config).map(([key, value]) => [key, value === null ? "none" : String(value)])))),
  ];
}

// ---- dead letters -----------------------------------------------------------------------------------------
function lettersView(found, page) {
  const id = found.id, spouts = Object.keys(found.components).filter((name) => found.components[name].kind === "spout");
  const chosen = page.letters.filter((letter) => letters.chosen.has(letter.id)).map((letter) => letter.id);
  const choose = (name, value) => {
    if (value) letters.query[name] = value; else delete letters.query[name];
    letters.after = [0]; letters.chosen.clear(); refresh();
  };
  const filter = (name, title, options) => h("label", {}, title, h("select", { name, onchange: (event) => choose(name, event.target.value) }, h("option", { value: "" }, "any"), options.map(([value, text]) => h("option", { value, selected: letters.query[name] === value }, text))));
  const all = { ...(Object.keys(letters.query).length ? letters.query : { all: true }), expected_count: page.count };
  // What was sent before was acked, or is another letter, which matches too. An older driver does not count them.
  const isAsked = letters.query.redriven || page.not_redriven === undefined, fresh = isAsked ? page.count : page.not_redriven;
  const unsent = isAsked ? all : { ...letters.query, redriven: "false", expected_count: fresh };
  const can = !state.about.read_only;
  return [
    h("h1", {}, "Dead letters"),
    h("section", {}, h("div", { class: "row" }, filter("spout", "Spout ", spouts.map((name) => [name, name])),
      filter("component", "Failed in ", Object.keys(found.components).map((name) => [name, name])),
      filter("cause", "Cause ", ["EXCEPTION", "FAILED_BY_BOLT", "TIMEOUT", "KILLED_WORKER", "HUNG", "MISUSE", "UNAVAILABLE", "CONFIGURATION", "GAVE_UP"].map((each) => [each, each])),
      filter("redriven", "Redriven ", [["false", "no"], ["true", "yes"]]),
      h("label", {}, "Label ", h("input", { name: "label", size: 14, autocomplete: "off", value: letters.query.label || "", onchange: (event) => choose("label", event.target.value.trim()) })))),
    h("section", {}, h("div", { class: "title" }, h("h2", {}, `${count(page.count)} match`), h("div", { class: "row" },
      h("button", { disabled: !can || !chosen.length, onclick: () => redrive(found, { ids: chosen }, chosen.length) }, `Redrive ${chosen.length} selected`),
      h("button", { disabled: !can || !fresh, onclick: () => redrive(found, unsent, fresh) }, fresh === page.count ? `Redrive all ${count(fresh)} that match` : `Redrive ${count(fresh)} that match and were not sent before`),
      h("button", { class: "danger", disabled: !can || !chosen.length, onclick: () => purge(found, { ids: chosen }, chosen.length) }, `Delete ${chosen.length} selected`),
      h("button", { class: "danger", disabled: !can || !page.count, onclick: () => purge(found, all, page.count) }, `Delete all ${count(page.count)} that match`))),
      isStopped(found) ? h("p", { class: "soft" }, `Nobody runs this topology: its next run sends what is ordered here. ${count(page.ordered || 0)} wait for it.`) : null,
      page.letters.length ? table("Dead letters", [["Letter"], ["Given up"], ["Message"], ["Spout"], ["Tries", true], ["Failed in"], ["Reason"], ["Redriven"]],
        page.letters.map((letter) => [
          h("label", {}, h("input", { type: "checkbox", checked: letters.chosen.has(letter.id), "aria-label": `select letter ${letter.id}`, onchange: (event) => { letters.chosen[event.target.checked ? "add" : "delete"](letter.id); draw(); } }), String(letter.id)),
          h("span", { class: "when" }, moment(letter.dead_ms)), h("span", { class: "wrap" }, named(letter.label, letter.message_id_repr)), letter.spout, count(letter.attempts), letter.component || "unknown",
          h("details", { ontoggle: (event) => { if (event.target.open) openLetter(id, letter.id); } }, h("summary", {}, letter.reason.slice(0, 160)), letterDetail(letter)),
          letter.dead_again_id ? `dead again: ${letter.dead_again_id}` : letter.settled_ms ? "acked" : letter.redriven_ms ? "no verdict yet" : "no"])) : h("p", { class: "soft" }, "No letter matches."),
      h("div", { class: "row" },
        letters.after.length > 1 ? h("button", { onclick: () => { letters.after.pop(); refresh(); } }, "Back") : null,
        page.after !== null ? h("button", { onclick: () => { letters.after.push(page.after); refresh(); } }, "Next 50") : null)),
  ];
}

function letterDetail(letter) {
  const full = letters.opened[letter.id];
  return h("div", {}, h("p", { class: "small soft" }, `${letter.kind}, ${letter.cause}, stream ${letter.stream}, root ${letter.root}, first emitted ${moment(letter.first_emitted_ms)}`),
    table("Values", [["Field"], ["Value"]], Object.entries(letter.values).map(([name, value]) => [name, (letter.texts || {})[name] !== undefined ? h("pre", { class: "wrap", tabindex: 0 }, letter.texts[name]) : typeof value === "string" ? value : JSON.stringify(value)])),
    full ? h("pre", { tabindex: 0 }, full.traceback || "No traceback.") : null);
}

async function openLetter(id, number) {
  if (letters.opened[number]) return;
  const { opened } = letters;
  opened[number] = await ask(`/topologies/${encodeURIComponent(id)}/dead-letters/${number}`).catch(() => ({}));
  draw();
}

const letterOrder = (id, name, question, yes, order, said) => confirmed(question, yes, () => carryOut(async () => {
  const done = await ask(`/topologies/${encodeURIComponent(id)}/dead-letters/${name}`, order);
  letters.chosen.clear();
  state.note = said(done);
}));
// UNKNOWN: its driver runs, and did not answer in time.
const isStopped = (found) => !found.is_running && found.status !== "UNKNOWN";
const redrive = (found, order, n) => letterOrder(found.id, "redrive",
  isStopped(found) ? `Let the next run of ${found.name} send ${count(n)} dead letters again, as new messages?` : `Send ${count(n)} dead letters of ${found.name} again, as new messages?`, "Redrive", order,
  (done) => (done.ordered === undefined ? `${count(done.redriven)} dead letters were sent again.` : `The next run sends ${count(done.ordered)} dead letters again.`));
const purge = ({ id, name }, order, n) => letterOrder(id, "purge", `Delete ${count(n)} dead letters of ${name} for ever?`, "Delete", order, (done) => `${count(done.purged)} dead letters were deleted.`);

// ---- orders -----------------------------------------------------------------------------------------------
// Gives an order to a topology, and says so when it is carried out.
const giving = (id) => (order, body, done) => carryOut(async () => {
  await ask(`/topologies/${encodeURIComponent(id)}/${order}`, body);
  state.note = done;
});

// Why an order was refused stays until the next order, or another view: `state.error` goes with the next load.
async function carryOut(order) {
  state.note = state.refused = null;
  try { await order(); } catch (error) { state.note = null; state[error.status === 401 ? "error" : "refused"] = error; draw(); return; }
  await refresh();
}

// ---- the stream -------------------------------------------------------------------------------------------
function take(overview) {
  state.overview = overview;
  for (const topology of overview.topologies) {
    const spouts = spoutsOf(topology), series = (state.history[topology.id] ||= []);
    if (topology.is_running) series.push({ t: topology.taken_ms, emitted: sum(spouts, "emitted"), acked: sum(spouts, "acked"), failed: sum(spouts, "failed") + sum(spouts, "timed_out") });
    while (series.length && series[0].t < topology.taken_ms - KEPT_MS) series.shift();
  }
}

// The topology whose whole answer the stream has beside the overview: the one that is shown, and no part of it.
const followed = () => { const [id, kind] = where(); return id && !kind ? id : ""; };
let listening = { id: "", stop() {} };

async function listen() {
  const id = followed(), stopper = new AbortController();
  listening = { id, stop: () => stopper.abort() };
  state.sent = null;
  const answer = await fetch(`${API}/stream${id ? `?topology=${encodeURIComponent(id)}` : ""}`, { headers: headers(), signal: stopper.signal });
  if (answer.status === 401) throw Object.assign(new Error("a token is needed"), { status: 401 });
  if (!answer.ok) throw Object.assign(new Error(answer.statusText), { status: answer.status });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the page's process is gone");
    const events = (text + value).split("\n\n");
    text = events.pop();
    const newest = (kind) => events.findLast((event) => event.includes(`event: ${kind}\ndata: `))?.split("\ndata: ")[1];
    const overview = newest("snapshot"), topology = newest("topology");
    if (topology) state.sent = JSON.parse(topology);
    if (!overview) continue;
    take(JSON.parse(overview));
    live.textContent = "live";
    live.className = "";
    await load();
    draw();
  }
}

async function refresh() {
  state.sent = null; // it may be of before an order
  try { take(await ask("/topologies")); } catch (error) { state.error = error; draw(); return; }
  await load();
  draw();
}

async function follow() {
  for (;;) {
    try { await listen(); } catch (error) {
      if (error.name === "AbortError") continue; // another topology is followed now
      if (error.status === 503) { // too many streams are read: ask instead
        live.textContent = "live, asked again and again";
        live.className = "";
        await refresh();
        await new Promise((resolve) => setTimeout(resolve, 1500));
        continue;
      }
      live.textContent = error.status === 401 ? "no token" : "connection lost, trying again";
      live.className = "lost";
      if (error.status === 401) { state.error = error; draw(); return; }
    }
    await new Promise((resolve) => setTimeout(resolve, 1500));
  }
}

window.addEventListener("hashchange", async () => {
  state.note = state.error = state.refused = state.detail = state.events = null;
  letters.page = null;
  letters.after = [0];
  forget();
  main.focus(); // at once: an event of the stream may draw the view before it is loaded here, and its reader go on
  if (followed() !== listening.id) listening.stop();
  await load();
  draw();
});

ask("/page").then((about) => { state.about = about; }, () => {});
draw();
follow();
