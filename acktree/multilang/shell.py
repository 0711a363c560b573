"""Spouts and bolts that are child processes in any language.

Rules of this file
------------------
1. The child of a spout lives in the driver, as every spout does, from ``open`` to ``close``. Each task of a
   bolt has a child, which lives longer than the worker: a keeper has it between two micro-batches.
2. A child that dies, is silent for too long or breaks the protocol is ended. The open messages of a spout are
   lost, the open tuples of a bolt fail, and a new child is started for the next ones.
3. A bolt's micro-batch ends with a heartbeat: what the child wrote before its answer belongs to it. What is
   open then is held, and may be acked in a later micro-batch.
4. The children of a run end with it: its driver says so to each keeper of its machine. On other machines of a
   cluster they end with the executor, or when nobody has called them for some time.
5. A child is given back with a version, which the bolt remembers. If the remembered one is another (the
   micro-batch runs again, or another machine had the task), there is a new child, and held tuples fail.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from acktree import (
    Bolt,
    Config,
    ConfigError,
    ConnectorError,
    ExecuteTimeoutError,
    Failure,
    KeyValueState,
    MisuseError,
    OutputCollector,
    Outputs,
    Spout,
    SpoutOutputCollector,
    TaskContext,
    Tuple,
)
from acktree.multilang import keeper
from acktree.multilang.child import Child, SubprocessError
from acktree.multilang.framing import UnwritableError, framed
from acktree.multilang.hosts import BoltHost, SpoutHost
from acktree.multilang.program import Program, absolute, has_form
from acktree.multilang.protocol import BoltProtocol, Emit, State, Synced

__all__ = ["ShellBolt", "ShellSpout", "SubprocessError"]


class _JsonId(NamedTuple):
    """A message id that is a list or a dict of JSON, which cannot be hashed."""

    text: str


def _begin(host: SpoutHost | BoltHost, child: Child, set_up: Mapping[str, Any]) -> None:
    """Give a new child its set-up, and wait for the answer."""
    host.carry_out(host.protocol.begin({**set_up, "pidDir": child.pid_folder}))
    child.answer_is_due()
    while host.protocol.state is not State.READY:
        host.take(child.receive())


def _broken(child: Child, error: Exception) -> SubprocessError:
    """End a child for an error; the error to report."""
    if isinstance(error, SubprocessError):
        return error
    what = error.what if isinstance(error, MisuseError) else f"{type(error).__name__}: {error}"
    return child.broken(f"broke the protocol: {what}")


class _Shell:
    """A component that is a program: what is known of it before its child runs."""

    _program: Program

    def tell_place(self, setting: Mapping[str, Any]) -> None:
        """Say what the child is told of streams, sources and groupings, as Storm's set-up describes them."""
        self._program = replace(self._program, setting=setting)

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002  # of every check
        """See whether the command is there, before anything runs.

        Raises:
            ConfigError: It is not, or may not be executed.
        """
        self._program.check()


