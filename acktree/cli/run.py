"""``acktree run`` and ``acktree submit``: start a topology, in this process or in one of its own."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from acktree.checkpoint.location import location_of
from acktree.cli.answers import Answer, Commands, UsageError, new_command
from acktree.config import Config, dotted_key
from acktree.core.programs import run_module
from acktree.driver.handle import SubmittedTopology
from acktree.driver.importing import importing
from acktree.errors import AcktreeError, ConfigError, MisuseError, nearest
from acktree.private_files import make_private_file, make_private_folder
from acktree.private_urls import masked_text
from acktree.spark_extra import needing_spark
from acktree.stopped_by import StoppedBySignal
from acktree.streamparse import load
from acktree.texts import error_text
from acktree.topology import Topology, TopologyBuilder
from acktree.ui.client import DoorClient, DoorError, NobodyRunsError
from acktree.ui.places import POINTER, Entry, entries, key_of, read_entry, runtime_folder

__all__ = ["add_to", "config_of", "topology_of"]

_START_SECS: Final = 180.0
_LOOK_SECS: Final = 0.2
_LOG_LINES: Final = 20
_OF_STREAMPARSE: Final = {
    ("-e", "--environment"): "the environment of config.json; the only one unless given",
    ("--name",): "the topology's name; the file's unless given",
}
_IMPORTS_STREAMPARSE: Final = re.compile(r"^\s*(?:from|import)\s+streamparse\b", re.MULTILINE)


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    to_run = new_command(commands, "run", "run a topology in this process, to its end", _run, names=False)
    to_submit = new_command(
        commands, "submit", "run a topology in a process of its own; returns when it works", _submit,
        names=False,
    )  # fmt: skip
    for parser in (to_run, to_submit):
        parser.add_argument(
            "target", metavar="MODULE[:NAME]",
            help="a module or a .py file, and in it a topology, a builder, or a function that makes one; "
            "NAME is 'topology' unless given; or a file of streamparse, and in it a Topology class",
        )  # fmt: skip
        parser.add_argument("--checkpoint", metavar="C", help="a folder of the topology's own, or a URL")
        parser.set_defaults(usage_error=parser.error)
        for option, about in _OF_STREAMPARSE.items():
            parser.add_argument(*option, help=f"of a file of streamparse: {about}")
        parser.add_argument(
            "-o", dest="options", action="append", default=[], metavar="KEY=VALUE",
            help="of a file of streamparse: a setting of Storm or of the user, which its components get",
        )  # fmt: skip
        parser.add_argument(
            "-c", dest="settings", action="append", default=[], metavar="KEY=VALUE",
            help="a setting by Storm's dotted key or its name in Config; @FILE: those in the lines of a file",
        )  # fmt: skip
    to_run.add_argument("--ui", action="store_true", help="serve the page meanwhile; prints its address")
    to_run.add_argument("--dry-run", action="store_true", help="validate and describe it; start nothing")


def topology_of(target: str) -> Topology:
    """The topology that ``MODULE[:NAME]`` names. Imports the module.

    Raises:
        ConfigError: There is no such module or name, or it is no topology.
        MisuseError: The module submits a topology when it is imported.
        TopologyError: It is invalid.
    """
    with importing(target):
        return _topology_of(target)


def _loaded(given: Namespace) -> tuple[Config, Topology]:
    """What a command is to run: a topology with its settings."""
    path, _, _ = given.target.partition(":")
    file = Path(path)
    is_plain = not (path.endswith(".py") and file.is_file() and _IMPORTS_STREAMPARSE.search(file.read_text()))
    if is_plain:
        return config_of(given.settings), topology_of(given.target)
    with importing(given.target), _users_errors(f"{path} cannot be loaded", given.target):
        options = dict(map(_parsed, given.options))
        loaded = load(given.target, name=given.name, environment=given.environment, options=options)
    return config_of(given.settings, loaded.config), loaded.topology


def _topology_of(target: str) -> Topology:
    place, _, name = target.partition(":") if not target.endswith(".py") else (target, "", "")
    module = _module(place, target)
    name = name or "topology"
    if not hasattr(module, name):
        known = [each for each, value in vars(module).items() if _is_usable(value, module.__name__)]
        raise ConfigError(f"module {place!r} has no {name!r}", target, nearest(name, known))
    found = getattr(module, name)
    if callable(found):
        with _users_errors(f"{name}() of module {place!r} raises", target):
            found = found()
    if isinstance(found, TopologyBuilder):
        found = found.create_topology()
    if not isinstance(found, Topology):
        raise ConfigError(
            f"{name!r} is {type(found).__name__}, and no topology",
            target,
            "name what create_topology() returns, a TopologyBuilder, or a function without arguments "
            "that returns one",
        )
    return found


def _is_usable(value: object, module: str) -> bool:
    """Whether a value of a module may be meant: a topology, or a function of its own without arguments."""
    if inspect.isfunction(value) and value.__module__ == module:
        return not any(each.default is each.empty for each in inspect.signature(value).parameters.values())
    return isinstance(value, (Topology, TopologyBuilder))


def _module(place: str, target: str) -> Any:  # noqa: ANN401  # a module
    file = Path(place)
    if place.endswith(".py"):
        if not file.is_file():
            raise ConfigError(f"there is no file {place}", target, "name a module or a .py file")
        sys.path.insert(0, str(file.absolute().parent))
        place = file.stem
    elif "/" in place or place.startswith("."):
        found = file.with_name(f"{file.name}.py")
        fix = (
            f"name the file: {found}"
            if found.is_file()
            else "name a module, such as package.module, or a .py file"
        )
        raise ConfigError(f"{place!r} is no name of a module", target, fix)
    try:
        with _users_errors(f"{place or 'nothing'} cannot be imported", target):
            module = importlib.import_module(place)
            run_module(module)
            return module
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{place} cannot be imported: {error}", target, "install what it needs, or run it elsewhere"
            ) from error
        raise ConfigError(
            f"there is no module {place!r}", target, "run this where the module is, or name its .py file"
        ) from error
    except ImportError as error:
        raise ConfigError(f"{place} cannot be imported: {error}", target, "see the error") from error


@contextmanager
def _users_errors(what: str, target: str) -> Iterator[None]:
    """Make errors of the user's code a ConfigError with their traceback; ``sys.exit`` is one too."""
    try:
        yield
    except (AcktreeError, ImportError, StoppedBySignal):  # they say enough
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        users = [each for each in frames if not each.filename.startswith("<frozen")]
        users = [each for each in users if each.filename not in (__file__, importlib.__file__)]
        shown = "".join([*traceback.format_list(users), *traceback.format_exception_only(error)])
        lines = "\n".join(f"    {line}" for line in shown.rstrip().splitlines())
        raise ConfigError(f"{what}:\n{lines}", target, "correct what the traceback shows") from error


