"""A PostgreSQL server of a test's own: on loopback, with its own folder and port, gone when the test is.

Taken is what is installed (Debian: ``postgresql``; a running service is neither needed nor touched). Where it
is not installed the tests are skipped, but in CI that is a failure.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.services.servers import Server, free_port

try:
    import psycopg
    import sqlalchemy  # noqa: F401  # what the tests ask of it
except ImportError as error:
    MISSING = str(error)
else:
    MISSING = ""

PASSWORD = "S3cr3t: p@ss/w?rd%"
"""Made of what an URL has to escape, so that a test sees whether each form of it is kept out of sight."""

_READY_SECS = 60
_STOP_SECS = 30


def programs() -> Path | None:
    """The folder of the newest server's programs; None if there is none."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    found = [path for path in (shutil.which("postgres"), *map(str, debian[-1:])) if path]
    return Path(found[-1]).resolve().parent if found else None


class PostgreSQL:
    """A server. It refuses to run as root, so as root it runs as ``postgres``, or ``nobody``."""

    def __init__(self, bin_folder: Path) -> None:
        self.bin = bin_folder
        self.folder = Path(tempfile.mkdtemp(prefix="acktree-postgresql-"))
        self.user = self._user()
        if self.user is not None:
            self.folder.chmod(0o711)
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        try:
            self._run(
                "initdb", "-D", self._data, "-U", "tester", "-E", "UTF8", "--locale=C", "-A", "scram-sha-256",
                f"--pwfile={secret}", "--no-sync",
            )  # fmt: skip
            self.start()
        except BaseException:
            self.remove()
            raise

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def url(self, schema: str = "public", **options: str) -> str:
        """For SQLAlchemy, with the password; what is made goes into a schema, made if it is missing."""
        options = {"options": f"-csearch_path={schema} {options.pop('settings', '')}".strip()} | options
        query = "&".join(f"{name}={quote(value)}" for name, value in options.items())
        password = quote(PASSWORD, safe="")
        return f"postgresql+psycopg://tester:{password}@127.0.0.1:{self.port}/postgres?{query}"

    def make_schema(self, schema: str) -> None:
        """An empty one."""
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {schema}")

    def connect(self) -> psycopg.Connection:
        """A connection of psycopg's own."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="tester", password=PASSWORD, dbname="postgres",
            autocommit=True, connect_timeout=10,
        )  # fmt: skip

    def start(self) -> None:
        """Run it until :meth:`stop`, and wait until it takes connections."""
        # Sinks keep a connection for each URL until the process ends, and each test has a URL of its own.
        command = [
            str(self.bin / "postgres"), "-D", self._data, "-p", str(self.port),
            "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
            "-c", "fsync=off", "-c", "full_page_writes=off",
            "-c", "max_connections=400", "-c", "shared_buffers=16MB",
        ]  # fmt: skip
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                **self._as_user(),
            )  # fmt: skip
        deadline = time.monotonic() + _READY_SECS
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """In order, and at once: clients are sent away."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(_STOP_SECS)
            self.process = None

    def crash(self) -> None:
        """At once, as if its machine had lost power: the next start has to recover."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(_STOP_SECS)
            self.process = None

    def remove(self) -> None:
        """Stop it and leave nothing."""
        self.stop()
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            **self._as_user(),
        )
        if done.returncode:
            raise RuntimeError(done.stderr)

    def _user(self) -> pwd.struct_passwd | None:
        if os.getuid() != 0:
            return None
        names = {user.pw_name: user for user in pwd.getpwall()}
        return names.get("postgres") or names["nobody"]

    def _as_user(self) -> dict[str, Any]:
        who = (
            {}
            if self.user is None
            else {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        )
        return {**who, "cwd": self.folder}


class PgBouncer(Server):
    """PgBouncer in front of a server's database ``postgres``: anybody is ``tester``.

    Args:
        port: The server's.
        mode: Of the pool.
    """

    name = "pgbouncer"
    sessions = 3

    def __init__(self, port: int = 1, mode: str = "transaction") -> None:
        self.of_server, self.mode = port, mode
        super().__init__()

    @classmethod
    def missing(cls) -> str:
        return "" if shutil.which("pgbouncer") else "no PgBouncer (Debian: apt-get install pgbouncer)"

    def command(self) -> list[str]:
        return ["pgbouncer", str(self.folder / "pgbouncer.ini")]

    def prepare(self) -> None:
        users = {user.pw_name for user in pwd.getpwall()}
        (self.folder / "pgbouncer.ini").write_text(
            f"""
            [databases]
            postgres = host=127.0.0.1 port={self.of_server} user=tester password='{PASSWORD}'
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {self.port}
            unix_socket_dir =
            auth_type = any
            pool_mode = {self.mode}
            default_pool_size = {self.sessions}
            server_round_robin = 1
            server_login_retry = 1
            {"" if os.getuid() else "user = " + ("postgres" if "postgres" in users else "nobody")}
            """
        )

    @property
    def url(self) -> str:
        """For SQLAlchemy. A pooler refuses options of a session: tables are named with their schemas."""
        return f"postgresql+psycopg://tester@127.0.0.1:{self.port}/postgres"

    def is_ready(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port), 1).close()
        return True
