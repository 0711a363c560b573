"""A Kafka server of a test's own: one broker that is its own controller, on loopback.

Its jars come from Maven Central through the Ivy that PySpark brings, once into the user's cache
(``XDG_CACHE_HOME``); ``python -m tests.services.kafka`` fills it, also with those of Spark's Kafka
source. Java is what Spark needs, too. It listens three times: plainly, through a proxy that can be cut, and
with a password.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.services.cache import cache_folder, fetched
from tests.services.proxy import Proxy
from tests.services.servers import Server, free_port

VERSION = "4.3.1"  # 4.4.0 is incomplete on Maven Central
_JAVA = [
    "-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
]  # fmt: skip
_FETCH_SECS = 600


def pyspark_jars() -> Path:
    """The folder of PySpark's jars."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "jars"


def java() -> str:
    """The program."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def fetch(module: str, version: str, place: str, *, transitive: bool = True) -> Path:
    """A folder with the jars of a module of Maven Central. OSError where they cannot be had."""
    return fetched(f"{place}-{version}", partial(_fetch, module, version, transitive=transitive))


def _fetch(module: str, version: str, jars: Path, *, transitive: bool) -> None:
    """Make the folder of the jars, whole or not at all."""
    beside = Path(tempfile.mkdtemp(dir=jars.parent))
    organisation, _, name = module.partition(":")
    command = [
        java(), "-cp", f"{pyspark_jars()}/*", "org.apache.ivy.Main", "-cache", f"{beside}/ivy",
        "-confs", "default",
        "-dependency", organisation, name, version, "-retrieve", f"{beside}/jars/[artifact]-[revision].[ext]",
        *([] if transitive else ["-notransitive"]),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_FETCH_SECS, cwd=beside
        )
        if done.returncode or not any((beside / "jars").glob("*.jar")):
            raise OSError(f"{module}:{version} cannot be fetched: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        (beside / "jars").rename(jars)
    finally:
        shutil.rmtree(beside)


class Kafka(Server):
    """One broker.

    Attributes:
        proxy: What the clients of :attr:`proxied` are connected through.
    """

    name = "kafka"
    proxy: Proxy | None = None

    @classmethod
    @cache
    def missing(cls) -> str:
        if find_spec("pyspark") is None or shutil.which(java()) is None:
            return "no PySpark or no Java, with which Kafka's jars are fetched (pip install 'acktree[spark]')"
        try:
            fetch("org.apache.kafka:kafka_2.13", VERSION, "kafka")
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return ""

    def prepare(self) -> None:
        self._jars = f"{fetch('org.apache.kafka:kafka_2.13', VERSION, 'kafka')}/*"
        self._controller, behind, self._login_port = free_port(), free_port(), free_port()
        self.proxy = Proxy(behind)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        users = 'user_reader="right" user_stranger="right"'
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{behind},"
            f"LOGIN://127.0.0.1:{self._login_port},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self.proxy.port},"
            f"LOGIN://127.0.0.1:{self._login_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "LOGIN:SASL_PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f"{module} {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:reader",
            "log.dirs": f"{self.folder}/log",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            # A broker that was killed waits when it comes back until its own old session is over.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            # Retention, deletion and compaction happen soon after they are asked for.
            "log.retention.check.interval.ms": "300",
            "log.segment.delete.delay.ms": "100",
            "log.initial.task.delay.ms": "300",
            "log.cleaner.backoff.ms": "200",
            "log.cleaner.dedupe.buffer.size": "2097152",
        }
        text = "\n".join(f"{name}={value}" for name, value in settings.items())
        (self.folder / "server.properties").write_text(text + "\n")
        made = subprocess.run(
            [java(), *_JAVA, "-cp", self._jars, "kafka.tools.StorageTool", "format",
             "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", "server.properties"],
            capture_output=True, text=True, check=False, cwd=self.folder,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(made.stdout + made.stderr)

    def command(self) -> list[str]:
        return [java(), *_JAVA, "-cp", self._jars, "kafka.Kafka", "server.properties"]

    @property
    def bootstrap(self) -> str:
        """Without a password."""
        return f"127.0.0.1:{self.port}"

    @property
    def proxied(self) -> str:
        """The same, through the proxy."""
        assert self.proxy is not None
        return f"127.0.0.1:{self.proxy.port}"

    @property
    def login(self) -> str:
        """Users ``reader``, and ``stranger`` who may do nothing; the password of both is ``right``."""
        return f"127.0.0.1:{self._login_port}"

    def is_ready(self) -> bool:
        from confluent_kafka import KafkaException  # noqa: PLC0415  # an extra
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        settings = {
            "bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0,
        }  # fmt: skip
        try:
            return bool(AdminClient(settings).list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def clean_up(self) -> None:
        if self.proxy is not None:
            self.proxy.remove()


SOURCE_JARS = (
    ("org.apache.spark:spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.kafka:kafka-clients", "3.9.2"),
    ("org.apache.commons:commons-pool2", "2.13.1"),
    ("org.apache.spark:spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
)
"""Spark's Kafka source for the Spark that is here, as ``kafka_packages`` names it; PySpark has the rest."""


def source_jars() -> list[Path]:
    """The jars of Spark's Kafka source that are in the cache; empty if one is missing."""
    names = [(module.partition(":")[2], version) for module, version in SOURCE_JARS]
    jars = [cache_folder() / f"{name}-{version}" / f"{name}-{version}.jar" for name, version in names]
    return jars if all(jar.exists() for jar in jars) else []


@contextmanager
def start_with_source(name: str) -> Iterator[Any]:
    """A session of Spark with the source, if its jars are in the cache; stopped at the end."""
    from acktree.spark.session.settings import start_session  # noqa: PLC0415  # needs an extra

    jars = ",".join(map(str, source_jars()))  # a jar can be given when the JVM starts, and not well later
    if jars:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    try:
        session = start_session(name)
    finally:
        os.environ.pop("PYSPARK_SUBMIT_ARGS", None)
    yield session
    session.stop()


def missing_jars() -> str:
    """Fill the cache; what could not be fetched, or nothing."""
    if missing := Kafka.missing():
        return missing
    try:
        for module, version in SOURCE_JARS:  # alone: what they ask for is incomplete on Maven Central
            fetch(module, version, module.partition(":")[2], transitive=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    raise SystemExit(missing_jars() or 0)
