"""The page in the user's own process."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("starlette")

import acktree
from acktree import ConfigError, ConnectorError
from acktree.cli.main import main
from tests.unit.forked import child, descriptors_of
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.web.asking import page_at

pytestmark = pytest.mark.usefixtures("own_runtime")


def test_a_program_shows_its_own_topology_and_takes_orders_behind_the_same_guard(tmp_path):
    with started(tmp_path / "cp") as topology, acktree.serve_page() as page:
        topology.fill()
        asked = page_at(page)
        (about,) = asked.json("/api/acktree/v1/topologies")["topologies"]
        assert (about["name"], about["status"]) == ("numbers", "ACTIVE")
        assert asked.ask(f"/api/v1/topology/{about['id']}/deactivate", "POST", b"")[0] == 200
        assert not any(thread.is_wanted for thread in topology.run.threads.by_task.values())
        assert page.url.startswith("http://127.0.0.1:")
        for token in (None, "Bearer wrong"):
            assert asked.ask("/api/acktree/v1/topologies", token=token)[0] == 401
        assert asked.ask("/api/acktree/v1/topologies", Host="evil.example")[0] == 403
        assert page.address == f"{page.url}/?token={page.token}"
        assert page.token not in f"{page!r}{page}"
    with pytest.raises(ConnectionRefusedError):
        asked.ask("/")
    page.close()


def test_it_is_read_only_and_shows_a_stopped_checkpoint_if_asked(tmp_path):
    with started(tmp_path / "cp"):
        pass
    with acktree.serve_page(read_only=True, checkpoints=[str(tmp_path / "cp")]) as page:
        asked = page_at(page)
        assert asked.json("/api/acktree/v1/page")["read_only"]
        (about,) = asked.json("/api/acktree/v1/topologies")["topologies"]
        assert asked.ask(f"/api/v1/topology/{about['id']}/kill/0", "POST", b"")[0] == 403


def test_it_stays_although_nobody_keeps_it():
    page = acktree.serve_page()
    asked = page_at(page)
    del page
    gc.collect()
    assert asked.json("/api/acktree/v1/healthz") == {"ok": True}
    for kept in list(sys.modules["acktree.ui.page"]._open):
        kept.close()


def test_a_token_file_is_used_and_a_port_that_is_taken_is_said(tmp_path):
    file = tmp_path / "token"
    with acktree.serve_page(token_file=str(file)) as page:
        assert file.read_text().strip() == page.token
        assert file.stat().st_mode & 0o777 == 0o600
        port = int(page.url.rpartition(":")[2])
        with pytest.raises(ConnectorError, match="cannot listen"):
            acktree.serve_page(port=port)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host": "0.0.0.0"}, "reached from other machines"),
        ({"host": "0.0.0.0", "token_file": "token"}, "reached from other machines"),
        ({"checkpoints": "checkpoints/orders"}, "list"),
        ({"port": 99999}, "is no port"),
        ({"port": "x"}, "is no port"),
    ],
)
def test_what_is_not_safe_and_what_is_meant_otherwise_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        acktree.serve_page(**given)


def test_errors_name_the_arguments_of_the_function(tmp_path):
    no_file = str(tmp_path / "none.pem")
    with acktree.serve_page() as page:
        port = int(page.url.rpartition(":")[2])
        for given, words in (
            ({"host": "0.0.0.0"}, ("serve_page(host=...)", "token_file, tls_cert and tls_key")),
            ({"port": port}, ("give another host or port",)),
            ({"host": "192.0.2.1", "token_file": no_file}, ("token_file, tls_cert and tls_key",)),
            ({"tls_cert": no_file, "tls_key": no_file}, (f"tls_cert {no_file}, tls_key {no_file}",)),
        ):
            with pytest.raises(acktree.AcktreeError) as refused:
                acktree.serve_page(**given)
            said = str(refused.value)
            assert [word for word in words if word not in said] == []
            assert "--" not in said


def test_errors_of_the_command_name_its_options(capsys):
    with acktree.serve_page() as page:
        for listen, said in (
            ("0.0.0.0:0", "--token-file, --tls-cert and --tls-key"),
            (page.url[7:], "--listen"),
        ):
            assert main(["ui", "--listen", listen]) == 1
            assert said in capsys.readouterr().err


READ = """
page = acktree.serve_page()
asking = http.client.HTTPConnection(page.url.partition("://")[2])
path, token = "/api/acktree/v1/stream", {"Authorization": f"Bearer {page.token}"}
asking.request("GET", path, headers=token)
answer = asking.getresponse()
assert answer.readline()
"""
LEFT_OPEN = {
    "main": "page = acktree.serve_page()",
    "nobody's": "acktree.serve_page()",
    "read": READ,
    "closed while it is read": f"{READ}page.close()",
    "of another thread": """
made = threading.Event()
def serve():
    acktree.serve_page()
    made.set()
    while True:
        time.sleep(1)
threading.Thread(target=serve, daemon=True).start()
made.wait()
""",
    "of a parent": """
page = acktree.serve_page()
pid = os.fork()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    asking = http.client.HTTPConnection(page.url.partition("://")[2])
    asking.request("GET", "/", headers={"Authorization": f"Bearer {page.token}"})
    assert asking.getresponse().status == 200
elif os.environ.get("CLOSES"):
    page.close()
""",
}


@pytest.mark.parametrize(("left", "closes"), [*((left, "") for left in LEFT_OPEN), ("of a parent", "yes")])
def test_a_page_that_is_left_open_ends_with_its_program_without_a_word(left, closes):
    program = f"import http.client, os, threading, time\nimport acktree\n{LEFT_OPEN[left]}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],  # of fork, since Python 3.12
        check=False, capture_output=True, text=True, timeout=60, env=os.environ | {"CLOSES": closes},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_page_is_closed_at_once_while_its_stream_is_read():
    page = acktree.serve_page()
    with socket.create_connection(("127.0.0.1", int(page.url.rpartition(":")[2]))) as reader:
        reader.sendall(
            f"GET /api/acktree/v1/stream HTTP/1.1\r\nHost: {page.url[7:]}\r\n"
            f"Authorization: Bearer {page.token}\r\n\r\n".encode()
        )
        assert reader.recv(100).startswith(b"HTTP/1.1 200")
        page.close()
        while reader.recv(10_000):
            pass


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "acktree.ui.web.serve", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"acktree\[ui\]"):
        acktree.serve_page()


def test_a_page_is_asked_while_an_event_loop_runs_in_the_program():

    async def notebook():
        with acktree.serve_page() as page:
            return page_at(page).json("/api/acktree/v1/healthz")

    assert asyncio.run(notebook()) == {"ok": True}


def test_a_process_that_user_code_forks_does_not_keep_its_port():
    with acktree.serve_page() as page:
        port = int(page.url.rpartition(":")[2])
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (listening,) = {f"socket:[{each[9]}]" for each in lines if each[1].endswith(f":{port:04X}")}
        assert listening in descriptors_of(os.getpid())
        with child() as pid:
            deadline = time.monotonic() + 120
            while listening in descriptors_of(pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert listening not in descriptors_of(pid)


def test_a_page_is_closed_by_several_threads_at_once():
    page = acktree.serve_page()
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: page.close(), range(4))] == [None] * 4
