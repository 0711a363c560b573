"""Peers in Java: built with Maven the first time, each run in a JVM of its own, measured from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from benchmarks import machine
from benchmarks.peers import places


def version(sources: Path) -> str:
    """The version of a peer, from its pom, which has the name of the folder: ``storm.version``."""
    space = "{http://maven.apache.org/POM/4.0.0}"
    name = f"{space}properties/{space}{sources.name}.version"
    return ET.parse(sources / "pom.xml").findtext(name) or "unknown"  # noqa: S314  # our own file


def class_path(sources: Path) -> str:
    """The class path of a peer, built with Maven when its sources are newer."""
    who, folder = sources.name.capitalize(), places.FOLDER / sources.name
    ready = folder / "ready"
    newest = max(file.stat().st_mtime for file in sources.rglob("*") if file.is_file())
    if not ready.exists() or ready.stat().st_mtime < newest:
        maven = shutil.which("mvn")
        if maven is None:
            places.refuse(
                f"{who} is fetched and built with Maven; there is no mvn on the path", "install Maven"
            )
        shutil.rmtree(folder, ignore_errors=True)
        command = [maven, "-q", "-B", "-f", str(sources / "pom.xml"), f"-Dbuild.folder={folder}", "package"]
        places.run(command, f"the first run fetches {who} and builds {folder}")
        ready.touch()
    return os.pathsep.join([str(folder / "classes"), str(folder / "jars" / "*")])


def words_of(options: Mapping[str, object]) -> list[str]:
    """Options as the Java programs read them: ``--name value``."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def command(
    class_path: str, folder: Path, heap: str, collector: str, options: Mapping[str, object]
) -> list[str]:
    """How a peer is started in a JVM of its own.

    Args:
        folder: Where the JVM puts what is temporary.
        heap: Its size, such as ``2g``.
        collector: ``Parallel``, ``G1`` or ``Serial``.
        options: What the program is given.
    """
    java = ["java", f"-Xms{heap}", f"-Xmx{heap}", f"-XX:+Use{collector}GC", "-Djava.net.preferIPv4Stack=true"]
    return [*java, f"-Djava.io.tmpdir={folder}", "-cp", class_path, "peer.WordCount", *words_of(options)]


def run(
    who: str, command: Sequence[str], folder: Path, server_secs: Callable[[], float] | None = None
) -> tuple[dict[str, Any], machine.Cost]:
    """Start a program, and measure from its line ``measuring`` to its line of JSON.

    Args:
        server_secs: CPU seconds so far of a server in Java that this process has started. What it takes
            meanwhile is left out of the cost, and is ``server_secs`` of what was found.
    """
    pipe = subprocess.PIPE
    try:
        java = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, text=True)  # noqa: S603
    except OSError as error:
        places.refuse(f"{who} runs on Java 17 or newer: {error}", "put java on the path")
    with java:
        assert java.stdout is not None
        clock = found = None
        before = 0.0
        for line in java.stdout:
            if line.strip() == "measuring":
                clock = machine.Clock()
                before = server_secs() if server_secs else 0.0
            elif clock is not None and line.startswith("{"):
                found = json.loads(line)
                break
        if clock is None or found is None:
            sys.exit(f"{who} ended with exit code {java.wait()} and no result: see what it said above")
        cost = clock.cost()  # it lives until its input is closed, on leaving
        if server_secs is None:
            return found, cost
        taken = server_secs() - before
        return found | {"server_secs": taken}, replace(cost, jvm=cost.jvm - taken)
