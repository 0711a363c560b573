"""HDFS of a test's own: a namenode and a datanode, with their own folder, gone when the test is.

``python -m tests.services.hdfs ADDRESS`` runs one that other hosts reach, until its input ends.

Their classes are PySpark's Hadoop and one jar beside it, ``hadoop-client-minicluster`` of the same version
from Maven Central, fetched once into the user's cache (``XDG_CACHE_HOME``) and checked by its digest. Where
it cannot be had the tests are skipped, and say so.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

from pyspark import SparkConf
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from tests.services.cache import fetched

_CENTRAL = "https://repo1.maven.org/maven2/org/apache/hadoop/hadoop-client-minicluster"


def minicluster() -> Path:
    """The jar. OSError where it cannot be fetched."""
    [client] = (Path(_find_spark_home()) / "jars").glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    return fetched(f"hadoop-client-minicluster-{version}.jar", partial(_fetch, version))


def _fetch(version: str, jar: Path) -> None:
    """Make the file, whole or not at all."""
    with urllib.request.urlopen(f"{_CENTRAL}/{version}/{jar.name}.sha1", timeout=60) as answer:
        digest = answer.read().decode().split()[0]
    beside = Path(tempfile.mkdtemp(dir=jar.parent)) / jar.name
    try:
        with (
            urllib.request.urlopen(f"{_CENTRAL}/{version}/{jar.name}", timeout=60) as answer,
            beside.open("wb") as file,
        ):
            shutil.copyfileobj(answer, file)
        if hashlib.sha1(beside.read_bytes(), usedforsecurity=False).hexdigest() != digest:
            raise OSError(f"{jar.name} came damaged")
        beside.rename(jar)
    finally:
        shutil.rmtree(beside.parent)


class Hdfs:
    """A running one, in a JVM of its own.

    Args:
        address: Where it is reached.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="acktree-hdfs-"))
        conf = SparkConf().set("spark.driver.extraClassPath", str(minicluster()))
        conf.set("spark.driver.memory", "256m")
        conf.set("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        self._gateway = launch_gateway(conf)
        jvm = self._gateway.jvm
        builder = getattr(jvm.org.apache.hadoop.hdfs, "MiniDFSCluster$Builder")
        settings = jvm.org.apache.hadoop.conf.Configuration()
        settings.setInt("dfs.namenode.safemode.extension", 0)
        is_here = address == "127.0.0.1"
        settings.set("dfs.namenode.rpc-bind-host", address if is_here else "0.0.0.0")
        try:
            place = jvm.java.io.File(str(self.folder))
            self._cluster = builder(settings, place).numDataNodes(int(is_here)).build()
            self._cluster.waitActive()
            self.url = f"hdfs://{address}:{self._cluster.getNameNodePort()}"
            if not is_here:
                self._start_datanode(address)
        except BaseException:
            self.remove()
            raise

    def _start_datanode(self, address: str) -> None:
        """One that others reach: the mini cluster's own are on loopback, whatever is set."""
        jvm = self._gateway.jvm
        # For a mini cluster of no datanodes it has set the replicas of each block to none.
        self._cluster.getConfiguration(0).setInt("dfs.replication", 1)
        self.start_namenode()
        settings = jvm.org.apache.hadoop.conf.Configuration()
        settings.set("fs.defaultFS", self.url)
        settings.set("dfs.datanode.data.dir", str(self.folder / "datanode"))
        for port in ("address", "http.address", "ipc.address"):
            settings.set(f"dfs.datanode.{port}", f"{address}:0")
        no_words = self._gateway.new_array(jvm.java.lang.String, 0)
        datanode = jvm.org.apache.hadoop.hdfs.server.datanode.DataNode.createDataNode(no_words, settings)
        while not datanode.isDatanodeFullyStarted():
            time.sleep(0.05)

    def stop_namenode(self) -> None:
        """Nobody can open, list or write anything."""
        self._cluster.shutdownNameNode(0)

    def start_namenode(self) -> None:
        """At the same port, with what it had."""
        no_words = self._gateway.new_array(self._gateway.jvm.java.lang.String, 0)
        self._cluster.restartNameNode(0, True, no_words)  # noqa: FBT003  # Java's order

    def remove(self) -> None:
        """Stop it and leave nothing."""
        process = self._gateway.proc
        self._gateway.shutdown()
        process.stdin.close()  # it ends when its input does
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    started = Hdfs(sys.argv[1])
    sys.stderr.write(f"HDFS is at {started.url}\n")
    sys.stdin.read()
    started.remove()