class ShellSpout(_Shell, Spout):
    """A spout that is a program in any language; it speaks Storm's multilang protocol on stdin and stdout.

    Args:
        command: The program and its arguments. No shell is used.
        outputs: The streams, as of every spout.
        resources: The working folder of the child. None: that of this process.
        env: Variables of the child's environment, over those of this process.
        settings: Settings that the child gets in ``conf``, over the topology's.
        serializer: How messages are written: "json" or "msgpack". msgpack needs ``acktree[msgpack]``, and has
            bytes, too.
        subprocess_timeout_secs: How long the child may be silent while a command is not answered.
        metrics: The kinds of the child's metrics by name: counter, gauge, meter, timer, histogram. Those that
            are not named are counters.

    Raises:
        ConfigError: The command is empty or no list of texts, there is no such folder, serializer or kind.
    """

    def __init__(
        self,
        command: Sequence[str],
        outputs: Outputs,
        *,
        resources: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        serializer: str = "json",
        subprocess_timeout_secs: float = 30,
        metrics: Mapping[str, str] | None = None,
    ) -> None:
        self.outputs = outputs
        self._program = Program(
            "ShellSpout", tuple(command) if isinstance(command, list) else command, absolute(resources),
            env=dict(env or {}), settings={} if settings is None else settings, serializer=serializer,
            timeout_secs=subprocess_timeout_secs, metrics=dict(metrics or {}),
        )  # fmt: skip
        self._child: Child | None = None
        self._is_active = False

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self._context, self._collector = context, collector
        self._set_up = self._program.set_up(self.outputs, config, context)
        self._start()

    def activate(self) -> None:
        self._is_active = True
        self._command("activate")

    def deactivate(self) -> None:
        self._is_active = False
        self._command("deactivate")

    def next_tuple(self) -> None:
        self._command("next")

    def ack(self, message_id: object) -> None:
        self._command("ack", message_id)

    def fail(self, message_id: object, failure: Failure) -> None:  # noqa: ARG002  # the protocol has no reason
        self._command("fail", message_id)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _start(self) -> None:
        """Start a child and wait for its answer to the set-up."""
        self._host = _SpoutHost(self._collector, self._context, self._set_up["context"], self._write)
        self._host.metrics = self._program.metrics
        with self._ending_child():
            self._child = self._program.start(self._set_up)
            _begin(self._host, self._child, self._set_up)
            if self._is_active:
                self._tell("activate")

    def _command(self, name: str, message_id: object = "") -> None:
        """Give the child a command, and do all that it says up to its sync."""
        if self._child is None:
            self._start()
        with self._ending_child():
            self._tell(name, json.loads(message_id.text) if isinstance(message_id, _JsonId) else message_id)

    def _tell(self, name: str, message_id: object = "") -> None:
        self._host.command(name, message_id)
        assert self._child is not None  # for mypy
        self._child.answer_is_due()
        while self._host.protocol.state is not State.READY:
            self._host.take(self._child.receive())

    def _write(self, message: object) -> None:
        assert self._child is not None  # for mypy
        self._child.write(message)

    @contextmanager
    def _ending_child(self) -> Iterator[None]:
        """While this is entered, an exception ends the child: its open messages are lost."""
        try:
            yield
        except Exception as error:
            child, self._child = self._child, None
            if child is None:
                raise ConfigError(*error.args) if isinstance(error, SubprocessError) else error from error
            self._collector.lost()
            broken = _broken(child, error)
            raise ConnectorError(broken.what, broken.where, broken.fix, can_retry=True) from error


class _SpoutHost(SpoutHost):
    """The host of a child: ids of its messages may be any JSON."""

    def send(self, emit: Emit) -> None:
        if isinstance(emit.message_id, list | dict):
            emit = emit._replace(message_id=_JsonId(json.dumps(emit.message_id)))
        super().send(emit)


