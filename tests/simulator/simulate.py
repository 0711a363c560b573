"""Runs the drivers of a seed one after the other, and checks the account of all messages at the end."""

from __future__ import annotations

import errno
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from acktree.checkpoint.logs import acker_log as acker
from acktree.checkpoint.logs import gate_log, key_log
from acktree.checkpoint.logs.commit_log import CommitLog
from acktree.driver import supervisor
from acktree.spark import submit
from acktree.spark.realtime import drive as realtime
from tests.simulator.damage import damaged
from tests.simulator.disk import ProcessDied
from tests.simulator.driver import FOLDER, Driver
from tests.simulator.epochs import EpochDriver
from tests.simulator.resident import clock_of
from tests.simulator.world import BrokenPromiseError, Drive, Source, World

BATCH_SECS = 0.7
"""A batch of Spark's is this long by epochs: an hour would not end in a run."""

_NOTES_OF_A_RUN = {"lock", "taken", "work", "hold"}
_WITH_ROWS = re.compile(r"(?<=\.)\d+$")


@dataclass(frozen=True)
class Result:
    """The result of one seed.

    Attributes:
        wrong: The rule that was broken; None if none was.
        told: How many damages of each kind an error has told.
        refused: Why a checkpoint was refused after a power cut that it need not survive; None if it was not.
    """

    seed: int
    wrong: str | None
    refused: str | None
    runs: int
    deaths: tuple[str, ...]
    trace: tuple[str, ...]
    told: Counter[str]


def simulate(
    seed: int,
    *,
    with_power_cuts: bool = False,
    with_damage: bool = False,
    with_gates: bool = False,
    drive: Drive = "micro-batches",
    is_traced: bool = False,
) -> Result:
    """Run one seed to its end."""
    world = World.of(
        seed,
        with_power_cuts=with_power_cuts,
        with_damage=with_damage,
        with_gates=with_gates,
        drive=drive,
        is_traced=is_traced,
    )
    world.note(f"{world.scenario}")
    wrong: str | None = None
    with _machine(world):
        try:
            driver = _live(world)
            if driver is not None:
                check(world, driver)
        except BrokenPromiseError as violation:
            wrong = str(violation)
        except Exception as error:  # no other error is expected
            wrong = f"{type(error).__name__}: {error}"
            if is_traced:
                raise
        finally:
            world.close()
    return Result(
        seed, wrong, world.refused, world.run, tuple(world.deaths), tuple(world.trace or ()), world.told
    )


@contextmanager
def _machine(world: World) -> Iterator[None]:
    """Use the world's clock, and write whole ledgers often, since runs are short."""
    before = supervisor.now_ms, submit.now_ms, acker._MOST_CHANGES
    logs = gate_log._MOST_CHANGES, key_log._MOST_CHANGES
    of_drive = realtime.time, realtime.BATCH_SECS
    logging.getLogger("acktree").disabled = True
    supervisor.now_ms = submit.now_ms = lambda: world.now_ms
    acker._MOST_CHANGES = 3  # type: ignore[misc]
    gate_log._MOST_CHANGES = key_log._MOST_CHANGES = 3  # type: ignore[misc]
    realtime.time = clock_of(lambda: world.now_ms)  # type: ignore[assignment]
    realtime.BATCH_SECS = BATCH_SECS  # type: ignore[misc]
    try:
        yield
    finally:
        supervisor.now_ms, submit.now_ms, acker._MOST_CHANGES = before  # type: ignore[misc]
        gate_log._MOST_CHANGES, key_log._MOST_CHANGES = logs  # type: ignore[misc]
        realtime.time, realtime.BATCH_SECS = of_drive  # type: ignore[misc]
        logging.getLogger("acktree").disabled = False


def _live(world: World) -> Driver | None:
    """Run drivers until one has nothing left to do; None where a power cut made the checkpoint unusable."""
    while world.refused is None:
        world.disk.start_process()
        world.disk.fault = world.faults_left.pop(0) if world.faults_left else None
        _damage(world)
        fault = None if world.disk.fault is None else world.disk.fault[1]
        try:
            driver = _one_life(world)
        except ProcessDied:
            assert fault is not None
            world.deaths.append(fault)
            world.note(f"the driver is gone: {fault}")
            if fault == "power":
                world.disk.cut_power()
            continue
        if driver is not None:
            return driver
    return None


def _damage(world: World) -> None:
    """Perhaps damage a file, after a driver has run."""
    if world.damages is not None and world.run and world.damages.random() < 0.8:
        damage = damaged(world.disk, world.damages, str(FOLDER))
        if damage is not None:
            world.note(f"{damage.file} is damaged: {damage.kind}")
            world.damaged.append(damage)


