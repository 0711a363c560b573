"""Carries out the instructions of a protocol, by the collector of a spout or bolt of acktree.

A host knows no transport: ``deliver`` gives a message to the component, wherever it lives, and whoever
receives a message of the component calls ``take``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from acktree import MisuseError, OutputCollector, SpoutOutputCollector, TaskContext, Tuple
from acktree.logs.loggers import logger
from acktree.multilang import protocol
from acktree.multilang.protocol import Broken, Emit, Instructions, State
from acktree.multilang.told import told_error

__all__ = ["METRICS", "BoltHost", "SpoutHost", "tasks_of"]

_LEVELS: Final = (logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
"""Python's levels, by Storm's."""
METRICS: Final = {"counter": "inc", "gauge": "set", "histogram": "update", "meter": "mark", "timer": "update"}
"""Kinds of metrics, and what a value is given to."""


class _Host:
    """What the hosts of bolts and spouts have in common.

    Args:
        collector: What emits, acks and fails.
        context: The task's context.
        setting: The context of multilang's set-up, of which the streams are read.
        deliver: Gives a message to the component.

    Attributes:
        raised: What the component raised, while it is handled: the cause of errors and failures.
        has_reported: Whether an error was reported since this was set to False.
        metrics: The kinds of its metrics by name; those that are not named are counters.
        warned: What the component was warned of: once each.
    """

    def __init__(
        self,
        collector: Any,  # noqa: ANN401  # of either kind
        context: TaskContext,
        setting: Mapping[str, Any],
        deliver: Callable[[Any], None],
    ) -> None:
        self.raised: Exception | None = None
        self.has_reported = False
        self.metrics: Mapping[str, str] = {}
        self._collector, self._context, self._deliver = collector, context, deliver
        self._streams: Collection[str] = setting["streams"]
        self._setting = setting
        self._logger = logger(f"pystorm.component.{context.component_id}")
        self._where = f"component {context.component_id!r}, task {context.task_id}"
        self.warned: set[str] = set()
        self._methods: dict[type, Callable[[Any], None]] = {
            protocol.Write: lambda instruction: deliver(instruction.message),
            protocol.Emit: self.emit,
            protocol.Log: lambda instruction: self._logger.log(_LEVELS[instruction.level], instruction.text),
            protocol.Report: lambda instruction: self.report(instruction.text, instruction.cause),
            protocol.Ignored: lambda instruction: collector.report_error(self._misuse(instruction.text)),
            protocol.Metric: self._count,
            protocol.Synced: lambda _: None,
            protocol.Ready: lambda _: None,
            protocol.Broken: self.broken,
        }

    def carry_out(self, instructions: Instructions) -> None:
        """Do what a protocol says, in order."""
        for instruction in instructions:
            self._methods[type(instruction)](instruction)

    def emit(self, emit: Emit) -> None:
        """Emit a tuple; answer with its tasks if the component waits for them."""
        if emit.stream in self._streams:
            self.send(emit)
        elif emit.stream == "default":  # Storm's worker would die; programs with `outputs = []` do it
            self.warn_once("emits on its default stream, which it does not declare: its tuples are dropped")
        else:
            what = f"emitted on stream {emit.stream!r}, which it does not declare"
            fix = f'declare Stream(fields=[...], name="{emit.stream}") in its outputs'
            raise self._misuse(what, f"{fix}; of a ShellBolt outputs={{{emit.stream!r}: [...]}}")
        if emit.wants_tasks:
            self._deliver(tasks_of(self._setting, emit.stream))

    def send(self, emit: Emit) -> None:
        """Emit a tuple on a stream that the component declares."""
        raise NotImplementedError

    def report(self, text: str, cause: BaseException | None = None) -> None:
        """Report an error of the component: its exception, or what its text tells."""
        self.has_reported = True
        error = cause or told_error(text, self._where) or self._misuse(text, "see the text")
        self._collector.report_error(error)

    def broken(self, instruction: Broken) -> None:
        """Raise what broke the protocol, in the component's own call."""
        raise self._misuse(instruction.reason)

    def _misuse(self, what: str, fix: str = "ack or fail each tuple once, after its emits") -> MisuseError:
        return MisuseError(what, self._where, fix)

    def warn_once(self, what: str, why: str = "") -> None:
        """Warn of what the component does, and why that is refused; once of each."""
        if what not in self.warned:
            self.warned.add(what)
            self._logger.warning("component %r %s%s", self._context.component_id, what, why)

    def _count(self, metric: protocol.Metric) -> None:
        kind = self.metrics.get(metric.name, "counter")
        instrument = getattr(self._context, f"register_{kind}")(metric.name)
        getattr(instrument, METRICS[kind])(1 if metric.params is None else metric.params)


