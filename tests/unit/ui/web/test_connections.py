"""Connections that send nothing, or slowly, and streams: whoever has the token is answered beside them."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import ExitStack
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("starlette")

from acktree.ui.web import connections, ours, own_routes, streams
from acktree.ui.web.connections import Connection
from acktree.ui.web.serve import Options, serve
from tests.unit.ui.web.asking import Page, page_at

pytestmark = pytest.mark.slow
PROMPT_SECS = 3.0
MANY = 300
HEAD = "GET /metrics HTTP/1.1\r\nHost: {host}\r\n"
STREAM = "GET /api/acktree/v1/stream HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"


def connected(page, stack):
    host, _, port = page.host.partition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=120))


def is_closed(connection, secs=0.0):
    """Whether the server closes it within some seconds."""
    connection.settimeout(secs or 0.001)
    try:
        return connection.recv(65536) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def asked(page, path="/api/acktree/v1/healthz", **headers):
    """The status, and how many seconds the answer took."""
    began = time.monotonic()
    status = page.ask(path, **headers)[0]
    return status, time.monotonic() - began


@pytest.mark.parametrize("sent", ["", HEAD, HEAD + "\r\n" + HEAD], ids=["silent", "half", "one-and-a-half"])
def test_a_reader_with_the_token_is_answered_at_once_beside_connections_without_it(page, sent):
    with ExitStack() as stack:
        opened = [connected(page, stack) for _ in range(MANY)]
        for each in opened:
            each.sendall(sent.format(host=page.host).encode())
        for _ in range(5):
            status, secs = asked(page, "/metrics")
            assert status == 200
            assert secs < PROMPT_SECS


def test_of_connections_without_the_token_the_oldest_are_closed(page, monkeypatch):
    monkeypatch.setattr(connections, "_MOST_UNTRUSTED", 20)
    monkeypatch.setattr(connections, "_HEAD_SECS", 60.0)
    with ExitStack() as stack:
        opened = [connected(page, stack) for _ in range(30)]
        assert asked(page)[0] == 200
        assert all(is_closed(each, 5) for each in opened[:9])
        assert not any(map(is_closed, opened[-18:]))


def test_a_connection_that_has_shown_the_token_is_not_the_oldest(page, monkeypatch):
    monkeypatch.setattr(connections, "_MOST_UNTRUSTED", 5)
    with ExitStack() as stack:
        stream = http.client.HTTPConnection(page.host, timeout=120)
        stack.callback(stream.close)
        stream.request("GET", "/api/acktree/v1/stream", headers={"Authorization": f"Bearer {page.token}"})
        answer = stream.getresponse()
        for _ in range(30):
            connected(page, stack)
        assert [answer.readline() for _ in range(12)][-1]


def test_a_connection_without_a_complete_head_is_closed_in_time(page, monkeypatch):
    monkeypatch.setattr(connections, "_HEAD_SECS", 0.5)
    with ExitStack() as stack:
        silent, slow, second = (connected(page, stack) for _ in range(3))
        second.sendall(f"{HEAD}Authorization: Bearer {page.token}\r\n\r\n".format(host=page.host).encode())
        assert second.recv(65536).startswith(b"HTTP/1.1 200")
        ended = set()
        end = time.monotonic() + 120
        while len(ended) < 2 and time.monotonic() < end:
            for each in {slow, second} - ended:
                try:
                    each.sendall(b"G" if each is slow else b"x")
                    each.settimeout(0.05)
                    if each.recv(65536) == b"":
                        ended.add(each)
                except TimeoutError:
                    pass
                except ConnectionError:
                    ended.add(each)
        assert len(ended) == 2
        assert is_closed(silent, 10)


def test_who_has_no_token_takes_the_answer_in_time_or_is_closed(running, topology_id, monkeypatch):
    monkeypatch.setattr(connections, "_ANSWER_SECS", 0.5)
    monkeypatch.setattr(connections, "_HEAD_SECS", 60.0)
    monkeypatch.setattr("acktree.ui.web.storm.cluster_summary", lambda *_: time.sleep(3) or {})
    serving = serve(Options(has_open_numbers=True))
    try:
        page = page_at(next(serving))
        with ExitStack() as stack:
            without = connected(page, stack)
            ask = "GET /api/v1/cluster/summary HTTP/1.1\r\nHost: {host}\r\n"
            without.sendall(f"{ask}\r\n".format(host=page.host).encode())
            began = time.monotonic()
            assert is_closed(without, 20)
            assert time.monotonic() - began < 2.5
            assert asked(page, "/api/v1/cluster/summary")[0] == 200
    finally:
        serving.close()


def test_a_stream_with_the_token_outlives_every_deadline(page, monkeypatch):
    monkeypatch.setattr(connections, "_ANSWER_SECS", 0.3)
    monkeypatch.setattr(connections, "_HEAD_SECS", 0.3)
    with ExitStack() as stack:
        stream = http.client.HTTPConnection(page.host, timeout=120)
        stack.callback(stream.close)
        stream.request("GET", "/api/acktree/v1/stream", headers={"Authorization": f"Bearer {page.token}"})
        answer = stream.getresponse()
        events = 0
        while events < 3:
            events += answer.readline().startswith(b"data: ")


def test_a_request_that_is_refused_ends_its_connection(page):
    assert page.ask("/metrics", token=None)[1]["Connection"] == "close"
    assert page.ask("/metrics")[1]["Connection"] != "close"


def test_streams_beyond_the_most_are_refused_and_keep_no_request_waiting(page, monkeypatch):
    monkeypatch.setattr(streams, "_MOST_STREAMS", 50)
    given = {"Authorization": f"Bearer {page.token}"}
    with ExitStack() as stack:
        answers = []
        for _ in range(60):
            connection = http.client.HTTPConnection(page.host, timeout=120)
            stack.callback(connection.close)
            connection.request("GET", "/api/acktree/v1/stream", headers=given)
            answers.append(connection.getresponse())
        assert [answer.status for answer in answers] == [200] * 50 + [503] * 10
        assert b"streams are read already" in answers[-1].read()
        for path in ("/metrics", "/api/acktree/v1/topologies", "/"):
            status, secs = asked(page, path)
            assert status == 200
            assert secs < PROMPT_SECS
    end = time.monotonic() + 120
    while page.ask("/api/acktree/v1/topologies")[0] and time.monotonic() < end:
        connection = http.client.HTTPConnection(page.host, timeout=120)
        connection.request("GET", "/api/acktree/v1/stream", headers=given)
        status = connection.getresponse().status
        connection.close()
        if status == 200:
            return
    pytest.fail("streams that were closed still count")


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_reader_that_takes_nothing_holds_no_more_than_an_event_and_is_closed(
    is_secure, certificate, running, monkeypatch
):
    """Fifty events of a megabyte a second, of which the kernel takes as many as it likes."""
    event, made = 1_000_000, []
    monkeypatch.setattr(streams, "_STREAM_SECS", 0.02)
    monkeypatch.setattr(connections, "_STUCK_SECS", 3.0)
    monkeypatch.setattr(ours, "overview", lambda _: "x" * event)
    connected_before = Connection.connection_made
    monkeypatch.setattr(
        Connection, "connection_made", lambda self, wire: made.append(self) or connected_before(self, wire)
    )
    with ExitStack() as stack:
        reading(stack, certificate if is_secure else {})
        end = time.monotonic() + 120
        while not (made and waiting_bytes(made[0])):
            assert time.monotonic() < end
            time.sleep(0.01)
        most = 0
        while not made[0].transport.is_closing():
            assert time.monotonic() < end
            most = max(most, waiting_bytes(made[0]))
            time.sleep(0.01)
    assert 0 < most < 2 * event


def waiting_bytes(connection):
    """As the thread of its loop sees it: another one may see bytes twice, before and after TLS took them."""
    seen = Future()
    connection.loop.call_soon_threadsafe(lambda: seen.set_result(connection._waiting_bytes()))
    return seen.result(60)


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_reader_that_is_slow_and_not_stuck_is_not_closed(is_secure, certificate, running, monkeypatch):
    """It takes less than is made, and less in the time than waits for it."""
    monkeypatch.setattr(streams, "_STREAM_SECS", 0.02)
    monkeypatch.setattr(connections, "_STUCK_SECS", 1.5)
    monkeypatch.setattr(ours, "overview", lambda _: "x" * 20_000)
    with ExitStack() as stack:
        stream = reading(stack, certificate if is_secure else {}, kernel_bytes=4096)
        end = time.monotonic() + 9
        while time.monotonic() < end:
            assert stream.recv(4096)
            time.sleep(0.1)


def reading(stack, certificate, kernel_bytes=None):
    """A socket on which an event stream has been asked for, of a server of its own."""
    serving = serve(Options(**certificate))
    stack.callback(serving.close)
    page = page_at(next(serving))
    host, _, port = page.host.partition(":")
    wire = stack.enter_context(socket.socket())
    if kernel_bytes is not None:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kernel_bytes)
    wire.settimeout(20)
    wire.connect((host, int(port)))
    if certificate:
        wire = stack.enter_context(trusting(certificate).wrap_socket(wire))
    wire.sendall(STREAM.format(host=page.host, token=page.token).encode())
    return wire


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The options of a server with TLS."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    try:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
             "-keyout", key, "-out", cert, "-days", "1"],
            check=True, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl makes no certificate here")
    return {"certificate": str(cert), "key": str(key)}


def trusting(certificate):
    context = ssl.create_default_context(cafile=certificate["certificate"])
    context.check_hostname = False
    return context


def test_an_event_is_made_once_for_all_readers(page, monkeypatch):
    made, overview = [], ours.overview
    monkeypatch.setattr(ours, "overview", lambda seen: made.append(1) or overview(seen))
    given = {"Authorization": f"Bearer {page.token}"}
    with ExitStack() as stack:
        answers = []
        for _ in range(20):
            connection = http.client.HTTPConnection(page.host, timeout=120)
            stack.callback(connection.close)
            connection.request("GET", "/api/acktree/v1/stream", headers=given)
            answers.append(connection.getresponse())
        began = time.monotonic()
        for answer in answers:
            events = 0
            while events < 3:
                events += answer.readline().startswith(b"data: ")
        assert len(made) <= 4 + (time.monotonic() - began)


def test_a_handshake_of_tls_that_does_not_come_is_closed_in_time(certificate, monkeypatch):
    monkeypatch.setattr(connections, "_HEAD_SECS", 0.5)
    serving = serve(Options(**certificate))
    try:
        page = page_at(next(serving))
        with ExitStack() as stack:
            assert is_closed(connected(page, stack), 20)
            monkeypatch.setattr(connections, "_HEAD_SECS", 20.0)
            connection = http.client.HTTPSConnection(page.host, timeout=120, context=trusting(certificate))
            stack.callback(connection.close)
            health = {"Authorization": f"Bearer {page.token}"}
            connection.request("GET", "/api/acktree/v1/healthz", headers=health)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"ok":true}')
            connection.request("GET", f"/?token={page.token}")
            assert "; Secure" in connection.getresponse().headers["Set-Cookie"]
    finally:
        serving.close()


def test_a_slow_reader_with_the_token_gets_the_whole_answer(page, monkeypatch):
    monkeypatch.setattr(connections, "_HEAD_SECS", 0.3)
    body = b"x" * 8_000_000
    monkeypatch.setattr(own_routes.metrics, "exposed", lambda *_: (body, "text/plain"))
    with ExitStack() as stack:
        connection = connected(page, stack)
        head = f"{HEAD.format(host=page.host)}Authorization: Bearer {page.token}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        time.sleep(2)  # longer than the server waits for the next request
        found = 0
        while more := connection.recv(1 << 20):
            found += len(more)
    assert found > len(body)


def page_of_its_own(stack, tmp_path, files):
    """A page whose process may open ``files`` files, and the text of its stderr."""
    errors = stack.enter_context((tmp_path / "errors").open("w+"))
    process = subprocess.Popen(
        ["sh", "-c", f"ulimit -n {files}; exec {sys.executable} -m acktree ui --listen 127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=errors, text=True,
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(process.terminate)
    stack.callback(process.stdout.close)
    url = next(line for line in process.stdout if "token=" in line).split()[-1]
    address = urlsplit(url)
    return Page(f"http://{address.netloc}", parse_qs(address.query)["token"][0]), tmp_path / "errors"


def test_a_page_that_may_have_few_files_open_answers_beside_silent_connections(tmp_path):
    with ExitStack() as stack:
        page, errors = page_of_its_own(stack, tmp_path, 64)
        opened = [connected(page, stack) for _ in range(100)]
        for _ in range(3):
            status, secs = asked(page)
            assert status == 200
            assert secs < PROMPT_SECS
        assert len(opened) == 100
        assert errors.read_text() == ""


def test_a_user_without_the_token_writes_nothing_into_the_log(tmp_path):
    with ExitStack() as stack:
        page, errors = page_of_its_own(stack, tmp_path, 256)
        for sent in (b"\r\n\r\n", b"nonsense\r\n\r\n", HEAD.encode() + b"Upgrade: websocket\r\n\r\n") * 5:
            connection = connected(page, stack)
            connection.sendall(sent.replace(b"{host}", page.host.encode()))
            connection.recv(65_536)
        assert asked(page)[0] == 200
        assert errors.read_text() == ""
