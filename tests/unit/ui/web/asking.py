"""Asks a page's process as a program does."""

from __future__ import annotations

import http.client
import json
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import pytest


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
        connection = http.client.HTTPConnection(self.host, timeout=120)
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

    def beginning(self, path):
        """Status, headers and body of an answer without an end, up to its first event of the overview."""
        connection = http.client.HTTPConnection(self.host, timeout=120)
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        answer, said = connection.getresponse(), b""
        try:
            while not (said.endswith(b"\n\n") and b"event: snapshot\n" in said):
                line = answer.readline()
                assert line, said
                said += line
        finally:
            answer.close()
            connection.close()
        return answer.status, answer.headers, said

    def stream(self, topology=None):
        """The kind and the JSON of each event of the stream, as they come."""
        connection = http.client.HTTPConnection(self.host, timeout=120)
        path = f"/api/acktree/v1/stream{'' if topology is None else f'?topology={quote(topology)}'}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        answer, kind = connection.getresponse(), ""
        try:
            for line in answer:
                name, _, value = line.decode().strip().partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)
        finally:
            answer.close()
            connection.close()


def page_at(about) -> Page:
    """The page that ``serve`` has started."""
    return Page(about.url, about.token)


@contextmanager
def page_of(*checkpoints):
    """A page over these checkpoints. Where its libraries are not installed the test is left out."""
    serve = pytest.importorskip("acktree.ui.web.serve")
    serving = serve.serve(serve.Options(checkpoints=tuple(map(str, checkpoints))))
    try:
        yield page_at(next(serving))
    finally:
        serving.close()
