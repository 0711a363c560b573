// Orders to a topology: a dialog asks before one is given; and the event log.
import { count, h, moment, table } from "./draw.js";

const dialog = document.getElementById("dialog");

// Ask with a form. `order` gets the values of its fields, and the text of the button that was pressed.
export function asking(question, fields, buttons, order) {
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form));
    dialog.close();
    order(values, event.submitter?.value || buttons[0]);
  } }, h("p", { id: "question" }, question), fields.map((field) => h("p", {}, field)),
  h("div", { class: "row" }, buttons.map((text, at) => h("button", { value: text, formnovalidate: at > 0 }, text)),
    h("button", { type: "button", onclick: () => dialog.close() }, "Cancel")));
  dialog.replaceChildren(form);
  dialog.showModal();
}

export const confirmed = (question, yes, order) => asking(question, [], [yes], order);

const number = (name, title, value, given) => h("label", {}, `${title} `,
  h("input", { name, type: "number", min: 0, step: "any", value, size: 8, ...given }));

// Buttons for orders. `give` sends one, and shows a note when it is done.
export function orders(found, give) {
  const { name } = found;
  return [
    h("button", { onclick: () => askDebug(found, "", give) }, "Debug"),
    found.status === "INACTIVE"
      ? h("button", { onclick: () => give("activate", {}, "Its spouts emit again.") }, "Activate")
      : h("button", { disabled: found.status !== "ACTIVE", onclick: () => confirmed(`Deactivate ${name}? Its spouts are not asked any more; what is open goes on.`, "Deactivate",
        () => give("deactivate", {}, "Its spouts are not asked any more.")) }, "Deactivate"),
    h("button", { class: "danger", onclick: () => asking(`Kill ${name}? It waits for open messages, then stops.`,
      [number("wait_secs", "Wait at most (seconds; empty: the message timeout)", "")], ["Kill"],
      ({ wait_secs }) => give("kill", wait_secs === "" ? {} : { wait_secs: Number(wait_secs) }, "It waits for open messages, then stops.")) }, "Kill"),
  ];
}

export function askDebug(found, component, give) {
  const names = [["", "every one without an order of its own"], ...Object.keys(found.components).map((name) => [name, name])];
  asking(`Debug ${found.name}: log the tuples that its components emit. Of a message that is chosen, all are logged.`, [
    h("label", {}, "Component ", h("select", { name: "component" }, names.map(([value, text]) => h("option", { value, selected: value === component }, text)))),
    number("percent", "Percent of the messages", found.debug[component] || 10, { max: 100, required: true }),
  ], ["Log", "Stop logging"], (values, pressed) => {
    const chosen = values.component || null, on = pressed === "Log";
    give("debug", on ? { on, component: chosen, percent: Number(values.percent) } : { on, component: chosen },
      on ? "Tuples are logged from the next micro-batches on." : chosen ? `The tuples of ${chosen} are not logged any more.` : "No tuples are logged any more.");
  });
}

// What is logged now; null for nothing.
export function debugLine(found) {
  const named = Object.entries(found.debug || {});
  if (!named.some(([, percent]) => percent > 0)) return null;
  const others = named.length > 1 ? "all others" : "all components";
  return `Logged: ${named.map(([name, percent]) => `${name || others} ${percent} %`).join(", ")}`;
}

export function eventsView(found, events, address) {
  return [
    h("div", { class: "title" }, h("h1", {}, "Event log"), h("span", { class: "soft" }, debugLine(found) || "Nothing is logged now.")),
    h("section", {}, events.length ? table("Event log", [["Time"], ["Component"], ["Task", true], ["Stream"], ["Root", true], ["Values"]],
      events.slice().reverse().map((each) => [
        h("span", { class: "when" }, moment(each.time_ms)), h("a", { href: address(found.id, "component", each.component) }, each.component), count(each.task_id), each.stream, each.root || "",
        h("span", { class: "values wrap" }, each.values.map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", "))]))
      : h("p", { class: "soft" }, "No tuple was logged. Debug, on the topology's page, lets components log what they emit.")),
  ];
}