def config_of(settings: Iterable[str], others: Config | None = None) -> Config:
    """The settings that ``-c key=value`` gives; a value is JSON, or else a text.

    Args:
        settings: What was given.
        others: The other settings. None: the defaults.

    Raises:
        UsageError: A setting that does not exist, a value that it cannot have, or a file that cannot be read.
    """
    known = {setting.name for setting in fields(Config)}
    dotted: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for setting in _with_those_of_files(settings):
        key, value = _parsed(setting)
        if key in known:
            key = dotted_key(key)  # read as one: a value may be the name of a class
        (dotted if "." in key else named)[key] = value
    try:
        read = Config.from_mapping(dotted)
        named |= {name: getattr(read, name) for name in known if dotted_key(name) in dotted}
        return replace(others or Config(), **named)
    except ConfigError as error:
        raise UsageError(error.what, error.where, error.fix) from error


def _parsed(setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals:
        shown = masked_text(setting, setting.rsplit(maxsplit=1)[-1] if setting.split() else "")
        raise UsageError(f"{shown!r} is no setting", "-c", "write -c key=value, or -c @FILE")
    with suppress(ValueError):
        return key, json.loads(text)
    return key, text


def _with_those_of_files(settings: Iterable[str]) -> Iterator[str]:
    """The settings, those of each ``@FILE`` in its place: one a line; ``@-`` is stdin."""
    for setting in settings:
        if not setting.startswith("@"):
            yield setting
            continue
        try:
            text = sys.stdin.read() if setting == "@-" else Path(setting[1:]).read_text("utf-8")
        except (OSError, ValueError, AttributeError) as error:  # the last where stdin is closed
            raise UsageError(
                f"the settings cannot be read: {error}",
                f"-c {setting}",
                "name a file with key=value in each line",
            ) from error
        for number, line in enumerate(map(str.strip, text.split("\n")), 1):
            if line and not line.startswith("#"):
                if "=" not in line:  # and is not shown: it may be the secret
                    raise UsageError(f"line {number} is no setting", f"-c {setting}", "write key=value there")
                yield line


def _run(given: Namespace) -> Iterable[Answer]:
    if not given.dry_run:
        _need_checkpoint(given)
    config, topology = _loaded(given)
    if given.dry_run:
        described = topology.describe(config.partitions or 2)
        yield Answer(described.data, f"{described}\nvalid; nothing was started")
        return
    with needing_spark("acktree run"):
        from acktree import submit  # noqa: PLC0415  # --dry-run needs no Spark

    start = partial(submit, topology, checkpoint=given.checkpoint, config=config)
    with _page() if given.ui else nullcontext():
        running, error = _run_to_end(start, given)
    yield replace(_account(running, error), error=error)


def _need_checkpoint(given: Namespace) -> None:
    if given.checkpoint is None:
        given.usage_error("the following arguments are required: --checkpoint")


@contextmanager
def _page() -> Iterator[None]:
    """The page in a process of its own, for the length of the block; it prints its address to stderr."""
    command = [sys.executable, "-m", "acktree", "ui"]
    page = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)  # noqa: S603
    try:
        yield
    finally:
        page.terminate()
        page.wait()


