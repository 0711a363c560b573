"""Asks a page's process as a program does."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass


@dataclass
class Page:
    """A page's process, in this one."""

    url: str
    token: str

    @property
    def host(self) -> str:
        return self.url.partition("://")[2]

    def ask(self, path, method="GET", body=None, token="right", **headers):
        """Status, headers and body of an answer; ``token``: "right", or what Authorization holds, or None."""
        connection = http.client.HTTPConnection(self.host, timeout=20)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["Authorization"] = f"Bearer {self.token}" if token == "right" else token
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        return answer.status, answer.headers, said

    def json(self, path, **given):
        """The body of an answer that is 200."""
        status, _, said = self.ask(path, **given)
        assert status == 200, said
        return json.loads(said)


def page_at(about) -> Page:
    """The page that ``serve`` has started."""
    return Page(about.url, about.token)
