"""The servers of the tests: each starts, stops, dies and comes back on its port, and leaves nothing."""

from __future__ import annotations

import os

import pytest

from tests.services.postgresql import PgBouncer
from tests.services.servers import Beanstalkd, Nats, RabbitMQ, Redis, Server


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RabbitMQ, Redis, Nats, Beanstalkd, PgBouncer])
def test_a_server_stops_dies_and_comes_back_and_leaves_nothing(kind: type[Server]) -> None:
    missing = kind.missing()
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    server = kind()
    try:
        port, pid = server.port, server.pid()
        server.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        server.start()
        server.restart()
        assert (server.port, server.is_ready()) == (port, True)
    finally:
        server.remove()
    assert not server.folder.exists()