def _durable(world: World) -> dict[str, bytes | None]:
    """What is in all files that count; of two of one number of the inbox one does."""
    files = [file for file in world.disk.list_all() if Path(file).name not in _NOTES_OF_A_RUN]
    files = [file for file in files if not Path(file).name.startswith("new-")]
    return {_WITH_ROWS.sub("", file): world.disk.content_of(file) for file in files}


def _is_told(world: World, error: BaseException, before: Mapping[str, bytes | None] | None) -> bool:
    """Whether an error tells a damage; then all files are mended, the last damage first.

    Args:
        before: What was in the files when a driver began that was refused; None where it ran.
    """
    told = [damage for damage in world.damaged if damage.is_told_by(error)]
    if told and before is not None and (now := _durable(world)) != before:
        changed = sorted(file for file in before.keys() | now.keys() if before.get(file) != now.get(file))
        raise BrokenPromiseError(f"a driver was refused, and has changed {changed}: {error}") from error
    if told:
        world.note(f"the damage is told: {error}")
        world.told[told[-1].kind] += 1
        for damage in reversed(world.damaged):
            damage.mend(world.disk)
        world.damaged.clear()
    return bool(told)


def _one_life(world: World) -> Driver | None:
    """A driver that has nothing left to do; None where another shall follow it, or none can."""
    driver: Driver | None = None
    before = _durable(world)
    try:
        driver = (Driver if world.drive == "micro-batches" else EpochDriver)(world)
        driver.live()
        world.disk.fault = None  # it has nothing left to do, and the fault was not due yet
        if world.clean_stops or world.random.random() < 0.8:
            return driver
        world.clean_stops += 1
        driver.stop()
    except BrokenPromiseError:
        raise
    except Exception as error:
        if _is_full(error) or (world.disk.is_full and _is_worn_out(error)):
            _stop_for_want_of_room(world, driver)
        elif _is_told(world, error, None if driver else before):
            pass
        elif world.scenario.is_weak and "power" in world.deaths:
            world.refused = f"{type(error).__name__}: {error}"
        else:
            raise
    return None


def _stop_for_want_of_room(world: World, driver: Driver | None) -> None:
    world.deaths.append("full")
    world.note("the disk is full")
    if driver is not None and world.random.random() < 0.5:
        driver.stop()


def _is_full(error: BaseException) -> bool:
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def _is_worn_out(error: BaseException) -> bool:
    """Whether the tasks of a query failed too often, the last time perhaps for another reason."""
    return str(error).startswith(f"the query of real time failed {realtime.MOST_STARTS} times")


def check(world: World, driver: Driver) -> None:
    """Check the account: docs/guarantee.md."""
    was_cut = world.scenario.is_weak and "power" in world.deaths
    effects = driver.effects()
    for source in world.scenario.sources:
        for number in range(source.count):
            verdicts = world.verdicts[source.name, number]
            executed = {key[2]: times for key, times in effects.items() if key[:2] == (source.name, number)}
            if not was_cut:
                _check_message(world, source, number, verdicts, executed)
            elif (
                source.redelivers and not verdicts
            ):  # a power cut may lose new messages that only the inbox has
                raise BrokenPromiseError(f"{source.name} {number} has no verdict")
    again = any(len(verdicts) > 1 for verdicts in world.verdicts.values())
    if world.clean_stops and not world.deaths and again:
        raise BrokenPromiseError("a verdict was delivered again after an orderly stop")
    if not was_cut:
        check_counts(world, driver)
        if world.scenario.has_gates:
            check_gates(world, driver)
    check_files(world, driver, was_cut=was_cut)


def check_gates(world: World, driver: Driver) -> None:
    """Check that behind gates each ACKED message had its effect once, and no other had any.

    A queue without keys may bring back what was decided, or what is open: its effect is there again then.
    """
    for where, found in (("the bolt", driver.counted()), ("the sink", world.database.rows)):
        names = set[str]()
        for source in world.scenario.sources:
            for number in range(source.count):
                name = f"{source.name} {number}"
                names.add(name)
                kinds = {verdict for verdict, _ in world.verdicts[source.name, number]}
                least = int(kinds == {"acked"} or (source.name, number) in world.copies_acked)
                most = least
                if source.redelivers and not source.has_keys:
                    most = world.messages[source.name, number].executions
                if not least <= found[name] <= most:
                    raise BrokenPromiseError(
                        f"{name} is {sorted(kinds)}, and {where} has it {found[name]} times"
                    )
        if found.keys() - names:
            raise BrokenPromiseError(f"{where} has {sorted(found.keys() - names)}")
    if driver.gates is None or not driver.gates.is_empty:
        raise BrokenPromiseError("tuples wait at a gate")


