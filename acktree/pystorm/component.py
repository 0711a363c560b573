"""The base class of spouts and bolts: the handshake, messages, logging, and the loop of a child process.

Rules of this file
------------------
1. The names, defaults and messages are pystorm's, also of the attributes that begin with an underscore: its
   programs and its tests use them. The classes have no others, since a program may use any other name for its
   own: what acktree adds is a function, or belongs to the serializer, or its name begins with ``_acktree_``.
2. Making a component does nothing to the process. Only :meth:`Component.run`, which is the main loop of a
   child process, sets a signal handler, adds a handler to the root logger, and moves stdout.
3. A component that acktree hosts has a serializer whose messages are function calls. ``hosts_component`` is
   how it tells, and the only difference is what it would do to the process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import deque, namedtuple
from collections.abc import Mapping, Sequence
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from traceback import format_exc
from types import FrameType
from typing import Any, Final, NoReturn

from acktree.pystorm.exceptions import (
    ComponentTypeError,
    ComponentValueError,
    StormWentAwayError,
    UnsentMessageError,
)
from acktree.pystorm.serializers.json_serializer import JSONSerializer
from acktree.pystorm.serializers.msgpack_serializer import MsgpackSerializer
from acktree.pystorm.serializers.serializer import Serializer

_STORM_LOG_TRACE, _STORM_LOG_DEBUG, _STORM_LOG_INFO, _STORM_LOG_WARN, _STORM_LOG_ERROR = range(5)
_STORM_LOG_LEVELS: Final = {
    "trace": _STORM_LOG_TRACE,
    "debug": _STORM_LOG_DEBUG,
    "info": _STORM_LOG_INFO,
    "warn": _STORM_LOG_WARN,
    "warning": _STORM_LOG_WARN,
    "error": _STORM_LOG_ERROR,
    "critical": _STORM_LOG_ERROR,
}
_PYTHON_LOG_LEVELS: Final = {
    "critical": logging.CRITICAL,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}
_SERIALIZERS: Final = {"json": JSONSerializer, "msgpack": MsgpackSerializer}
_LOG_FILE: Final = "pystorm_{topology_name}_{component_name}_{task_id}_{pid}.log"
_LOGGERS: Final = "pystorm.component"

log = logging.getLogger(__name__)


Tuple = namedtuple("Tuple", "id component stream task values")  # noqa: PYI024  # its values are anything
Tuple.__doc__ = """A tuple that a bolt is given.

Attributes:
    id: Its id; a text.
    component: The component that emitted it.
    stream: Its stream.
    task: The task that emitted it.
    values: Its values: a tuple, and a named tuple where the fields are known.
"""


class StormHandler(logging.Handler):
    """Sends records to Storm, as log messages."""

    def __init__(self, serializer: Serializer) -> None:
        super().__init__()
        self.serializer = serializer

    def emit(self, record: logging.LogRecord) -> None:
        is_hosted_here = getattr(self.serializer, "hosts_component", False) is True
        if is_hosted_here and record.name.partition(".")[0] in {"acktree", "pystorm"}:
            return  # it is in acktree's log, where a message of the component becomes a record of such a name
        try:
            level = _STORM_LOG_LEVELS.get(record.levelname.lower(), _STORM_LOG_INFO)
            self.serializer.send_message({"command": "log", "msg": self.format(record), "level": level})
        except Exception:  # noqa: BLE001  # logging says what to do
            self.handleError(record)


class LogStream:
    """A stream whose lines are records of a logger."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger

    def write(self, message: str) -> None:
        """Log a text that is not blank."""
        if message.strip():
            self.logger.info(message)

    def flush(self) -> None:
        """Nothing waits."""


