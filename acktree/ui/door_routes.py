"""What the driver's door answers and carries out, by method and path."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from acktree.driver.handle import SubmittedTopology
from acktree.driver.holders import Holder
from acktree.driver.run import Run
from acktree.errors import ConfigError
from acktree.tasks.spouts.chunks.open_listing import OpenMessage
from acktree.tasks.spouts.keys.labels import id_of, label_of
from acktree.tasks.spouts.watched_ids import WATCH_SECS
from acktree.texts import short_repr
from acktree.ui import history, letters, tracing
from acktree.ui.known_names import (
    MOST_OPEN,
    MOST_ORDERS,
    ORDERS,
    QUESTIONS,
    limit_of,
    read_order,
    read_question,
    refuse_unknown,
)
from acktree.ui.log_levels import LogLevels
from acktree.ui.observer import TopologyObserver
from acktree.ui.order_log import SOCKET, Order


class RefusedError(Exception):
    """An answer that is not 200.

    Attributes:
        status: Of HTTP.
        what: What happened.
        said: What the answer holds.
    """

    def __init__(self, status: int, what: str, where: str, fix: str) -> None:
        super().__init__(what)
        self.status, self.what, self.said = status, what, {"error": what, "where": where, "fix": fix}


class Routes:
    """What is asked for and ordered, by method and path."""

    def __init__(
        self, running: SubmittedTopology, run: Run, observer: TopologyObserver, levels: LogLevels
    ) -> None:
        self._running, self.run, self._observer, self._levels = running, run, observer, levels
        self._orders: deque[Mapping[str, Any]] = deque(maxlen=MOST_ORDERS)

    @property
    def id(self) -> str:
        """The topology's id in this run."""
        return self._observer.id

    def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The answer to a question. ConfigError for a name that it does not take."""
        question = _question(path)
        if question == "snapshot":
            return self._observer.latest(**read_question(question, query))
        refuse_unknown(query, QUESTIONS[question], path)
        if path == "/v1/open":
            most = limit_of(query, 20, MOST_OPEN)
            count = sum(spout.count for spout in self.run.open_messages().values())
            return json_of({"open": self._oldest_open(most), "count": count})
        if path == "/v1/log-levels":
            return json_of(self._levels.shown())
        if path in {"/v1/audit", "/v1/events", "/v1/history"} or path.startswith("/v1/traces"):
            return json_of(self._recorded(path, query))
        if path == "/v1/dead-letters":
            return json_of(letters.page(self.run.dead_letters, query))
        if found := re.fullmatch(r"/v1/dead-letters/(\d{1,18})", path):
            return json_of(letters.whole(self.run.dead_letters, int(found[1])))
        raise _unknown(path)

    def _oldest_open(self, most: int) -> list[dict[str, Any]]:
        """The oldest open messages, each with what is known of where it is."""
        results, now_ms = self.run.results, time.time_ns() // 1_000_000
        messages, found = self.run.oldest_open(most), []
        roots = frozenset(message.root for message in messages if message.root is not None)
        holders = results.holders.of(roots, now_ms)
        for message in messages:
            held_by: Sequence[Holder] = ()
            forgotten_by = None
            if message.root is not None:
                held_by = holders.get(message.root, ())
                forgotten_by = results.forgotten_by(message.root)
            where = {"held_by": [asdict(holder) for holder in held_by], "forgotten_by": forgotten_by}
            found.append(_open_message(message, now_ms) | where)
        return found

    def _recorded(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """The history, traces, logged tuples and orders."""
        if path == "/v1/audit":
            most = limit_of(query, 50, MOST_ORDERS)
            return {"orders": list(reversed(self._orders.copy()))[:most]}
        if path == "/v1/history":
            return history.page(self._observer.history.store, query)
        if path == "/v1/events":
            return tracing.events(self._running.events, query)
        traces = self._running.traces
        if path == "/v1/traces":
            return tracing.page(traces, query)
        named = re.fullmatch(r"/v1/traces/(-?\d{1,19})", path)
        if named is None:
            raise _unknown(path)
        root = int(named[1])
        found = tracing.tree_of(traces, root, query)
        if found is None:
            raise RefusedError(
                404, f"there is no trace of root {root}", f"topology {self.run.name!r}",
                "ask for traces without a root: those are stored",
            )  # fmt: skip
        return found

    def post(self, path: str, given: Mapping[str, Any], by: str = SOCKET) -> bytes:
        """Carry out an order and log it; returns what came of it.

        Args:
            path: Names the order.
            given: What came with it.
            by: The door by which it came.
        """
        order = self._order_of(path, given, by)
        try:
            return json_of(order.carry_out(lambda: self._order(path, given)))
        finally:
            self._observer.forget()

    def refuse(self, path: str, error: Exception, by: str) -> None:
        """Log an order whose body cannot be read."""
        self._order_of(path, {}, by).is_refused(error)

    def _order_of(self, path: str, given: Mapping[str, Any], by: str) -> Order:
        place = str(self.run.checkpoint.place)
        return Order(
            path.removeprefix("/v1/"), by, topology=self.run.name, place=place, given=given,
            keep=self._orders.append,
        )  # fmt: skip

    def _order(self, path: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        order = path.removeprefix("/v1/")
        if order not in ORDERS:
            raise _unknown(path)
        read = read_order(order, given)
        match order:
            case "activate":
                self._refuse_if_killed()
                self._running.activate()
            case "deactivate":
                self._running.deactivate()
            case "kill":
                secs = read.get("wait_secs", self._running.message_timeout_secs)
                return {"done": True, "wait_secs": self.run.order_kill(secs)}
            case "log-levels":
                return self._levels.change(read)
            case "debug":
                self._running.debug(**{"on": True, "component": None, "percent": 10.0} | read)
            case "trace":
                return self._trace(read)
            case "dead-letters/redrive":
                return letters.redrive(self.run.dead_letters, read)
            case _:
                return letters.purge(self.run.dead_letters, read)
        return {"done": True}

    def _trace(self, read: Mapping[str, Any]) -> Mapping[str, Any]:
        """Trace another share of all messages, or those that an operator names."""
        traces = self._running.traces
        rate, message_ids, secs = (read.get(name) for name in ("rate", "message_ids", "secs"))
        if (rate is None) is (message_ids is None):
            what = "neither a rate nor message ids" if rate is None else "a rate and message ids"
            fix = 'give one of them: {"rate": 0.01}, or {"message_ids": ["line-7"], "secs": 300}'
            raise ConfigError(f"the order has {what}", "trace", fix)
        if message_ids is not None:
            traces.watch(message_ids, WATCH_SECS if secs is None else secs)
            return {"done": True, "watched": dict(traces.watched)}
        if secs is not None:
            raise ConfigError("a rate holds until the run ends", "trace, secs=", "leave secs out")
        traces.rate = read["rate"]
        most = self.run.plan.config.max_traces_per_sec
        return {"done": True, "rate": traces.rate, "most_per_sec": most if 0 < traces.rate < 1 else None}

    def _refuse_if_killed(self) -> None:
        if self.run.kill.is_given:
            raise RefusedError(
                409, "the topology is being killed", f"topology {self.run.name!r}",
                "wait for its end and submit it again",
            )  # fmt: skip


def _open_message(message: OpenMessage, now_ms: int) -> dict[str, Any]:
    age_secs = max(0, now_ms - message.first_emitted_ms) / 1000
    return {
        "spout": message.spout,
        "task_id": message.task_id,
        "message_id": short_repr(id_of(message.message_id)),
        "label": label_of(message.message_id),
        "root": None if message.root is None else str(message.root),
        "attempt": message.attempt,
        "age_secs": age_secs,
        "state": message.state,
    }


def _question(path: str) -> str:
    """The name of a question in :data:`QUESTIONS`. RefusedError for a path that the door does not have."""
    named = path.removeprefix("/v1/")
    if re.fullmatch(r"dead-letters/\d{1,18}", named):
        return "dead-letter"
    if re.fullmatch(r"traces/-?\d{1,19}", named):
        return "trace-of"
    if named not in QUESTIONS:
        raise _unknown(path)
    return named


def _unknown(path: str) -> RefusedError:
    return RefusedError(404, f"the door has no {path}", "the driver's socket", "is its acktree an older one?")


def json_of(value: object) -> bytes:
    """A value as JSON, without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()