def _run_to_end(
    start: Callable[[], SubmittedTopology], given: Namespace
) -> tuple[SubmittedTopology, BaseException | None]:
    """Run a topology until it ends, is stopped, or the time is over; returns it with what stopped it."""
    running = None
    try:
        with start() as running:
            if not running.await_termination(given.timeout):
                raise TimeoutError(  # noqa: TRY301  # leaves the block, which stops the topology
                    f"{running.name} has not ended in {given.timeout:g} s, and was stopped"
                )
    except (StoppedBySignal, AcktreeError, TimeoutError) as error:
        if running is None:
            raise
        return running, error
    except Exception as error:  # Spark's own: its text is the JVM's
        if running is None:
            raise AcktreeError(
                error_text(error), f"acktree run {given.target}", "see the log above"
            ) from error
        return running, AcktreeError(error_text(error), f"topology {running.name!r}", "see the log above")
    return running, None


def _account(running: SubmittedTopology, error: BaseException | None) -> Answer:
    """What became of the messages of this run."""
    stats = running.stats()
    components = running.describe().data["components"]
    spouts = [stats[name] for name, about in components.items() if about["kind"] == "spout"]
    counts: dict[str, Any] = {"open_at_start": stats.open_at_start} | {
        what: sum(getattr(spout.total, what) for spout in spouts)
        for what in ("emitted", "acked", "failed", "timed_out")
    }
    counts |= {"dead_letters": _letters(running), "open": sum(spout.open or 0 for spout in spouts)}
    shown = {
        "topology": running.name,
        "checkpoint": str(running.checkpoint),
        "status": _status(running, error),
    }
    if isinstance(error, AcktreeError):
        shown["error"] = error.what
    text = [stats.table(), *(f"{what}: {n:,}" for what, n in counts.items() if n is not None)]
    return Answer(shown | counts, "\n".join(text))


def _letters(running: SubmittedTopology) -> int | None:
    try:
        return running.dead_letters.count()
    except AcktreeError:
        return None


def _status(running: SubmittedTopology, error: BaseException | None) -> str:
    if isinstance(error, AcktreeError):
        return "FAILED"
    return "ENDED" if running.has_ended else "STOPPED"