class Component:
    """What spouts and bolts have in common.

    Args:
        input_stream: Where messages come from. None: stdin.
        output_stream: Where messages go. None: stdout.
        rdb_signal: At which signal a child process opens remote_pdb, if that is installed. None: at none.
        serializer: "json" or "msgpack".

    Attributes:
        topology_name: Of the setting ``topology.name``.
        task_id: The number of the task.
        component_name: The component's id.
        debug: Of the setting ``topology.debug``.
        storm_conf: The settings.
        context: The component's place in the topology.
        pid: The id of the process.
        logger: The component's logger.
        exit_on_exception: Whether a child process ends at an exception.

    Raises:
        ValueError: There is no such serializer.
    """

    exit_on_exception = True

    def __init__(
        self,
        input_stream: Any = None,
        output_stream: Any = None,
        rdb_signal: str | int | None = "SIGUSR1",
        serializer: Any = "json",
    ) -> None:
        self.topology_name: str | None = None
        self.task_id: Any = None
        self.component_name: str | None = None
        self.debug: Any = None
        self.storm_conf: Any = None
        self.context: Any = None
        self.pid = os.getpid()
        self.logger: Any = None
        self._acktree_rdb_signal = rdb_signal
        self._pending_commands: deque[Any] = deque()
        self._pending_task_ids: deque[Any] = deque()
        self._reader_lock, self._writer_lock = threading.RLock(), threading.RLock()
        streams = input_stream or sys.stdin, output_stream or sys.stdout
        if isinstance(serializer, Serializer):
            self.serializer = serializer
        elif serializer in _SERIALIZERS:
            self.serializer = _SERIALIZERS[serializer](*streams, self._reader_lock, self._writer_lock)
        else:
            raise ComponentValueError(
                f"unknown serializer: {serializer!r}", f"{type(self).__name__}(serializer=...)",
                "it is 'json' or 'msgpack'",
            )  # fmt: skip

    @staticmethod
    def is_heartbeat(tup: Tuple) -> bool:
        """Whether a tuple is a heartbeat, which is answered with a sync."""
        return bool(tup.task == -1 and tup.stream == "__heartbeat")

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        """Called once before the first message: make attributes, open connections."""

    def _setup_component(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        """Take what the handshake brought, and set up logging."""
        self.topology_name = storm_conf.get("topology.name", "")
        self.task_id = context.get("taskid", "")
        name = context.get("componentid")
        if name is None:
            name = context.get("task->component", {}).get(str(self.task_id), "")
        self.component_name = name
        self.debug = storm_conf.get("topology.debug", False)
        self.storm_conf, self.context = storm_conf, context
        self.logger = logging.getLogger(f"{_LOGGERS}.{name}")
        named = str(storm_conf.get("pystorm.log.level", "info"))
        level = logging.DEBUG if self.debug else _PYTHON_LOG_LEVELS.get(named, logging.INFO)
        self.logger.setLevel(level)
        logging.getLogger("pystorm").setLevel(level)
        if not is_hosted(self):
            handler = _log_handler(self, storm_conf, named)
            handler.setLevel(level)
            logging.getLogger().addHandler(handler)

    def read_message(self) -> Any:
        """The next message, of either kind."""
        return self.serializer.read_message()

    def read_task_ids(self) -> list[int]:
        """The next list of task ids; commands that come before it wait."""
        if self._pending_task_ids:
            return list(self._pending_task_ids.popleft())
        while not isinstance(message := self.read_message(), list):
            self._pending_commands.append(message)
        return message

    def read_command(self) -> dict[str, Any]:
        """The next command or tuple; lists of task ids that come before it wait."""
        if self._pending_commands:
            return dict(self._pending_commands.popleft())
        while isinstance(message := self.read_message(), list):
            self._pending_task_ids.append(message)
        return message  # type: ignore[no-any-return]  # a dict: there is no other message

    def read_handshake(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read the set-up and answer it. Returns the settings and the context."""
        message = self.read_message()
        (Path(message["pidDir"]) / str(self.pid)).touch()
        self.send_message({"pid": self.pid})
        return message["conf"], message["context"]

    def send_message(self, message: Any) -> None:
        """Send a message. What is not a dict is logged, and not sent.

        Raises:
            UnsentMessageError: The serializer cannot write it, so it was not sent.
        """
        if not isinstance(message, dict):
            logger = self.logger or log
            logger.error("%s.%d sent what is not a dict: %r", self.component_name, self.pid, message)
        elif self.serializer.send_message(message) is False:
            raise UnsentMessageError(
                f"a message cannot be written: {message!r:.300}", f"component {self.component_name!r}",
                "emit texts, numbers, True, False, None, and lists and dicts of them",
            )  # fmt: skip

    def raise_exception(self, exception: BaseException, tup: object = None) -> None:
        """Report an exception; call it where it is handled. It does not fail the tuple."""
        during = f" while processing Tuple {tup!r}" if tup else ""
        text = f"Python {type(exception).__name__} raised{during}\n{format_exc()}"
        about = {"exception": exception} if is_hosted(self) else {}
        self.send_message({"command": "error", "msg": text, **about})
        self.send_message({"command": "sync"})

    def report_metric(self, name: str, value: object) -> None:
        """Count a metric of this component."""
        self.send_message({"command": "metrics", "name": name, "params": value})

    def log(self, message: object, level: str | None = None) -> None:
        """Log a text, whatever the level of the logger is.

        Args:
            message: Its text.
            level: trace, debug, info, warn, warning, error or critical; another or None: info.
        """
        storm_level = _STORM_LOG_LEVELS.get(level or "info", _STORM_LOG_INFO)
        self.send_message({"command": "log", "msg": str(message), "level": storm_level})

    def emit(
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        anchors: Sequence[Any] | None = None,
        direct_task: Any = None,
        need_task_ids: bool = False,
    ) -> list[Any] | None:
        """Emit a tuple.

        Args:
            tup: Its values.
            tup_id: Of a spout: the id of the message. None: it is not tracked.
            stream: None for the default stream.
            anchors: Of a bolt: ids of tuples.
            direct_task: The task that it is sent to, of a direct stream.
            need_task_ids: Whether the ids of the tasks that it goes to are returned.

        Returns:
            None, or the ids.

        Raises:
            TypeError: The values are not a list or tuple.
        """
        if not isinstance(tup, list | tuple):
            raise ComponentTypeError(
                f"the values of a tuple are {type(tup).__name__}, and must be a list or tuple",
                f"component {self.component_name!r}, emit({tup!r:.60})", "write emit([value])",
            )  # fmt: skip
        message: dict[str, Any] = {"command": "emit", "tuple": tup}
        if anchors is not None:
            message["anchors"] = anchors
        if tup_id is not None:
            message["id"] = tup_id
        if stream is not None:
            message["stream"] = stream
        if direct_task is not None:
            message["task"] = direct_task
        if not need_task_ids:
            message["need_task_ids"] = False  # Storm's default is True
            self.send_message(message)
            return None
        if direct_task is not None:
            self.send_message(message)
            return [direct_task]
        with self._reader_lock, self._writer_lock:  # the next list answers this emit
            self.send_message(message)
            return self.read_task_ids()

    def _run(self) -> None:
        """Read one message and do what it says."""
        raise NotImplementedError

    def run(self) -> NoReturn:
        """The main loop of a child process, until its parent goes away or something is raised."""
        _take_process(self)
        conf, context = self.read_handshake()
        self._setup_component(conf, context)
        self.initialize(conf, context)
        while True:
            try:
                self._run()
            except StormWentAwayError:
                _leave(self)
            except Exception as error:  # noqa: BLE001  # user code
                handle_exception(self, error)
                if self.exit_on_exception:
                    self._exit(1)

    def _exit(self, status_code: int) -> None:
        """End the process, whatever other threads do."""
        if threading.active_count() > 1:
            os._exit(status_code)
        sys.exit(status_code)

    def _handle_run_exception(self, exc: Exception) -> None:
        """Called with what ``_run`` raised."""
        self.raise_exception(exc)


def is_hosted(component: Component) -> bool:
    """Whether acktree hosts a component in its own process."""
    return getattr(component.serializer, "hosts_component", False) is True


def handle_exception(component: Component, error: Exception) -> None:
    """Do with an exception in a child process what its class says; what that raises is logged."""
    told, raised = f"Exception in {type(component).__name__}.run()", sys.exc_info()
    try:
        component.logger.error(told, exc_info=raised)
        component._handle_run_exception(error)  # noqa: SLF001  # pystorm's
    except StormWentAwayError:
        log.error(told, exc_info=raised)  # noqa: TRY400  # the exception before this one
        _leave(component)
    except Exception:
        log.error(told, exc_info=raised)  # noqa: TRY400  # the exception before this one
        log.error("While trying to handle previous exception...", exc_info=True)  # noqa: G201  # pystorm's


def _leave(component: Component) -> None:
    log.info("Exiting because parent Storm process went away.")
    component._exit(2)  # noqa: SLF001  # pystorm's


def _take_process(component: Component) -> None:
    """Set the signal of the debugger, and let stdout be stderr: ``print`` must not break messages."""
    number = component._acktree_rdb_signal  # noqa: SLF001  # of this module
    if isinstance(number, str):
        number = getattr(signal, number, None)
    if number is not None:
        with suppress(ValueError):  # not on the main thread
            signal.signal(number, _debug)
    serializer = component.serializer
    output = serializer.output_stream
    with suppress(OSError, ValueError, AttributeError):  # a stream in memory has no descriptor
        if output.fileno() == sys.__stdout__.fileno():  # type: ignore[union-attr]  # a closed one raises
            moved = os.fdopen(os.dup(output.fileno()), "wb")
            os.dup2(sys.__stderr__.fileno(), output.fileno())  # type: ignore[union-attr]  # the same
            serializer.printed = output  # that of a user's serializer may close stdout when it is collected
            serializer.output_stream = serializer.wrapped(moved)


def _log_handler(component: Component, conf: Mapping[str, Any], level: str) -> logging.Handler:
    path = conf.get("pystorm.log.path")
    if path:
        name = str(conf.get("pystorm.log.file", _LOG_FILE)).format(
            topology_name=component.topology_name, component_name=component.component_name,
            task_id=component.task_id, pid=component.pid,
        )  # fmt: skip
        handler: logging.Handler = RotatingFileHandler(
            Path(path) / name,
            maxBytes=conf.get("pystorm.log.max_bytes", 1_000_000),
            backupCount=conf.get("pystorm.log.backup_count", 10),
        )
        form = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
    else:
        component.log(f"records of level {level} (pystorm.log.level) and above are sent to Storm")
        handler, form = StormHandler(component.serializer), "%(asctime)s - %(name)s - %(message)s"
    handler.setFormatter(logging.Formatter(conf.get("pystorm.log.format", form)))
    return handler


def _debug(number: int, frame: FrameType | None) -> None:
    """Open a debugger that a socket on loopback leads to."""
    try:
        from remote_pdb import RemotePdb  # noqa: PLC0415  # the user's package
    except ImportError:
        log.warning("remote_pdb is not installed, so signal %s opens no debugger", number)
    else:
        RemotePdb(host="127.0.0.1", port=0).set_trace(frame=frame)
