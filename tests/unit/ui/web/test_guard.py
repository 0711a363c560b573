"""Attacks on the page, and what a browser is told to forbid."""

from __future__ import annotations

import base64
import json
import os
import time
from importlib.resources import files

import pytest

pytest.importorskip("starlette")

from acktree.core.stats.numbers import ReportedError
from acktree.errors import ConfigError, ConnectorError
from acktree.ui.web.serve import Options, _hosts, serve
from tests.unit.ui.web.asking import page_at

ROUTES = [
    "/", "/static/app.js", "/metrics", "/api/v1/cluster/summary", "/api/v1/topology/summary",
    "/api/acktree/v1/snapshot", "/api/acktree/v1/stream", "/api/acktree/v1/topologies", "/nowhere",
]  # fmt: skip


ONE, CONFIGURATION = "/api/v1/topology/{id}", "/api/v1/cluster/configuration"
NUMBERS = [
    "/api/v1/cluster/summary", CONFIGURATION, "/api/v1/supervisor/summary", "/api/v1/supervisor",
    "/api/v1/nimbus/summary", "/api/v1/history/summary", "/api/v1/owner-resources",
    "/api/v1/topology/summary", ONE, f"{ONE}/metrics", f"{ONE}/lag", f"{ONE}/visualization",
    f"{ONE}/visualization-init", "/api/v1/topology-workers/{id}",
]  # fmt: skip
"""What docs/security.md says that is open with ``--open-numbers``."""


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("token", [None, "Bearer wrong", "Bearer ", "Basic eDp5", "Basic %%"])
def test_nothing_is_said_without_the_token(page, path, token):
    status, headers, said = page.ask(path, token=token)
    assert status == 401
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"numbers" not in said


def test_the_token_comes_as_bearer_or_as_the_password_of_basic(page):
    basic = base64.b64encode(f"acktree:{page.token}".encode()).decode()
    assert page.ask("/metrics")[0] == 200
    assert page.ask("/metrics", token=f"Basic {basic}")[0] == 200


