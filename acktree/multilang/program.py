"""A program that runs as a child process: its command and settings, and what it is told."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from acktree import Config, ConfigError, Outputs, TaskContext
from acktree.errors import nearest
from acktree.logs.loggers import logger
from acktree.multilang.child import Child
from acktree.multilang.framing import Format, UnwritableError, format_of
from acktree.multilang.hosts import METRICS

__all__ = ["Program", "absolute", "has_form"]

_LONGEST_FIRST_LINE: Final = 256


@dataclass(frozen=True)
class Program:
    """A program that runs as a child, and what it is told of its place. The fields are those of the classes.

    Attributes:
        kind: The class that was given it, for errors.
        setting: What is known of its place in the topology, as the set-up describes it.
    """

    kind: str
    command: Sequence[str]
    folder: Path | None
    env: Mapping[str, str]
    settings: Mapping[str, Any]
    serializer: str
    timeout_secs: float
    metrics: Mapping[str, str]
    setting: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        command: object = self.command
        is_list = isinstance(command, list | tuple) and bool(command)
        if not is_list or not all(isinstance(part, str) for part in self.command):
            fix = f"name the program and its arguments: {self.kind}(['node', 'words.js'], ['word'])"
            raise ConfigError(f"{command!r} is not a command", f"{self.kind}(command=...)", fix)
        where = f"{self.kind}(serializer=...)"
        if self.serializer not in {"json", "msgpack"}:
            raise ConfigError(
                f"there is no serializer {self.serializer!r}", where, 'it is "json" or "msgpack"'
            )
        try:
            format_of(self.serializer)
        except ModuleNotFoundError as error:
            what, _, fix = str(error).partition(": ")
            raise ConfigError(what, where, fix) from error
        for name, kind in self.metrics.items():
            if kind not in METRICS:
                what = f"metric {name!r} has the kind {kind!r}"
                raise ConfigError(what, f"{self.kind}(metrics=...)", nearest(str(kind), METRICS))
        if not all(isinstance(each, str) for pair in self.env.items() for each in pair):
            what = f"env={dict(self.env)!r:.200} has something that is no text"
            raise ConfigError(what, f"{self.kind}(env=...)", "give str(...) of it")
        secs: object = self.timeout_secs
        if isinstance(secs, bool) or not isinstance(secs, int | float) or not secs > 0:
            what = f"subprocess_timeout_secs={secs!r} is not a positive number of seconds"
            raise ConfigError(what, f"{self.kind}(subprocess_timeout_secs=...)", "give a number above 0")
        settings: object = self.settings
        if not isinstance(settings, Mapping) or not all(map(_is_json, settings.values())):
            what = "settings has values that JSON does not have, or is no mapping"
            raise ConfigError(what, f"{self.kind}(settings=...)", "give names and values that JSON has")
        if self.folder is not None and not self.folder.is_dir():
            what = f"there is no folder {self.folder}"
            raise ConfigError(what, f"{self.kind}(resources=...)", "name the folder that has the program")

    def check(self) -> None:
        """See whether the command is there and may be executed, as a new child would.

        Raises:
            ConfigError: It is not.
        """
        name, where = self.command[0], f"{self.kind}(command=...)"
        if os.sep in name:
            file = (self.folder or Path.cwd()) / name
            there = "there is no file" if not file.exists() else "this is a folder:" if file.is_dir() else ""
            if there:
                raise ConfigError(f"{there} {file}", where, "name the file of the program, or install it")
        else:
            found = shutil.which(name, path=self.env.get("PATH"))
            if found is None:
                beside = self.folder is not None and (self.folder / name).is_file()
                fix = f"write './{name}'" if beside else "install it, or name its path"
                raise ConfigError(f"there is no command {name!r} on the PATH", where, fix)
            file = Path(found)
        if not os.access(file, os.X_OK):
            raise ConfigError(f"{file} is not executable", where, f"chmod +x {file}")
        interpreter = _interpreter_of(file)
        if interpreter is not None and not interpreter.exists():
            what = f"the first line of {file} names {interpreter}, which is not there"
            raise ConfigError(what, where, "correct that line, or name the interpreter first in the command")

    def start(self, set_up: Mapping[str, Any], **more: Any) -> Child:  # noqa: ANN401  # Child's own
        """Start a child, or get the one of this name."""
        about = set_up["context"]
        printed = logger(f"multilang.{about['componentid']}")
        return Child(
            self.command, f"component {about['componentid']!r}, task {about['taskid']}", self.timeout_secs,
            folder=self.folder, env=self.env, serializer=self.serializer,
            printed=lambda line: printed.info("%s", line), **more,
        )  # fmt: skip

    def set_up(self, outputs: Outputs, config: Config, context: TaskContext) -> dict[str, Any]:
        """The first message to the child, but for its folder."""
        streams: Any = outputs if isinstance(outputs, Mapping) else {"default": outputs}
        fields = {stream: [*getattr(names, "names", names)] for stream, names in streams.items()}
        numbered = {str(task): name for name, tasks in context.tasks.items() for task in tasks}
        about = {
            "task->component": numbered, "taskid": context.task_id, "componentid": context.component_id,
            "streams": [*fields], "stream->outputfields": fields, "stream->target->grouping": {},
            "source->stream->grouping": {}, "source->stream->fields": {}, **self.setting,
        }  # fmt: skip
        conf = {**config.to_mapping(), **self.settings, "topology.name": context.topology_name}
        return {"conf": {key: value for key, value in conf.items() if _is_json(value)}, "context": about}


def absolute(folder: str | Path | None) -> Path | None:
    """A folder as workers find it, whose working folder may be another one."""
    return None if folder is None else Path(folder).absolute()


def _interpreter_of(file: Path) -> Path | None:
    """What runs a script; None of a program, and of what cannot be read."""
    with suppress(OSError), file.open("rb") as script:
        mark, _, line = script.read(_LONGEST_FIRST_LINE).partition(b"\n")[0].partition(b"#!")
        if not mark and line.split():
            return Path(os.fsdecode(line.split()[0]))
    return None


def has_form(form: Format, value: object) -> bool:
    """Whether a message may have this value."""
    try:
        form.framed(value)
    except UnwritableError:
        return False
    return True


def _is_json(value: object) -> bool:
    return has_form(format_of("json"), value)
