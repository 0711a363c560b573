"""Components of pystorm's kind in acktree's own process: messages are function calls.

A bolt object of acktree lives for one micro-batch, and Spark may run a task's next micro-batch in another
process. A component lives longer, as in Storm, and its data go with the checkpoint:

Rules of this file
------------------
1. In each process there is one component object for a task. It is made, set up and initialized at the first
   tuple or tick there.
2. After the last tuple of a micro-batch all attributes that are data (:mod:`acktree.pystorm.attributes`) are
   saved, in one pickle: what two attributes share they share afterwards.
3. What is saved has a version, drawn at random, which the object notes. If the object does not have the
   version of the memory (another process had the task, or the micro-batch runs again), the saved data replace
   its own; opaque attributes stay as they are in this process.
4. While the memory is empty or of an earlier run, an object that is there belongs to another run, or to a
   micro-batch that was not committed: a new one is made. A run is known by a name that its bolt has.
5. What a component emits in ``initialize`` is emitted once for a task: not by the objects made later.
6. What raises before the first tuple fails all tuples of the task in the micro-batch. It is logged once.
7. If the data cannot be saved, all tuples of the task in the micro-batch fail, also those that were acked.
8. Each exception of the component is reported, whatever its class does with it.

A spout lives in the driver for the whole run, so nothing of it is saved.
"""

from __future__ import annotations

import copy
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import Any, Final

