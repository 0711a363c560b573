"""What the browser does while something is drawn."""

from __future__ import annotations


class Costs:
    """The costs of a tab."""

    def __init__(self, page) -> None:
        self.page, self._session = page, page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def _now(self):
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in metrics}

    def of(self, what, selector, count):
        """Run a script and wait for a number of elements; returns ms, CPU of the tab, layouts, elements."""
        before = self._now()
        script = """([selector, count]) => new Promise((done, refuse) => {
            const began = performance.now();
            const found = () => document.querySelectorAll(selector).length;
            const look = () => {
                if (found() >= count) requestAnimationFrame(() => done(performance.now() - began));
                else if (performance.now() - began > 20000) refuse(new Error(`${found()} ${selector}`));
                else requestAnimationFrame(look);
            };
            WHAT;
            look();
        })""".replace("WHAT", what)
        ms = self.page.evaluate(script, [selector, count])
        after = self._now()
        return {
            "ms": round(ms),
            "cpu_secs": round(after["TaskDuration"] - before["TaskDuration"], 3),
            "layouts": after["LayoutCount"] - before["LayoutCount"],
            "elements": self.page.evaluate("document.querySelectorAll('*').length"),
        }
