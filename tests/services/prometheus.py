"""A Prometheus of a test's own, on loopback: it scrapes a page each second, and evaluates our alert rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from tests.services.servers import Server

RULES = Path(__file__).parents[2] / "docs" / "monitoring" / "alerts.yml"
_SCRAPES_SECS = 60


class Prometheus(Server):
    """Debian's Prometheus.

    Args:
        target: The page's URL.
        token: What the page asks for.
    """

    name = "prometheus"

    def __init__(self, target: str, token: str) -> None:
        self._target, self._token = target.partition("://")[2], token
        super().__init__()

    @classmethod
    def missing(cls) -> str:
        found = shutil.which("prometheus") and shutil.which("promtool")
        return "" if found else "no Prometheus (Debian: apt-get install prometheus)"

    @staticmethod
    def check_rules() -> subprocess.CompletedProcess[str]:
        """What promtool says of the alert rules."""
        return subprocess.run(
            ["promtool", "check", "rules", str(RULES)], check=False, capture_output=True, text=True
        )

    @classmethod
    @contextmanager
    def scraping(cls, target: str, token: str) -> Iterator[Self]:
        """One that scrapes a page for the length of the block."""
        server = cls(target, token)
        try:
            yield server
        finally:
            server.remove()

    def prepare(self) -> None:
        (self.folder / "token").write_text(self._token)
        (self.folder / "prometheus.yml").write_text(
            f"""
            global: {{scrape_interval: 1s, evaluation_interval: 1s}}
            rule_files: ["{RULES}"]
            scrape_configs:
              - job_name: acktree
                authorization: {{credentials_file: "{self.folder}/token"}}
                static_configs: [{{targets: ["{self._target}"]}}]
            """
        )

    def command(self) -> list[str]:
        return [
            "prometheus", f"--config.file={self.folder}/prometheus.yml",
            f"--storage.tsdb.path={self.folder}/data", f"--web.listen-address=127.0.0.1:{self.port}",
        ]  # fmt: skip

    def is_ready(self) -> bool:
        try:
            return bool(urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5).status == 200)
        except URLError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression is now."""
        return list(self._ask(f"query?query={quote(expression)}")["result"])

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules, with their health."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Pending and firing ones."""
        return list(self._ask("alerts")["alerts"])

    def await_scrapes(self, count: int) -> str:
        """Wait for scrapes and for rules that were evaluated after them; returns the page's health."""
        end = time.monotonic() + _SCRAPES_SECS
        scraped_at = None
        while time.monotonic() < end:
            found = self.query("sum_over_time(up[1m])")
            if scraped_at is None and found and float(found[0]["value"][1]) >= count:
                scraped_at = datetime.now(UTC)
            if scraped_at and all(_evaluated_at(rule) > scraped_at for rule in self.rules()):
                break
            time.sleep(0.2)
        return str(self._ask("targets")["activeTargets"][0]["health"])

    def _ask(self, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=20) as answer:
            return json.load(answer)["data"]


def _evaluated_at(rule: dict[str, Any]) -> datetime:
    """When a rule was evaluated last; long ago for one that never was."""
    return datetime.fromisoformat(rule["lastEvaluation"])