class ShellBolt(_Shell, Bolt):
    """A bolt that is a program in any language; it speaks Storm's multilang protocol on stdin and stdout.

    Each task has one child. It is started at the first tuple or tick, and serves the micro-batches that
    follow. If it dies, is silent for too long or breaks the protocol, its open tuples fail with the reason,
    and a new one is started for the next tuple.

    Args:
        command: The program and its arguments. No shell is used.
        outputs: The streams, as of every bolt.
        resources: The working folder of the child. None: that of this process.
        env: Variables of the child's environment, over those of this process.
        settings: Settings that the child gets in ``conf``, over the topology's.
        serializer: How messages are written: "json" or "msgpack". msgpack needs ``acktree[msgpack]``, and has
            bytes, too.
        max_pending: How many tuples may wait to be read by the child before ``execute`` waits.
        subprocess_timeout_secs: How long the child may be silent while an answer is due.
        linger_secs: How long the end of a micro-batch waits for acks of a child that answers later.
        metrics: The kinds of the child's metrics by name: counter, gauge, meter, timer, histogram. Those that
            are not named are counters.
        tick_secs: As of every :class:`Bolt`.

    Raises:
        ConfigError: The command is empty or no list of texts, there is no such folder, serializer or kind.
    """

    remembers = ("_given", "_held", "_version")
    shown_memory = ("open tuples",)
    remembers_per_task = True

    def __init__(
        self,
        command: Sequence[str],
        outputs: Outputs = (),
        *,
        resources: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        serializer: str = "json",
        max_pending: int = 100,
        subprocess_timeout_secs: float = 30,
        linger_secs: float = 0,
        metrics: Mapping[str, str] | None = None,
        tick_secs: float | None = None,
    ) -> None:
        self.outputs, self.tick_secs = outputs, tick_secs
        self._program = Program(
            "ShellBolt", tuple(command) if isinstance(command, list) else command, absolute(resources),
            env=dict(env or {}), settings={} if settings is None else settings, serializer=serializer,
            timeout_secs=subprocess_timeout_secs, metrics=dict(metrics or {}),
        )  # fmt: skip
        numbers: list[tuple[str, object, int]] = [
            ("max_pending", max_pending, 1),
            ("linger_secs", linger_secs, 0),
        ]
        for name, value, least in numbers:
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                what = f"{name}={value!r} is not a number of at least {least}"
                raise ConfigError(what, f"ShellBolt({name}=...)", f"give a number of at least {least}")
        self._max_pending, self._linger_secs = max_pending, linger_secs
        self._turn: _Turn | None = None

    def run_ended(self, run_id: str) -> None:
        """Called in the driver's process when the run is over: its children on this machine end."""
        keeper.end_run(run_id)

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        self._given, self._version = 0, ""
        self._held: KeyValueState[str, Tuple] = KeyValueState()
        set_up = self._program.set_up(self.outputs, config, context)
        self._turn = _Turn(self._program, set_up, context, collector)
        self._turn.most_pending = self._max_pending

    def execute(self, tup: Tuple) -> None:
        turn = self._turn
        assert turn is not None  # prepare was called
        if turn.child is None:
            turn.begin(self._held, self._given, self._version)
        turn.execute(tup)

    def tick(self, tup: Tuple) -> None:
        self.execute(tup)

    def flush(self, collector: OutputCollector) -> None:  # noqa: ARG002  # it is prepare's
        turn = self._turn
        assert turn is not None  # prepare was called
        if not turn.is_begun:
            return
        version = turn.finish(self._linger_secs)
        for name in [name for name in self._held if name not in turn.open]:
            del self._held[name]
        for name, tup in turn.open.items():
            if name not in self._held and not tup.is_tick:
                self._held[name] = tup
        self._given, self._version = turn.given, version

    def cleanup(self) -> None:
        if self._turn is not None:
            self._turn.abandon()