def check_counts(world: World, driver: Driver) -> None:
    """Check that the counts of all runs are those of the committed micro-batches, each once.

    A message whose key was ACKED before is counted as acked, too, and no micro-batch decides it.
    """
    decided: Counter[tuple[str, str]] = Counter()
    for batch_id, counts in world.decided.items():
        if batch_id <= driver.held.last_committed():
            decided += counts
    counted = driver.totals.now().counters
    for source in world.scenario.sources:
        for what in ("acked", "failed", "timed_out"):
            found, right = counted.total(what, component=source.name), decided[source.name, what]
            repeated = world.acks[source.name] if source.has_keys and what == "acked" else 0
            if not right <= found <= right + repeated:
                raise BrokenPromiseError(f"{source.name} has {found} {what} of all runs, not {right}")
        first = [world.verdicts[source.name, number][:1] for number in range(source.count)]
        acked = sum(verdict == "acked" for verdicts in first for verdict, _ in verdicts)
        is_alone = not (source.redelivers or source.has_keys)  # else a message may be acked again
        if is_alone and counted.total("acked", component=source.name) != acked:
            raise BrokenPromiseError(f"{source.name}: {acked} messages were acked, counted otherwise")


def _check_message(
    world: World, source: Source, number: int, verdicts: list[tuple[str, int]], executed: dict[int, int]
) -> None:
    who, kinds = f"{source.name} {number}", {verdict for verdict, _ in verdicts}
    if not verdicts:
        raise BrokenPromiseError(f"{who} has no verdict")
    if len(kinds) > 1:
        raise BrokenPromiseError(f"{who} has the verdicts {sorted(kinds)}")
    if kinds == {"acked"} and not executed:
        raise BrokenPromiseError(f"{who} was acked, and what it did is gone")
    if not source.redelivers:
        _check_only_here(world, source, number, verdicts, executed)
    elif len(verdicts) > 1:
        raise BrokenPromiseError(f"{who} had its final verdict, and got {verdicts}")


def _check_only_here(
    world: World, source: Source, number: int, verdicts: list[tuple[str, int]], executed: dict[int, int]
) -> None:
    """The checks of a message that only the inbox has."""
    who, verdict = f"{source.name} {number}", verdicts[0][0]
    if len(verdicts) > 1 + len(world.deaths):
        raise BrokenPromiseError(f"{who} got {len(verdicts)} verdicts after {len(world.deaths)} deaths")
    if len({run for _, run in verdicts}) < len(verdicts):
        raise BrokenPromiseError(f"{who} got two verdicts in one run: {verdicts}")
    if max(executed.values(), default=0) > 1:
        raise BrokenPromiseError(f"{who} was executed twice as one attempt: {executed}")
    if not world.scenario.times_out and verdict == "acked" and sum(executed.values()) != 1:
        raise BrokenPromiseError(f"{who} was acked after {executed}")
    if world.stored_letters(source.name, number) != (verdict == "dead"):
        raise BrokenPromiseError(f"{who} is {verdict}, its dead letters say otherwise")


def check_files(world: World, driver: Driver, *, was_cut: bool) -> None:
    """Check that no file is left that is no longer needed."""
    spouts = len(driver.threads.by_task)
    left = [name.removeprefix(f"{FOLDER}/") for name in world.disk.list_all()]
    ours = [name for name in left if not name.startswith("spark/")]
    if driver.acker._acker.ledger.open_count:
        raise BrokenPromiseError(f"the acker has {driver.acker._acker.ledger.open_count} open")
    found = acker.DurableAcker(driver.plan, FOLDER, driver.held.acker_from, driver.held.files)
    CommitLog(FOLDER, [found], driver.held.files).recover(driver.held.last_committed())
    if found._acker.ledger.open_count and not was_cut:
        raise BrokenPromiseError("the acker's files say that something is open")
    half = [name for name in ours if "new-" in name]
    inbox = [name for name in ours if name.startswith("inbox/") and name.count(".")]
    logs = 3 if world.scenario.has_gates else 1  # the acker's, the gates', the keys'
    most = {"inbox": spouts + 2, "commits": logs * 2 * 3 + 3, "verdicts": 1, "payloads": 0, "staged": 2}
    if half or len(inbox) > most["inbox"]:
        raise BrokenPromiseError(f"files are left over: {half or inbox}")
    for folder in ("commits", "verdicts", "payloads", "staged"):
        mine = [name for name in ours if name.startswith(f"{folder}/")]
        if len(mine) > most[folder]:
            raise BrokenPromiseError(f"files are left over: {mine}")
