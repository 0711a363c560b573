"""What the browser does while something is drawn."""

from __future__ import annotations

PLAIN = """
const list = document.createElement("ol");
for (let n = 0; n < 3000; n++) {
    const line = list.appendChild(document.createElement("li"));
    line.appendChild(document.createElement("b")).textContent = `plain ${n}`;
}
document.body.appendChild(list);
list.getBoundingClientRect();
"""
"""What the CPU of a tab is compared with: 3,000 lines, drawn. A busy machine makes both dearer."""


class Costs:
    """The costs of a tab."""

    def __init__(self, page) -> None:
        self.page, self._session = page, page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._plain_secs = 1.0
        self._plain_secs = self.of(PLAIN, "ol li", 3000)["lists"]
        page.evaluate("document.querySelectorAll('body > ol').forEach((list) => list.remove())")

    def _now(self):
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in metrics}

    def of(self, what, selector, count):
        """Run a script and wait for a number of elements; returns ms, CPU of the tab, layouts, elements.

        The CPU is in ``lists``: one is what :data:`PLAIN` takes.
        """
        before = self._now()
        script = """([selector, count]) => new Promise((done, refuse) => {
            const began = performance.now();
            const found = () => document.querySelectorAll(selector).length;
            const look = () => {
                if (found() >= count) requestAnimationFrame(() => done(performance.now() - began));
                else if (performance.now() - began > 120000) refuse(new Error(`${found()} ${selector}`));
                else requestAnimationFrame(look);
            };
            WHAT;
            look();
        })""".replace("WHAT", what)
        ms = self.page.evaluate(script, [selector, count])
        after = self._now()
        return {
            "ms": round(ms),
            "lists": round((after["TaskDuration"] - before["TaskDuration"]) / self._plain_secs, 3),
            "layouts": after["LayoutCount"] - before["LayoutCount"],
            "elements": self.page.evaluate("document.querySelectorAll('*').length"),
        }
