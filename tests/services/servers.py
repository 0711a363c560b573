"""Servers of a test's own: on loopback, each with a free port and a temporary folder, gone when the test is.

Taken is what is installed; a running service is neither needed nor touched. Each server runs in the
foreground in a process group of its own and is stopped by its process id. Where a program is missing the
tests are skipped with what installs it, but in CI that is a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

_READY_SECS = 90
_STOP_SECS = 30


def _ports() -> Iterator[int]:
    """Ports from 12,000 to 32,000, in an order that differs between processes."""
    first = os.getpid() * 211 % 20_000
    while True:
        yield from (12_000 + (first + 7 * step) % 20_000 for step in range(20_000))


_candidates = _ports()


def free_port() -> int:
    """A port of the loopback interface that nobody uses, another one each time.

    Below 32768, where Linux takes no port for a connection: a server that restarts finds its port free.
    """
    for port in _candidates:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("candidates have no end")


class Server:
    """A server process. Subclasses say what to run, and when it is ready."""

    name = ""
    stop_signal = signal.SIGTERM

    @classmethod
    def missing(cls) -> str:
        """What has to be installed before it can run; empty when nothing has."""
        raise NotImplementedError

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"acktree-{self.name}-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.remove()
            raise

    def prepare(self) -> None:
        """Write what the server needs into its folder."""

    def command(self) -> list[str]:
        """What to run."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """The variables of its process."""
        return dict(os.environ)

    def is_ready(self) -> bool:
        """Whether it serves. May raise OSError."""
        raise NotImplementedError

    def pid(self) -> int:
        """The process that serves."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Run it until :meth:`stop` or :meth:`kill`; returns when it serves."""
        assert self.process is None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                cwd=self.folder, env=self.environment(),
            )  # fmt: skip
        deadline = time.monotonic() + _READY_SECS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not start: {self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """In order."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """As a crash does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """In order, on the same port with what it had."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stop it and leave nothing."""
        self.kill()
        self.clean_up()
        shutil.rmtree(self.folder, ignore_errors=True)

    def clean_up(self) -> None:
        """End what it left running."""

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / "printed"

    def _answers(self) -> bool:
        try:
            return self.is_ready()
        except OSError:
            return False

    def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        try:
            self.process = process
            os.kill(self.pid(), number)
        except (OSError, ValueError):  # it has just ended, or has not written its number yet
            process.kill()
        finally:
            self.process = None
        try:
            process.wait(_STOP_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class RabbitMQ(Server):
    """RabbitMQ with classic and quorum queues; guest may log in."""

    name = "rabbitmq"
    _SCRIPT = "/usr/lib/rabbitmq/bin/rabbitmq-server"

    def __init__(self, **settings: str) -> None:
        self._settings = settings
        super().__init__()

    @classmethod
    def missing(cls) -> str:
        return "" if Path(cls._SCRIPT).exists() else "no RabbitMQ (Debian: apt-get install rabbitmq-server)"

    def prepare(self) -> None:
        self._distribution_port, self.epmd_port = free_port(), free_port()
        (self.folder / "enabled_plugins").write_text("[].")
        settings = {
            "disk_free_limit.absolute": "50MB", "vm_memory_high_watermark.absolute": "512MB",
            "log.console": "true", "log.console.level": "warning",
        }  # fmt: skip
        settings |= self._settings
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        (self.folder / "pid").unlink(missing_ok=True)
        return [self._SCRIPT]

    def environment(self) -> dict[str, str]:
        folder = str(self.folder)
        return os.environ | {
            "HOME": folder,
            "RABBITMQ_NODENAME": f"rmq{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{folder}/generated",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
        }

    @property
    def url(self) -> str:
        """With the user and password that every RabbitMQ has."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def is_ready(self) -> bool:
        import pika  # noqa: PLC0415  # an extra

        try:
            pika.BlockingConnection(pika.URLParameters(self.url + "?connection_attempts=1")).close()
        except pika.exceptions.AMQPError:
            return False
        return True

    def pid(self) -> int:
        """The Erlang machine: what was started is a script around it."""
        return int((self.folder / "pid").read_text())

    def clean_up(self) -> None:
        environment = os.environ | {"ERL_EPMD_PORT": str(self.epmd_port)}
        if shutil.which("epmd"):
            subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, check=False)


class Redis(Server):
    """Redis that writes each command to disk before it answers."""

    name = "redis"

    @classmethod
    def missing(cls) -> str:
        return "" if shutil.which("redis-server") else "no Redis (Debian: apt-get install redis-server)"

    def command(self) -> list[str]:
        return [
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
            "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no",
        ]  # fmt: skip

    @property
    def url(self) -> str:
        """Of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def is_ready(self) -> bool:
        import redis  # noqa: PLC0415  # an extra

        try:
            with redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.exceptions.RedisError:
            return False


class Nats(Server):
    """NATS with JetStream; ``reader`` may do all, ``stranger`` nothing, ``poor`` all but ask for a stream."""

    name = "nats"

    @classmethod
    def missing(cls) -> str:
        return "" if shutil.which("nats-server") else "no NATS (Debian: apt-get install nats-server)"

    def command(self) -> list[str]:
        return ["nats-server", "-c", str(self.folder / "nats.conf")]

    def prepare(self) -> None:
        rights = '{publish: "nothing", subscribe: "_INBOX.>"}'
        (self.folder / "nats.conf").write_text(
            f"""
            listen: 127.0.0.1:{self.port}
            jetstream: {{store_dir: "{self.folder}/js"}}
            authorization: {{users: [
                {{user: reader, password: right}},
                {{user: stranger, password: right, permissions: {rights}}},
                {{user: poor, password: right, permissions: {{publish: {{deny: "$JS.API.STREAM.INFO.>"}}}}}},
            ]}}
            """
        )

    @property
    def url(self) -> str:
        """With reader's password."""
        return f"nats://reader:right@127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            return connection.recv(4) == b"INFO"


class Beanstalkd(Server):
    """beanstalkd that writes each job to disk before it answers."""

    name = "beanstalkd"

    @classmethod
    def missing(cls) -> str:
        return "" if shutil.which("beanstalkd") else "no beanstalkd (Debian: apt-get install beanstalkd)"

    def command(self) -> list[str]:
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.folder), "-f", "0"]

    def is_ready(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port), 1).close()
        return True


class Moto(Server):
    """SQS as moto plays it: in memory, so it is never stopped; it takes any credentials."""

    name = "sqs"

    @classmethod
    def missing(cls) -> str:
        found = find_spec("moto") is not None and find_spec("flask_cors") is not None
        return "" if found else "no moto server (pip install moto flask flask-cors)"

    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("moto_server.py")), str(self.port)]

    @property
    def url(self) -> str:
        """Of every service."""
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1):
            return True


class Kestrel(Server):
    """The stand-in for Kestrel."""

    name = "kestrel"

    @classmethod
    def missing(cls) -> str:
        return ""

    def command(self) -> list[str]:
        program = Path(__file__).with_name("kestrel.py")
        return [sys.executable, str(program), str(self.port), str(self.folder / "journal")]

    def is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1):
            return True
