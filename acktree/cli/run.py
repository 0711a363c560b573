"""``acktree run`` and ``acktree submit``: start a topology, in this process or in one of its own."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from acktree.checkpoint.location import location_of
from acktree.cli.answers import DONE, FAILED, Answer, Commands, NewLettersError, new_command
from acktree.cli.checks import component_checks, data_of, line_of
from acktree.cli.targets import (
    add_target,
    config_of,
    load_target,
    loaded_target,
    options_of,
    parsed,
    with_those_of_files,
)
from acktree.cli.watch import account_line
from acktree.config import Config
from acktree.core.stats.statistics import Stats
from acktree.driver.handle import SubmittedTopology
from acktree.errors import AcktreeError, ConfigError, MisuseError
from acktree.spark_extra import needing_spark
from acktree.system.private_files import make_private_file, make_private_folder
from acktree.system.stopped_by import StoppedBySignal
from acktree.texts import error_text
from acktree.ui.client import DoorClient, DoorError, Found, NobodyRunsError
from acktree.ui.places import POINTER, Entry, entries, key_of, read_entry, runtime_folder
from acktree.ui.snapshot import VERDICTS, Snapshot

_START_SECS: Final = 180.0
_LOOK_SECS: Final = 0.2
_LOG_LINES: Final = 20


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    add_commands(
        commands,
        "MODULE[:NAME]",
        "a module or a .py file, and in it a topology, a builder, or a function that makes one; NAME is "
        "'topology' unless given, and CONFIG beside it has its settings; or a file of streamparse with a "
        "Topology class, or a YAML file of Flux",
    )


def add_commands(
    commands: Commands, metavar: str, about: str, kind: Callable[[str], str] = str
) -> tuple[ArgumentParser, ArgumentParser]:
    """Add ``run`` and ``submit``; for what is given see :func:`add_target`."""
    to_run = new_command(commands, "run", "run a topology in this process, to its end", _run, names=False)
    to_submit = new_command(
        commands, "submit", "run a topology in a process of its own; returns when it works", _submit,
        names=False,
    )  # fmt: skip
    for parser in (to_run, to_submit):
        add_target(parser, metavar, about, kind)
        parser.add_argument("--checkpoint", metavar="C", help="a folder of the topology's own, or a URL")
    to_run.add_argument("--ui", action="store_true", help="serve the page meanwhile; prints its address")
    to_run.add_argument(
        "--fail-on", choices=["dead-letters"],
        help="the exit code is 5 if the run ended and messages of it became dead letters",
    )  # fmt: skip
    to_run.add_argument("--submitted", action="store_true", help=SUPPRESS)  # by `submit`
    to_run.add_argument("--dry-run", action="store_true", help="validate and describe it; start nothing")
    return to_run, to_submit


def dry_run(options: Namespace) -> Answer:
    """The description of a topology, which is validated and not started, and what its components need."""
    config, topology, loaded = loaded_target(options)
    described = topology.describe(config.partitions or 2)
    checks = [*component_checks(topology, config, may_be_away=True)]
    data, said = {**described.data, "checks": [data_of(check) for check in checks]}, [*map(line_of, checks)]
    is_ok = all(check.is_ok for check in checks)
    if loaded is not None:
        data |= {"ignored": dict(loaded.ignored), "unset": list(loaded.unset)}
        said += [f"{setting} has no effect: {reason}" for setting, reason in loaded.ignored.items()]
        said += [f"{placeholder} has no value" for placeholder in loaded.unset]
        is_ok = is_ok and not loaded.unset
    said.append("valid; nothing was started" if is_ok else "it cannot work as it is; nothing was started")
    return Answer(
        data,
        "\n".join([str(described), *said]),
        DONE if is_ok else FAILED,
    )


def _run(options: Namespace) -> Iterable[Answer]:
    if options.dry_run:
        yield dry_run(options)
        return
    _need_checkpoint(options)
    config, topology = load_target(options)
    if options.submitted:
        _need_control(config, options.target)
    with needing_spark("acktree run"):
        from acktree import submit  # noqa: PLC0415  # --dry-run needs no Spark

    start = partial(submit, topology, checkpoint=options.checkpoint, config=config)
    where = location_of(options.checkpoint)
    before = Found(None, where, is_running=False).last_snapshot() if isinstance(where, Path) else None
    with _page() if options.ui else nullcontext():
        running, error = _run_to_end(start, options)
    answer = _account(running, error, before)
    if options.fail_on and error is None:
        error = _new_letters(running, answer.data["new_dead_letters"])
    yield replace(answer, error=error)


def _new_letters(running: SubmittedTopology, count: int) -> NewLettersError | None:
    """The error of a run that is to fail on dead letters."""
    if not count:
        return None
    return NewLettersError(
        f"the run made {count:,} new dead letter{'s' * (count != 1)}",
        f"topology {running.name!r}",
        f"see why: acktree dead-letters summary {shlex.quote(str(running.checkpoint))}",
    )


def _need_checkpoint(options: Namespace) -> None:
    if options.checkpoint is None:
        options.usage_error("the following arguments are required: --checkpoint")


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
    start: Callable[[], SubmittedTopology], options: Namespace
) -> tuple[SubmittedTopology, BaseException | None]:
    """Run a topology until it ends, is stopped, or the time is over; returns it with what stopped it."""
    running = None
    try:
        with start() as running:
            is_over = running.await_termination(options.timeout)
        if not is_over:
            running.await_termination()  # raises an error that came while it was stopped
        if not is_over and not running.has_ended:
            return running, TimeoutError(
                f"{running.name} has not ended in {options.timeout:g} s, and was stopped"
            )
    except (StoppedBySignal, AcktreeError) as error:
        if running is None:
            raise
        return running, error
    except Exception as error:  # Spark's own: its text is the JVM's
        if running is None:
            raise AcktreeError(
                error_text(error), f"acktree run {options.target}", "see the log above"
            ) from error
        return running, AcktreeError(error_text(error), f"topology {running.name!r}", "see the log above")
    return running, None


def _account(running: SubmittedTopology, error: BaseException | None, before: Snapshot | None) -> Answer:
    """What became of the messages of this run.

    Args:
        before: What was kept of the run before it. If that was the end, its table is shown: that of this run
            has only zeros.
    """
    stats = running.stats()
    components = running.describe().data["components"]
    gates = [name for name, about in components.items() if "gate_of" in about]
    spouts = [name for name, about in components.items() if about["kind"] == "spout" and name not in gates]
    letters = _letters(running)
    counts, of_gates = _counts(stats, spouts, gates, letters), _gate_counts(stats, gates)
    shown: dict[str, Any] = {
        "topology": running.name,
        "checkpoint": str(running.checkpoint),
        "status": _status(running, error),
    }
    if isinstance(error, AcktreeError):
        shown["error"] = error.what
    if of_gates:
        shown["gates"] = of_gates
    text, printed_counts = [stats.table()], counts
    if before is not None and before.status == "ENDED" and not any({**counts, "dead_letters": 0}.values()):
        printed_counts = _counts(before.stats, before.spouts, before.gates, letters)
        of_gates = before.gate_account()
        ended = f"{running.name} has ended: there was nothing left to do. The numbers of run {before.run}:"
        text, shown["ended_in_run"] = [ended, before.stats.table()], before.run
    text += [f"{what}: {n:,}" for what, n in printed_counts.items() if n is not None]
    text += [f"gates: {account_line(of_gates)}"] if of_gates else []
    return Answer(shown | counts, "\n".join(text))


def _counts(
    stats: Stats, spouts: Iterable[str], gates: Iterable[str], dead_letters: int | None
) -> dict[str, int | None]:
    """What became of the messages of a run, in the order in which it is printed; letters are of gates too."""
    spouts_stats = [stats[spout] for spout in spouts]
    counts = {what: sum(getattr(spout.total, what) for spout in spouts_stats) for what in VERDICTS}
    made = sum(each.total.dead_lettered for each in (*spouts_stats, *(stats[gate] for gate in gates)))
    letters = {
        "new_dead_letters": made,
        "dead_letters": dead_letters,
    }
    still = sum(spout.open or 0 for spout in spouts_stats)
    return {"open_at_start": stats.open_at_start, **counts, **letters, "open": still}


def _gate_counts(stats: Stats, gates: Sequence[str]) -> dict[str, int]:
    """What became of what passed gates; empty without gates."""
    if not gates:
        return {}
    gates_stats = [stats[gate] for gate in gates]
    whats = (*VERDICTS, "superseded")
    counts = {what: sum(getattr(gate.total, what) for gate in gates_stats) for what in whats}
    return counts | {"open": sum(gate.open or 0 for gate in gates_stats)}


def _letters(running: SubmittedTopology) -> int | None:
    try:
        return running.dead_letters.count()
    except AcktreeError:
        return None


def _status(running: SubmittedTopology, error: BaseException | None) -> str:
    if isinstance(error, AcktreeError):
        return "FAILED"
    return "ENDED" if running.has_ended else "STOPPED"


def _submit(options: Namespace) -> Answer:
    _need_checkpoint(options)
    settings = [*with_those_of_files(options.settings)]  # before another reads stdin
    _need_control(config_of(settings), "-c control=false")  # refused here rather than in the log
    runtime_folder()
    place = location_of(options.checkpoint)
    _refuse_running(str(place))
    log = _log_file(place)
    command = [sys.executable, "-m", "acktree", "run", *options_of(options)]
    command += ["--checkpoint", str(place), "--json", "--submitted"]
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
    entry = _await_warm(
        child, place, (log, begins), _START_SECS if options.timeout is None else options.timeout
    )
    if entry is None:
        return Answer(
            {"checkpoint": str(place), "status": "ENDED", "log": str(log)},
            f"the topology on {place} has ended, and there is nothing to run",
        )
    named = {"topology": entry.topology, "id": entry.id, "checkpoint": entry.checkpoint}
    shown = named | {"pid": child.pid, "log": str(log)}
    return Answer(shown, f"{entry.id} runs as process {child.pid}; its log is {log}")


def _need_control(config: Config, where: str) -> None:
    if not config.control:
        raise ConfigError(
            "submit waits until the driver answers, and control=False gives it no socket",
            where,
            "leave that out, or start `acktree run` by a service manager of yours",
        )


def _send(settings: Iterable[str], child: subprocess.Popen[bytes]) -> None:
    """Write settings to the stdin of a driver, each on a line of its own."""
    assert child.stdin is not None, "it was started with a pipe"
    lines = (f"{key}={json.dumps(value)}\n" for key, value in map(parsed, settings))
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