def test_the_cookie_opens_the_empty_page_alone(page):
    status, headers, said = page.ask(f"/?token={page.token}", token=None)
    assert status == 200
    assert page.token.encode() not in said
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # a browser would not send it back without TLS
    assert page.token not in cookie
    own = cookie.partition(";")[0]
    assert page.ask("/", token=None, Cookie=own)[0] == 200
    assert page.ask("/static/app.js", token=None, Cookie=own)[0] == 200
    for path in ("/metrics", "/api/acktree/v1/topologies", "/api/v1/topology/summary"):
        assert page.ask(path, token=None, Cookie=own)[0] == 401
    assert page.ask(f"/api/acktree/v1/topologies?token={page.token}", token=None)[0] == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "127.0.0.1.evil.example:{port}"]
)
def test_a_foreign_host_is_refused(page, host):
    port = page.host.partition(":")[2]
    assert page.ask("/metrics", Host=host.format(port=port))[0] == 403
    assert page.ask("/metrics", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_an_order_from_another_site_is_refused(page, running, topology_id, headers):
    for path in (
        f"/api/v1/topology/{topology_id}/deactivate",
        f"/api/acktree/v1/topologies/{topology_id}/kill",
    ):
        assert page.ask(path, "POST", b"{}", **headers)[0] == 403
    assert running.run.is_active
    assert running.handle.is_running


def test_an_order_with_a_password_that_a_browser_adds_needs_a_header_that_no_form_sends(page, topology_id):
    basic = "Basic " + base64.b64encode(f"x:{page.token}".encode()).decode()
    path = f"/api/v1/topology/{topology_id}/activate"
    form = "application/x-www-form-urlencoded"
    assert page.ask(path, "POST", b"a=b", token=basic, Content_Type=form)[0] == 403
    assert page.ask(path, "POST", b"", token=basic, X_Acktree="1")[0] == 200


def test_no_get_gives_an_order(page, running, topology_id):
    for order in ("deactivate", "kill/0", "rebalance/0"):
        assert page.ask(f"/api/v1/topology/{topology_id}/{order}")[0] == 405
    for order in ("deactivate", "kill", "dead-letters/purge"):
        assert page.ask(f"/api/acktree/v1/topologies/{topology_id}/{order}")[0] in (404, 405)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert page.ask(f"/api/acktree/v1/topologies/{topology_id}", method)[0] == 405
    assert running.run.is_active


def test_a_read_only_page_refuses_orders(running, topology_id):
    serving = serve(Options(is_read_only=True))
    try:
        page = page_at(next(serving))
        assert page.json("/api/acktree/v1/page")["read_only"] is True
        for path in (
            f"/api/v1/topology/{topology_id}/deactivate",
            f"/api/acktree/v1/topologies/{topology_id}/kill",
        ):
            assert page.ask(path, "POST", b"{}", X_Acktree="1")[0] == 403
    finally:
        serving.close()
    assert running.run.is_active


def test_open_numbers_hold_no_text_of_an_error_and_no_setting_but_the_timeout(running, topology_id):
    running.run.errors.add(ReportedError("double", 1, "card 4711 refused", time.time_ns() // 1_000_000))
    running.door._observer.forget()
    serving = serve(Options(has_open_numbers=True))
    try:
        page = page_at(next(serving))
        path = f"/api/v1/topology/{topology_id}"
        assert b"4711" in page.ask(path)[2]
        for below in ("", "/metrics", "/visualization", "/lag"):
            status, _, said = page.ask(f"{path}{below}", token=None)
            assert status == 200
            assert b"4711" not in said
        given = json.loads(page.ask(path, token=None)[2])
        assert set(given["configuration"]) == {"topology.message.timeout.secs", "topology.debug"}
        assert given["bolts"][0]["lastError"] == ""
    finally:
        serving.close()


def test_open_numbers_are_numbers_alone(running, topology_id):
    serving = serve(Options(has_open_numbers=True))
    try:
        page = page_at(next(serving))
        settings = {"topology.message.timeout.secs", "topology.debug"}
        one = f"/api/v1/topology/{topology_id}"
        for path in NUMBERS:
            status, _, said = page.ask(path.format(id=topology_id), token=None)
            assert status == 200, path
            known = page.json(path.format(id=topology_id))
            assert json.loads(said).keys() == known.keys() or path == CONFIGURATION
        assert set(json.loads(page.ask(CONFIGURATION, token=None)[2])) == settings
        assert set(page.json(CONFIGURATION)) > settings
        for path in (
            f"{one}/component/source", f"{one}/component/double", f"{one}/logconfig",
            f"{one}/profiling/dumpjstack/h-1/component", "/metrics", "/", "/api/v1/", "/api/v1/nothing",
            f"/api/acktree/v1/topologies/{topology_id}", "/api/acktree/v1/topologies",
            "/api/acktree/v1/snapshot", f"/api/acktree/v1/topologies/{topology_id}/dead-letters",
            "/api/v1/../acktree/v1/snapshot",
        ):  # fmt: skip
            assert page.ask(path, token=None)[0] == 401, path
        for order in ("deactivate", "kill/0", "rebalance/0", "debug/enable/10", "logconfig"):
            assert page.ask(f"{one}/{order}", "POST", b"", token=None)[0] == 401
    finally:
        serving.close()


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/"],
)
def test_path_tricks_reach_no_file(page, path):
    status, _, said = page.ask(path)
    assert status == 404
    assert b"import" not in said


def test_markup_in_values_stays_text(page, topology_id):
    status, headers, said = page.ask(f"/api/acktree/v1/topologies/{topology_id}/dead-letters")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(said)["letters"][0]["reason"].startswith("<img src=x onerror=alert(1)>")
    policy = page.ask("/")[1]["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


def test_the_pages_files_parse_no_markup_and_load_nothing_from_elsewhere(page):
    names = {file.name for file in files("acktree.ui.web").joinpath("static").iterdir()}
    assert names >= {"index.html", "app.js", "components.js", "style.css"}
    for name in names:
        path = "/" if name == "index.html" else f"/static/{name}"
        status, _, read = page.ask(path)
        assert status == 200, path
        said = read.decode()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "https://",
            "url(",
        ):
            assert word not in said, (path, word)
        assert said.count("http://") == said.count("http://www.w3.org/2000/svg")


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b"\x80\x04.", b'{"ids": "x"}', b'{"all": true, "expected_count": "many"}']
)
def test_a_body_that_is_no_order_is_refused(page, running, topology_id, body):
    path = f"/api/acktree/v1/topologies/{topology_id}/dead-letters/purge"
    assert page.ask(path, "POST", body)[0] == 400
    assert len(running.letters) == 4


def test_beyond_loopback_a_token_file_and_tls_are_asked_for(tmp_path):
    with pytest.raises(ConfigError, match="reached from other machines"):
        next(serve(Options(host="0.0.0.0")))
    file = tmp_path / "token"
    file.write_text("a token that others can read")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read the token"):
        next(serve(Options(token_file=str(file))))
    file.chmod(0o600)
    serving = serve(Options(token_file=str(file)))
    assert next(serving).token == "a token that others can read"
    serving.close()


def test_the_schemes_usual_port_may_be_left_out_of_host():
    assert "127.0.0.1" in _hosts("127.0.0.1", "127.0.0.1", 80, 80)
    assert "127.0.0.1" not in _hosts("127.0.0.1", "127.0.0.1", 8080, 80)


@pytest.mark.parametrize("name", ["missing/token", "folder", "binary", "of-another-user"])
def test_a_token_file_that_cannot_be_used_is_said(tmp_path, name):
    (tmp_path / "folder").mkdir(mode=0o700)
    for file in ("binary", "of-another-user"):
        (tmp_path / file).write_bytes(b"\xff" * 40 if file == "binary" else b"x" * 40)
        (tmp_path / file).chmod(0o600)
    if name == "of-another-user":
        if os.geteuid() != 0:
            pytest.skip("only root gives a file away")
        os.chown(tmp_path / name, 65534, -1)
    with pytest.raises(ConfigError, match="the token"):
        next(serve(Options(token_file=str(tmp_path / name))))


def test_a_certificate_that_cannot_be_used_is_said_before_an_address_is(tmp_path):
    (tmp_path / "cert").write_text("no certificate")
    for cert in ("missing", "cert"):
        with pytest.raises(ConfigError, match="certificate"):
            next(serve(Options(certificate=str(tmp_path / cert), key=str(tmp_path / cert))))


def test_a_page_whose_server_has_stopped_is_an_error(monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    with pytest.raises(ConnectorError, match="has stopped"):
        list(serve(Options()))