def _submit(given: Namespace) -> Answer:
    _need_checkpoint(given)
    settings = [*_with_those_of_files(given.settings)]  # before another reads stdin
    if not config_of(settings).control:  # refused here rather than in the log
        raise ConfigError(
            "submit waits until the driver answers, and control=False gives it no socket",
            "-c control=false",
            "leave that out, or start `acktree run` by a service manager of yours",
        )
    runtime_folder()
    place = location_of(given.checkpoint)
    _refuse_running(str(place))
    log = _log_file(place)
    command = [sys.executable, "-m", "acktree", "run", given.target, "--checkpoint", str(place), "--json"]
    command += [f"-o{option}" for option in given.options]
    for option, value in (("-e", given.environment), ("--name", given.name)):
        command += [] if value is None else [option, value]
    begins = log.stat().st_size
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603  # our own command, its arguments as they were given
            [*command, "-c", "@-"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # Not as arguments, which every user of the machine can read for as long as it runs: a URL has a password.
    _send(settings, child)
    entry = _await_warm(child, place, (log, begins), _START_SECS if given.timeout is None else given.timeout)
    if entry is None:
        return Answer(
            {"checkpoint": str(place), "status": "ENDED", "log": str(log)},
            f"the topology on {place} has ended, and there is nothing to run",
        )
    named = {"topology": entry.topology, "id": entry.id, "checkpoint": entry.checkpoint}
    shown = named | {"pid": child.pid, "log": str(log)}
    return Answer(shown, f"{entry.id} runs as process {child.pid}; its log is {log}")


def _send(settings: Iterable[str], child: subprocess.Popen[bytes]) -> None:
    """Write settings to the stdin of a driver, each on a line of its own."""
    assert child.stdin is not None, "it was started with a pipe"
    lines = (f"{key}={json.dumps(value)}\n" for key, value in map(_parsed, settings))
    with suppress(BrokenPipeError), child.stdin:  # it may have ended already
        child.stdin.write("".join(lines).encode())


def _refuse_running(place: str) -> None:
    for entry in _entries_of(place):
        if DoorClient(entry).is_answering():
            raise MisuseError(
                f"topology {entry.topology!r} runs on this checkpoint, as process {entry.pid}",
                place,
                f"stop it first: acktree kill {place}",
            )


def _entries_of(place: str) -> list[Entry]:
    in_checkpoint = None if "://" in place else read_entry(Path(place) / POINTER)
    return [in_checkpoint] if in_checkpoint else [each for each in entries() if each.checkpoint == place]


def _log_file(place: Path | str) -> Path:
    """Where the output of a detached driver goes: into its checkpoint, if that is a folder."""
    log = place / "driver.log" if isinstance(place, Path) else runtime_folder() / f"{key_of(place)}.log"
    try:
        make_private_folder(log.parent)
        make_private_file(log)
    except OSError as error:
        raise ConfigError(
            f"the log cannot be made: {error}", str(log), "name a folder that this user can make and write to"
        ) from error
    return log


def _await_warm(
    child: subprocess.Popen[bytes], place: Path | str, said: tuple[Path, int], most_secs: float
) -> Entry | None:
    """Wait until the first micro-batch has run, or the topology came to its end.

    Args:
        said: Its log, and how many bytes earlier drivers have written into it.

    Returns:
        The driver's entry; None if the topology ended in an earlier run.
    """
    log, begins = said
    deadline = time.monotonic() + most_secs
    while True:
        code = child.poll()  # before its entry is looked for: it may write one and end meanwhile
        for entry in _entries_of(str(place)):
            if entry.pid == child.pid and (code == 0 or _is_warm(entry)):
                return entry
        if code == 0:
            return None
        if code is not None:
            raise _ended(code, log, begins)
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {child.pid} has not started in {most_secs:g} s; it goes on: {log}")
        time.sleep(_LOOK_SECS)


def _is_warm(entry: Entry) -> bool:
    try:
        return DoorClient(entry).snapshot().status != "STARTING"
    except (NobodyRunsError, DoorError, TimeoutError):
        return False


def _ended(code: int, log: Path, begins: int) -> AcktreeError:
    """The error for a driver that ended before it was warm."""
    said = _last_lines(log, begins)
    if said:
        fix = "correct what it says and submit again"
        return AcktreeError(f"the driver ended with exit code {code}:\n{said}", str(log), fix)
    free_mb = shutil.disk_usage(log.parent).free / 1e6
    return AcktreeError(
        f"the driver ended with exit code {code}, and its log does not say why",
        f"{log} ({free_mb:,.1f} MB free now)",
        "make room there if there is none, and submit again; `acktree run` says why in the terminal",
    )


def _last_lines(log: Path, begins: int) -> str:
    """The end of what was written after the first ``begins`` bytes."""
    with log.open("rb") as written:
        written.seek(begins)
        lines = written.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
    with suppress(
        ValueError, TypeError, KeyError, IndexError
    ):  # it ends with what `run --json` says of an error
        refused = json.loads(lines[-1])
        lines = f"{refused['error']}\nwhere: {refused['where']}\nfix: {refused['fix']}".splitlines()
    return "\n".join(f"    {line}" for line in lines)