class _Turn:
    """A task's use of its child in one micro-batch.

    Attributes:
        child: The child; None before the first tuple, and after its end.
        is_begun: Whether a child was asked for.
        open: The open tuples by id.
        given: How many ids were given.
    """

    def __init__(
        self,
        program: Program,
        set_up: Mapping[str, Any],
        context: TaskContext,
        collector: OutputCollector,
    ) -> None:
        self._program, self._set_up = program, set_up
        self._context, self._collector = context, collector
        self._error: Exception | None = None
        self._host: BoltHost | None = None
        self.child: Child | None = None
        self.is_begun = False
        self.open: dict[str, Tuple] = {}
        self.given = 0
        self.most_pending = 100

    def begin(self, held: Mapping[str, Tuple], given: int, version: str) -> None:
        """Get the task's child, or a new one.

        Args:
            held: Open tuples of earlier micro-batches.
            given: How many ids were given before this micro-batch.
            version: What the child was given back with.

        Raises:
            SubprocessError: No child begins. Until the micro-batch ends no other one is tried.
        """
        if self._error is not None:
            raise self._error
        if not self.is_begun:
            self.is_begun, self.given, self.open = True, given, dict(held)
        try:
            self._begin(version)
        except Exception as error:
            self._error = error if self.child is None else _broken(self.child, error)
            self.child = None
            self._fail_open(self._error)
            raise self._error from error

    def _begin(self, version: str) -> None:
        context, set_up = self._context, self._set_up
        self.child = child = self._program.start(
            set_up, name=f"{context.component_id} {context.task_id}", run_id=context.run_id, version=version,
            mark=framed(set_up).decode(), most_pending=self.most_pending,
        )  # fmt: skip
        self._host = host = BoltHost(self._collector, context, set_up["context"], child.write)
        host.metrics, host.unclosed = self._program.metrics, self.open
        if child.is_new:
            gone = self._gone(child)
            if self._fail_open(gone) or child.death:
                self._collector.report_error(gone)
            host.protocol = BoltProtocol(self.open, self.given)
            _begin(host, child, set_up)
        else:
            host.protocol = BoltProtocol(self.open, self.given, State.READY)

    def execute(self, tup: Tuple) -> None:
        """Give the child a tuple, and do what it has said meanwhile."""
        assert self._host is not None  # begin returned
        assert self.child is not None
        host, child = self._host, self.child
        try:
            host.execute(tup)
            for message in child.arrived():
                host.take(message)
            if tup.attempt > 1:  # one at a time, so that the one that kills the child is found
                self._await_sync()
        except UnwritableError as error:  # it was not written
            del self.open[str(host.protocol.given)]
            raise _unwritable(tup, child, error) from error
        except ExecuteTimeoutError as error:  # acktree fails this tuple
            self.open.pop(str(host.protocol.given), None)
            self._fail(error)
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the child's
            self._fail(error)

    def finish(self, linger_secs: float) -> str:
        """Wait until the child has answered all that it answers now, and give it back.

        Returns:
            The version that it was given back with.
        """
        host, child = self._host, self.child
        if host is None or child is None:
            return ""
        try:
            self._await_sync()
            for message in child.receive_within(linger_secs if self.open else 0):
                host.take(message)
                if not self.open:
                    break
            for message in child.arrived():
                host.take(message)
            child.finish_writing()
            version = os.urandom(8).hex()
            child.give_back(version)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the child's
            self._fail(error)
            return ""
        self.child, self.given = None, host.protocol.given
        return version

    def abandon(self) -> None:
        """Let a child that was not given back be killed."""
        if self.child is not None:
            self.child.abandon()

    def _await_sync(self) -> None:
        assert self._host is not None  # begin returned
        assert self.child is not None
        host, child = self._host, self.child
        host.carry_out(host.protocol.heartbeat())
        child.answer_is_due()
        is_synced = False
        while not is_synced:
            instructions = host.protocol.receive(child.receive())
            host.carry_out(instructions)
            is_synced = any(isinstance(each, Synced) for each in instructions)

    def _fail(self, error: Exception) -> None:
        """End the child for an error, report it, and fail its open tuples."""
        assert self._host is not None  # begin returned
        assert self.child is not None
        broken = _broken(self.child, error)
        self.given = self._host.protocol.given
        self.child = None
        self._fail_open(broken)
        self._collector.report_error(broken)

    def _fail_open(self, error: Exception) -> bool:
        """Fail the open tuples; whether there are any."""
        tuples = [tup for tup in self.open.values() if not tup.is_tick]
        self.open.clear()
        for tup in tuples:
            self._collector.fail(tup, exception=error)
        return bool(tuples)

    def _gone(self, child: Child) -> SubprocessError:
        """Why an earlier child acks nothing any more."""
        where = f"component {self._context.component_id!r}, task {self._context.task_id}"
        how = (
            child.death
            or "its run or keeper ended, another machine had the task, or its micro-batch ran again"
        )
        what = f"the child process that this task had is gone: {how}"
        return SubprocessError(
            what, where, "ack tuples before the micro-batch ends, or mend what ends the child"
        )


def _unwritable(tup: Tuple, child: Child, error: UnwritableError) -> MisuseError:
    """The error for a tuple with a value that the child's format does not have."""
    form = child.format
    field, value = next((pair for pair in tup.as_dict().items() if not has_form(form, pair[1])), ("?", None))
    what = f"field {field!r} is {type(value).__name__}, which {form.name} does not have ({error})"
    return MisuseError(what, child.where, f"emit {form.values} to a child process")