class BoltHost(_Host):
    """The host of a bolt, for one micro-batch.

    Attributes:
        unclosed: The open tuples by id.
        protocol: The conversation.
    """

    def __init__(
        self,
        collector: OutputCollector,
        context: TaskContext,
        setting: Mapping[str, Any],
        deliver: Callable[[Any], None],
    ) -> None:
        super().__init__(collector, context, setting, deliver)
        self.unclosed: dict[str, Tuple] = {}
        self.protocol = protocol.BoltProtocol(self.unclosed)
        self._methods |= {
            protocol.Ack: lambda instruction: collector.ack(instruction.tup),
            protocol.Fail: self._fail,
        }

    def go_on(self, held: Mapping[str, Tuple], given: int) -> None:
        """Go on with a component that has answered its set-up.

        Args:
            held: Open tuples of earlier micro-batches.
            given: How many ids were given.
        """
        self.unclosed.update(held)
        self.protocol = protocol.BoltProtocol(self.unclosed, given, State.READY)

    def execute(self, tup: Tuple) -> None:
        """Give the component a tuple."""
        self.carry_out(self.protocol.execute(tup, tup.component, tup.stream, tup.task_id, tup.values))

    def take(self, message: Any) -> None:  # noqa: ANN401  # whatever it sends
        """Take a message of the component."""
        instructions = self.protocol.receive(message)
        try:
            self.carry_out(instructions)
        except MisuseError:
            for each in instructions:
                if isinstance(each, protocol.Ack | protocol.Fail):  # it was refused: the tuple is open still
                    self.unclosed[message["id"]] = each.tup
            raise

    def is_closed(self, name: object) -> bool:
        """Whether a tuple was given to the component, and is acked or failed."""
        return self.protocol.is_closed(name)

    def broken(self, instruction: Broken) -> None:
        self.protocol = protocol.BoltProtocol(self.unclosed, self.protocol.given, State.READY)
        super().broken(instruction)

    def send(self, emit: Emit) -> None:
        anchors = emit.anchors
        anchor = anchors[0] if len(anchors) == 1 else anchors or None
        if emit.task is None:
            self._collector.emit(emit.values, anchors=anchor, stream=emit.stream)
        else:
            self._collector.emit_direct(emit.task, emit.values, anchors=anchor, stream=emit.stream)

    def _fail(self, instruction: protocol.Fail) -> None:
        reason = "" if self.raised else f"component {self._context.component_id!r} failed it"
        self._collector.fail(instruction.tup, reason, exception=self.raised)


class SpoutHost(_Host):
    """The host of a spout, for a run.

    Attributes:
        protocol: The conversation.
        handles_verdicts: Whether the component has an ``ack`` or ``fail`` of its own.
    """

    def __init__(
        self,
        collector: SpoutOutputCollector,
        context: TaskContext,
        setting: Mapping[str, Any],
        deliver: Callable[[Any], None],
    ) -> None:
        super().__init__(collector, context, setting, deliver)
        self.protocol = protocol.SpoutProtocol()
        self.handles_verdicts = False

    def command(self, name: str, message_id: object = "", **more: object) -> None:
        """Give the component a command; it has said all when this returns."""
        self.carry_out(self.protocol.command(name, message_id, **more))

    def take(self, message: object) -> None:
        """Take a message of the component."""
        self.carry_out(self.protocol.receive(message))

    def broken(self, instruction: Broken) -> None:
        self.protocol = protocol.SpoutProtocol()
        self.protocol.state = State.READY
        super().broken(instruction)

    def send(self, emit: Emit) -> None:
        if emit.message_id is None and self.handles_verdicts:
            self.warn_once("emits a tuple without tup_id, so its ack() and fail() are not called for it")
        about = {"message_id": emit.message_id, "stream": emit.stream, "attempt": emit.attempt}
        if emit.task is None:
            self._collector.emit(emit.values, **about)
        else:
            self._collector.emit_direct(emit.task, emit.values, **about)


def tasks_of(setting: Mapping[str, Any], stream: str) -> list[int]:
    """The tasks that a tuple of a stream goes to, where that does not depend on the tuple; else none.

    Args:
        setting: The context of multilang's set-up.
        stream: The stream.
    """
    tasks: dict[str, list[int]] = {}
    for task, component in setting["task->component"].items():
        tasks.setdefault(component, []).append(int(task))
    found: list[int] = []
    for component, grouping in setting["stream->target->grouping"].get(stream, {}).items():
        targets = sorted(tasks[component])
        is_global = grouping["type"] == "FIELDS" and not grouping["fields"]
        if grouping["type"] != "ALL" and not is_global and len(targets) > 1:
            return []
        found += targets[:1] if is_global else targets
    return sorted(found)