from acktree import (
    Bolt,
    Config,
    ConfigError,
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
from acktree.logs.loggers import logger
from acktree.multilang.hosts import BoltHost, SpoutHost
from acktree.multilang.protocol import State
from acktree.pystorm import bolt as bolts
from acktree.pystorm import spout as spouts
from acktree.pystorm.attributes import OF_CLASS, Attributes, names_remembered
from acktree.pystorm.bodies import refuse_bodies_that_do_not_run
from acktree.pystorm.component import Component
from acktree.pystorm.component import Tuple as ComponentTuple
from acktree.pystorm.holders import CONTAINERS
from acktree.pystorm.serializers.serializer import Serializer
from acktree.system.stopped_by import pass_on
from acktree.texts import error_text

__all__ = ["HostedBolt", "HostedSpout", "Live", "Program", "tuple_of"]

_OF_CHILDREN: Final = ("run", "read_handshake", "_batch_entry", "_batch_entry_run")
"""Methods that are called in a child process alone."""


class Calls(Serializer):
    """The messages of one hosted component: function calls."""

    hosts_component = True

    def __init__(self) -> None:
        self.input_stream = self.output_stream = None
        self.inbox: deque[Any] = deque()
        self.delivered: Any = None
        self.send: Callable[[Any], None] = lambda _: None
        self.is_closed_there: Callable[[Any], bool] = lambda _: False

    def take(self, tup_id: Any) -> None:
        self.taken = tup_id

    def is_closed(self, tup_id: Any) -> bool:
        return self.is_closed_there(tup_id)

    def read_message(self) -> Any:
        if self.inbox:
            return self.inbox.popleft()
        raise MisuseError(
            "a component reads a message, and there is none", "read_command() or read_task_ids()",
            "let acktree call it with each tuple; to read messages itself it must be a child process",
        )  # fmt: skip

    def send_message(self, msg_dict: Mapping[str, Any]) -> bool:
        self.send(msg_dict)
        return True


@dataclass(frozen=True)
class Program:
    """A component class, and what it is told of its place.

    Attributes:
        kind: The class.
        conf: The settings that it is given, over those of the run.
        setting: The context that it is given, but for the ids of tasks.
        before_import: A module and a function of it, which is called in each process before the class is
            imported there; None for none.
    """

    kind: type
    conf: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    before_import: tuple[str, str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """By the name of the class. One of the main program or of a function has none, and goes as it is."""
        module, name = self.kind.__module__, self.kind.__qualname__
        has_no_name = module == "__main__" or "<locals>" in name
        kind = self.kind if has_no_name else (module, name)
        return _program, (self.before_import, kind, dict(self.conf), dict(self.setting))

    def make(self, calls: Calls) -> Any:
        """A new component; containers of its classes become its own."""
        component = self.kind(serializer=calls)
        if component.serializer is not calls:
            name = self.kind.__name__
            what = f"{name}() gave an object whose messages go elsewhere: mostly the object of another task"
            fix = "let each call make an object of its own, and pass serializer on"
            raise ConfigError(what, f"class {name}", fix)
        own = vars(component)
        has = set(own)
        for kind in reversed(self.kind.__mro__):
            if kind.__module__.partition(".")[0] not in {"acktree", "builtins"}:
                for name, value in [*vars(kind).items()]:
                    is_of_class = name in OF_CLASS or (name.startswith("__") and name.endswith("__"))
                    if isinstance(value, CONTAINERS) and not is_of_class and name not in has:
                        own[name] = _own(value)
        return component

    def context(self, context: TaskContext) -> dict[str, Any]:
        """The context of multilang's set-up."""
        numbered = {str(task): name for name, tasks in context.tasks.items() for task in tasks}
        own = {"taskid": context.task_id, "componentid": context.component_id}
        return {**copy.deepcopy(dict(self.setting)), "task->component": numbered, **own}

    def settings(self, config: Config, context: TaskContext) -> dict[str, Any]:
        """The settings of multilang's set-up."""
        return {**config.to_mapping(), **self.conf, "topology.name": context.topology_name}


def _own(container: Any) -> Any:
    """A copy of a container. What it holds is copied, too, if all of it can be: not a lock or a module."""
    try:
        return copy.deepcopy(container)
    except Exception:  # noqa: BLE001  # user code runs in here
        return copy.copy(container)


def _program(
    before_import: tuple[str, str] | None,
    kind: Any,
    conf: dict[str, Any],
    setting: dict[str, Any],
) -> Program:
    if before_import is not None:
        module, function = before_import
        getattr(import_module(module), function)()
    if isinstance(kind, tuple):
        module, name = kind
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        kind = found
    return Program(kind, conf, setting, before_import)


class Live:
    """A component object in this process, and what of it is data.

    Attributes:
        component: The object.
        attributes: Its attributes.
        setting: The context that it was given, as it was given.
        run: The name of the run that it was made in.
        version: The version of its data; None while it is used.
        warned: What the component was warned of: once each.
    """

    def __init__(self, program: Program, config: Config, context: TaskContext, run: bytes = b"") -> None:
        forward_records()
        self.run = run
        self.setting = program.context(context)
        self.calls = Calls()
        self.component = program.make(self.calls)
        self.version: bytes | None = None
        self.warned: set[str] = set()
        self._handshake = program.settings(config, context), program.context(context)
        self.component._setup_component(*self._handshake)  # noqa: SLF001  # what run() calls
        only = names_remembered(program.kind)
        self.attributes = Attributes(self.component, only, context.component_id, context.task_id)
        for name in _OF_CHILDREN:
            own = getattr(program.kind, name, None)
            if own is not None and not getattr(own, "__module__", "").startswith("acktree."):
                self.attributes.warn(
                    f"{name}()", "of its class is not called in acktree's own process. Move what it does to "
                    'initialize, or run it as a child process: config = {"acktree.process": True}',
                )  # fmt: skip

    def initialize(self, take: Callable[[Any], None]) -> None:
        """Call ``initialize``; what it sends goes to ``take``."""
        self.calls.send = take
        self.component.initialize(*self._handshake)

    def deliver(self, message: Any) -> None:
        """Deliver a message, and let the component do what it says."""
        self.calls.inbox.append(message)
        if type(message) is not list:
            self.calls.delivered = message
            self.component._run()  # noqa: SLF001  # what run() calls

    def stop(self) -> None:
        """Let the component be as after ``_run()``, which did not return."""
        self.calls.inbox.clear()
        self.component._current_tups = []  # noqa: SLF001  # pystorm's


class _Place:
    """Where a process keeps the component of a task."""

    def __init__(self) -> None:
        self.live: Live | None = None


class HostedBolt(Bolt):
    """A bolt that is a component class of pystorm's kind.

    Attributes:
        shown_memory: What it remembers, in words for descriptions.
    """

    remembers = ("_given", "_held", "_kept")
    remembers_per_task = True

    def __init__(self, program: Program, outputs: Outputs, tick_secs: float | None = None) -> None:
        only = names_remembered(program.kind)  # refused here, before anything runs
        self.shown_memory = ("its attributes",) if only is None else tuple(sorted(only))
        refuse_bodies_that_do_not_run(program.kind)
        self.outputs, self.tick_secs = outputs, tick_secs
        self.__name__ = program.kind.__name__
        self._program = program
        self._host: BoltHost | None = None
        self._live: Any = None
        self._begun: Any = None
        self._run = os.urandom(8)
        self.unsaved: BaseException | None = None
        """Why nothing of this micro-batch is saved."""
        self._error: BaseException | None = None
        self._raised_at: TracebackType | None = None

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        self._given = 0
        self._held: KeyValueState[str, Tuple] = KeyValueState()
        self._kept: KeyValueState[str, bytes] = KeyValueState()
        self._begun = (config, context, collector)

    def execute(self, tup: Tuple) -> Awaitable[None] | None:
        host = self._host or self._begin()
        try:
            host.execute(tup)
        except BaseException as error:
            if isinstance(error, ExecuteTimeoutError) or not isinstance(error, Exception):
                host.unclosed.pop(str(host.protocol.given), None)
                self._live.stop()
                raise  # acktree fails the tuple, whatever the component would do
            calls = self._live.calls
            tups = self._live.component._current_tups  # noqa: SLF001  # pystorm's
            if not tups and calls.taken != calls.delivered["id"]:  # the tuple was not current yet
                tups = [tuple_of(calls.delivered)]
            self._handle(host, error, tups)
        return None

    def tick(self, tup: Tuple) -> Awaitable[None] | None:
        return self.execute(tup)

    def flush(self, collector: OutputCollector) -> None:  # noqa: ARG002  # it is prepare's
        host, live = self._host, self._live
        if host is None:
            return
        for name in [name for name in self._held if name not in host.unclosed]:
            del self._held[name]
        for name, tup in host.unclosed.items():
            if name not in self._held and not tup.is_tick:
                self._held[name] = tup
        self._given = host.protocol.given
        try:
            data = live.attributes.data()
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on(error)
            self.unsaved = self._unsaved(error)
            self._kept["data"] = _Unsaved(self.unsaved)  # type: ignore[assignment]  # it is never read
            return
        saved = {"data": data, "made": live.attributes.made, "run": self._run}
        if any(self._kept.get(name) != value for name, value in saved.items()):
            self._kept.update(saved, version=os.urandom(8))
        live.version = self._kept["version"]

    def _begin(self) -> BoltHost:
        """Get the component of this process. What fails once fails for the whole micro-batch."""
        if self._error is not None:
            raise self._error.with_traceback(self._raised_at)  # as it was: else it grows with each tuple
        try:
            return self._begin_once()
        except BaseException as error:
            pass_on(error)
            self._error, self._raised_at = error, error.__traceback__
            context = self._begun[1]
            log = logger(f"pystorm.component.{context.component_id}")
            why = error_text(error)
            log.exception(
                "component %r, task %d cannot begin, so its tuples fail: %s",
                context.component_id, context.task_id, why,
            )  # fmt: skip
            raise

    def _begin_once(self) -> BoltHost:
        config, context, collector = self._begun
        place = self._place()
        version = self._kept.get("version")
        is_first = version is None or self._kept.get("run") != self._run
        live = place.live
        is_new = live is None or is_first or live.run != self._run
        if live is None or is_new:
            place.live = None
            live = Live(self._program, config, context, self._run)
        host = BoltHost(collector, context, live.setting, self._delivering(live))
        host.warned = live.warned
        take = self._taking(live, host)
        host.go_on(self._held, self._given)
        live.calls.is_closed_there, live.calls.taken = host.is_closed, None
        if is_new:
            live.initialize(take if version is None else _without_emits(take))
            live.attributes.note_made(is_first=is_first)
        live.calls.send = take
        if version is not None and live.version != version:
            live.attributes.restore(self._kept["data"], self._kept.get("made"), is_restart=is_first)
        if is_first:
            live.attributes.warn_of_opaque()
        live.version = None
        place.live = self._live = live
        self._host = host
        return host

    def _place(self) -> _Place:
        """Where this process keeps the component of this task."""
        context: TaskContext = self._begun[1]
        return context.cached(("component", context.task_id), _Place)

    def _delivering(self, live: Live) -> Callable[[Any], None]:
        """What delivers messages to the component."""
        return live.deliver

    def _taking(self, live: Live, host: BoltHost) -> Callable[[Any], None]:  # noqa: ARG002  # for those that override it
        """What takes messages of the component."""
        return host.take

    def _handle(self, host: BoltHost, error: Exception, tups: Sequence[ComponentTuple]) -> None:
        """Let the component do with an exception what its class says: report it, and fail its tuples."""
        live, component = self._live, self._live.component
        component._current_tups = tups  # noqa: SLF001  # pystorm's
        live.calls.inbox.clear()
        host.raised, host.has_reported = error, False
        try:
            component._handle_run_exception(error)  # noqa: SLF001  # what run() calls
        except BaseException as another:  # noqa: BLE001  # user code
            pass_on(another)
            if not host.has_reported:
                host.report("", error)
            if another is not error:
                host.report("", another)
            for tup in tups:
                if tup.id in host.unclosed:
                    host.take({"command": "fail", "id": tup.id})
        finally:
            if not host.has_reported:
                host.report("", error)
            host.raised = None
            live.stop()

    def _unsaved(self, error: BaseException) -> BaseException:
        if isinstance(error, MisuseError):
            return error
        context = self._begun[1]
        unsaved = MisuseError(
            f"the attributes of component {context.component_id!r} cannot be saved: {error_text(error)}",
            f"component {context.component_id!r}, task {context.task_id}: all tuples of the micro-batch fail",
            "mend what raises, mostly __getstate__ or __reduce__, or name the attributes to keep: "
            "remembers = [...] on the class",
        )
        unsaved.__cause__ = error
        return unsaved


class _Unsaved:
    """In the place of data that cannot be saved: what a micro-batch brought fails if its memory does."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        raise self._error


def tuple_of(message: Mapping[str, Any]) -> ComponentTuple:
    """A message as a tuple, where the component did not come to read it."""
    return ComponentTuple(
        message["id"], message["comp"], message["stream"], message["task"], tuple(message["tuple"])
    )


class HostedSpout(Spout):
    """A spout that is a component class of pystorm's kind."""

    def __init__(self, program: Program, outputs: Outputs) -> None:
        refuse_bodies_that_do_not_run(program.kind)
        self.outputs = outputs
        self.__name__ = program.kind.__name__
        self._program = program

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        program = self._program
        self._live = live = Live(program, config, context)
        self._host = host = SpoutHost(collector, context, live.setting, live.deliver)
        host.protocol.state = State.READY
        host.handles_verdicts = any(
            getattr(program.kind, name, None) is not getattr(spouts.Spout, name) for name in ("ack", "fail")
        )
        live.initialize(host.take)
        live.calls.send = host.take

    def next_tuple(self) -> None:
        self._command("next")

    def ack(self, message_id: object) -> None:
        self._command("ack", message_id)

    def fail(self, message_id: object, failure: Failure) -> None:
        self._command("fail", message_id, failure=failure)

    def activate(self) -> None:
        self._command("activate")

    def deactivate(self) -> None:
        self._command("deactivate")

    def _command(self, name: str, message_id: object = "", **more: object) -> None:
        """Give the component a command. What it raises is acktree's to report, unless its class does."""
        host, component = self._host, self._live.component
        try:
            host.command(name, message_id, **more)
        except Exception as error:
            self._live.calls.inbox.clear()
            host.protocol.state = State.READY
            if type(component)._handle_run_exception is Component._handle_run_exception:  # noqa: SLF001  # as above
                raise
            host.raised, host.has_reported = error, False
            try:
                component._handle_run_exception(error)  # noqa: SLF001  # as above
                if not host.has_reported:
                    host.report("", error)
            finally:
                host.raised = None


def tick_secs_of(kind: type, settings: Mapping[str, Any]) -> float | None:
    """How often a bolt class is ticked: its own interval, or the setting of its config."""
    if issubclass(kind, bolts.TicklessBatchingBolt):
        return kind.secs_between_batches
    secs = settings.get("topology.tick.tuple.freq.secs")
    return None if secs is None else float(secs)


def _without_emits(take: Callable[[Any], None]) -> Callable[[Any], None]:
    def take_others(message: Any) -> None:
        if message.get("command") != "emit":
            take(message)

    return take_others


class _ToAcktree(logging.Handler):
    """Hands records to acktree's logger, which prints them, while the application has set up no logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            logging.getLogger("acktree").handle(record)


def forward_records() -> None:
    """Let records of components go where acktree's own go. A second call does nothing."""
    logger = logging.getLogger("pystorm")
    if not any(isinstance(handler, _ToAcktree) for handler in logger.handlers):
        logger.addHandler(_ToAcktree())
