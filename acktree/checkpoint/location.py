"""The location of a checkpoint, as a user gives it: a folder, or a URL of a file system that Hadoop knows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from acktree.config import Config
from acktree.errors import CheckpointError, ConfigError
from acktree.topology.model import Topology

_NOT_IN_A_FILE_URL = re.compile(r"[?#\x00-\x1f\x7f]|%(?![0-9A-Fa-f]{2})|%00")
"""What a ``file:`` URL cannot contain as it is. All but ``%00`` can be written as ``%`` and two digits."""


def hadoop_path(folder: Path) -> str:
    """The text by which Hadoop finds a folder of this machine, whatever its name.

    Not ``Path.as_uri()``: Hadoop splits off scheme and host and takes the rest literally. It does not decode
    ``%20``, and a ``?``, a ``#`` or a colon has no special meaning.
    """
    return f"file://{folder}"


def location_of(checkpoint: str | Path) -> Path | str:
    """The folder that a path or a ``file:`` URL names; any other URL unchanged.

    Raises:
        ConfigError: It is no path, is empty, or cannot name a folder. Or the URL has a password or a query,
            names no folder in its file system, or is a ``file:`` URL of another machine.
    """
    given: object = checkpoint
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(
            "a checkpoint is a folder, and this names none",
            f"submit(checkpoint={checkpoint!r})",
            "name a folder of the topology's own, such as 'checkpoints/orders'; '.' is the current one",
        )
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        return _without_parents(Path(text).absolute())
    url = urlsplit(text)
    shown = _shown(url)
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return _folder_of_url(text)
    if url.scheme == "file":
        raise ConfigError(
            f"a checkpoint at file: is a folder of this machine, and this one is at {url.hostname}",
            f"submit(checkpoint={shown!r})",
            "name a folder that the driver and every executor see under the same path, such as one on NFS",
        )
    if url.password is not None or url.query or url.fragment:
        raise ConfigError(
            "a checkpoint's URL is shown in logs and errors: it takes no password, no query and no fragment",
            f"submit(checkpoint={shown!r})",
            "give credentials to Hadoop, in the session's spark.hadoop.* settings",
        )
    if not url.path.strip("/"):
        raise ConfigError(
            "a checkpoint is a folder, and this is a whole file system",
            f"submit(checkpoint={shown!r})",
            f"name a folder in it: {shown.rstrip('/')}/checkpoints/orders",
        )
    return text.rstrip("/")


def _folder_of_url(text: str) -> Path:
    path = re.sub(r"^[^:]*:(//[^/]*)?", "", text)  # urlsplit would drop line ends, and cut at "?" and "#"
    if _NOT_IN_A_FILE_URL.search(path):
        raise ConfigError(
            "a file: URL takes no query, no fragment and no control character, and a % only before two "
            "hexadecimal digits",
            f"submit(checkpoint={text!r})",
            "give the path itself, or its URL by Path(...).as_uri()",
        )
    return _without_parents(Path(unquote(path, errors="surrogateescape")))


def _without_parents(folder: Path) -> Path:
    """The folder without ``..``, resolved as the system does: Hadoop would ignore symbolic links."""
    parts = folder.parts
    if ".." not in parts:
        return folder  # links stay: on another machine they may lead elsewhere
    behind = len(parts) - parts[::-1].index("..")
    return Path(*parts[:behind]).resolve().joinpath(*parts[behind:])


def folder_of(checkpoint: str | Path) -> Path:
    """The folder that a user names, where a URL is not allowed.

    Raises:
        CheckpointError: It is at a URL.
    """
    where = location_of(checkpoint)
    if isinstance(where, Path):
        return where
    raise CheckpointError(
        "what bolts remember is moved by a folder that executors see, and this checkpoint is at a URL",
        where,
        "let the topology finish what is open (running.kill() waits for it), and give it a new checkpoint",
    )


def refuse_letters_without_database(where: str, topology: Topology, config: Config) -> None:
    """Check that dead letters have a database, as the checkpoint is at a URL: SQLite needs a folder.

    Raises:
        ConfigError: A spout has a retry policy, so it may give messages up, and no database was named.
    """
    retries = [spout.id for spout in topology.spouts if spout.retry is not None]
    if retries and config.dead_letters_url is None:
        raise ConfigError(
            f"spout {retries[0]!r} has a Retry, and a checkpoint at a URL has no place for what it gives up",
            f"submit(checkpoint={where!r})",
            "name a database that every driver reaches: Config(dead_letters_url='postgresql+psycopg://...')",
        )


def _shown(url: SplitResult) -> str:
    """A URL without its password."""
    host = url.netloc.rpartition("@")[2] if url.password is not None else url.netloc
    return f"{url.scheme}://{host}{url.path}"
