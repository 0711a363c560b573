"""Redis Streams: entries of a group, each acknowledged when its tree is done. Needs ``acktree[redis]``.

Rules of this file
------------------
1. An XACK is valid on any connection. So entries that are open when the driver dies continue from the
   checkpoint (``redelivers = False``), and only pending entries that it does not have are read again.
2. XCLAIM JUSTID keeps open entries from other consumers: it resets their idle time, and does not count as a
   delivery.
3. An answer that was lost may have held entries: after an error this consumer's pending entries are read
   again.
4. Entries that were removed (MAXLEN, XTRIM, XDEL) before they were processed are reported, each once in a
   run.

Source: Redis's pages on streams, XREADGROUP, XAUTOCLAIM and XCLAIM.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa

from acktree import (  # isort: skip
    Config, ConfigError, ConnectorError, Failure, OpenMessages, Sink, Spout, SpoutOutputCollector,
    TaskContext, Tuple,
)  # fmt: skip
from acktree.connectors import client_errors
from acktree.connectors.batch_sink import (
    BatchSink,
    Outcome,
    as_bytes,
    as_id,
    misfit,
    otherwise_marked,
    refusals_of,
    rows_of,
    writer_of,
)
from acktree.connectors.message_names import KeyFrom, LabelFrom, MessageNames
from acktree.connectors.redis_client import BUSY, ERRORS, client_of, connector_error, host_of

import redis.exceptions  # isort: skip  # redis_client names the extra

__all__ = ["RedisSink", "RedisStreamSink", "RedisStreamSpout"]

_PAGE: Final = 1000
_IDLE_SECS: Final = 0.05
"""The shortest time between two reads of an empty stream."""
_AT_REST_SECS: Final = 0.5
"""The time between two reads of a stream at rest: a read takes 0.3 ms of CPU."""
_RESTS_AFTER: Final = 40
"""After this number of empty reads in a row a stream is read less often."""

_LOOK_SECS: Final = 5.0
"""The time between two looks for entries that were removed; shorter while the group is behind."""
_LOOK_BEHIND_SECS: Final = 0.5

_Entry = tuple[str, dict[bytes, bytes], int]
"""(entry id, fields, attempt)"""


class RedisStreamSpout(Spout):
    """The entries of a stream for a consumer group, as ``["entry_id", "fields"]``.

    Args:
        url: ``redis://user:password@host:6379/0``, or ``rediss://``.
        stream: The stream, which must exist with its group:
            ``XGROUP CREATE stream group 0 MKSTREAM``.
        group: The consumer group.
        consumer: This task's name in the group. None: topology, component and index of the task. It stays the
            same after a restart, so that its pending entries are found again. Give a name if two topologies
            of the same name read one group.
        claim_idle_secs: Entries that are idle for this time with another consumer of the group are taken
            over. Give the same value to all consumers of a group.
        label: What people call an entry, as of a ``RabbitMQSpout``: ``"field:order"``, ``"entry_id"``, or a
            function of ``{"entry_id", "fields"}``.
        key: What names the message in all its deliveries, from the same places: see ``key`` of ``emit``.

    ``fields`` is a dict of bytes. An entry that is acknowledged stays in the stream: trim it yourself
    (``XTRIM``, or ``XADD`` with ``MAXLEN``). What a ``Retry`` gives up is acknowledged, and acktree's dead
    letter is the copy. Without a ``Retry`` a failed entry is claimed and emitted again.
    """

    outputs = ["entry_id", "fields"]
    redelivers = False

    def __init__(
        self,
        url: str,
        stream: str,
        group: str,
        *,
        consumer: str | None = None,
        claim_idle_secs: float = 60.0,
        label: LabelFrom | None = None,
        key: KeyFrom | None = None,
    ) -> None:
        where = f"RedisStreamSpout(..., {stream!r}, {group!r})"
        if not claim_idle_secs > 0:
            what = f"claim_idle_secs is {claim_idle_secs!r}"
            raise ConfigError(what, where, "give it seconds, more than 0")
        self._names = MessageNames(
            where, label, key, dicts={"field": "fields"}, body=None, properties=("entry_id",)
        )
        self._url, self.stream, self.group, self.consumer = url, stream, group, consumer
        self.claim_idle_secs = claim_idle_secs
        self.keep_alive_secs = claim_idle_secs / 4
        self._where = f"stream {stream!r}, group {group!r} at {host_of(url, where)}"
        self._ahead: deque[_Entry] = deque()
        self._mine: set[str] = set()  # emitted, and without a verdict
        self._again: deque[tuple[str, int]] = deque()  # failed: to be claimed and emitted again
        self._read_after = self._claim_after = self._look_after = 0.0
        self._empty_reads = 0
        self._removed = 0  # undelivered entries whose removal is reported
        self._must_recover = True

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the stream and its group are there.

        Raises:
            ConnectorError: One is not, or the server cannot be used.
        """
        with self._as_connector_errors(), client_of(self._url) as looks:
            looks.xpending(self.stream, self.group)

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Connect, and check that stream and group exist."""
        self._collector = collector
        self._mine.update(str(each) for each in context.open_message_ids)
        if self.consumer is None:
            self.consumer = f"{context.topology_name}-{context.component_id}-{context.task_index}"
        self._page = min(context.max_spout_pending or _PAGE, _PAGE)
        with self._as_connector_errors():
            self._client = client_of(self._url)
            self._client.xpending(self.stream, self.group)  # raises NOGROUP where one of them is missing

    def next_tuple(self) -> None:
        """Emit the next entry."""
        if not self._ahead:
            with self._as_connector_errors():
                self._read()
        if self._ahead:
            entry_id, fields, attempt = self._ahead.popleft()
            # An entry that cannot be emitted stays pending, and is claimed again when it was idle.
            names = self._names.of(
                {"entry_id": entry_id, "fields": fields}, self._collector.report_error, {"entry_id": entry_id}
            )
            self._collector.emit(
                [entry_id, fields], entry_id, attempt=attempt, label=names.label, key=names.key
            )
            self._mine.add(entry_id)

    def keep_alive(self, open_messages: OpenMessages) -> None:
        """Reset the idle time of open entries, and of those that were read ahead."""
        ids = [str(each) for each in open_messages.older_than(0)] + [
            entry_id for entry_id, _, _ in self._ahead
        ]
        with self._as_connector_errors():
            for first in range(0, len(ids), _PAGE):
                page = ids[first : first + _PAGE]
                self._client.xclaim(self.stream, self.group, self.consumer, 0, page, justid=True)

    def ack_batch(self, message_ids: Sequence[Any]) -> None:
        """Acknowledge. After an error the same entries come again: a second XACK has no effect."""
        ids = list(message_ids)
        with self._as_connector_errors():
            for first in range(0, len(ids), _PAGE):
                self._client.xack(self.stream, self.group, *ids[first : first + _PAGE])
        self._mine.difference_update(ids)

    def fail_batch(self, failures: Sequence[tuple[Any, Failure]]) -> None:
        """Acknowledge entries that were given up; emit the others again."""
        self.ack_batch([entry_id for entry_id, failure in failures if failure.final])
        self._again.extend(
            (entry_id, failure.attempt + 1) for entry_id, failure in failures if not failure.final
        )

    def lag(self) -> int | None:
        """Ask the server how many entries were not delivered to the group yet."""
        with suppress(redis.exceptions.RedisError):
            lag = self._group().get("lag")
            return None if lag is None else int(lag)
        return None

    def close(self) -> None:
        """Disconnect. Pending entries stay pending, for this consumer's next run or for other consumers."""
        self._client.close()

    def _read(self) -> None:
        """Read ahead: pending entries of an earlier run, failed ones, those of other consumers, new ones."""
        if self._must_recover:
            self._recover()
            self._must_recover = False
        while self._again and not self._ahead:
            entry_id, attempt = self._again[0]
            claimed = self._client.xclaim(self.stream, self.group, self.consumer, 0, [entry_id])
            self._again.popleft()
            self._mine.discard(entry_id)
            self._ahead.extend((entry_id, fields, attempt) for _, fields in claimed if fields is not None)
            if not self._ahead and not self._client.xrange(self.stream, entry_id, entry_id):
                self._report_removed(1, "pending")
        now = time.monotonic()
        if not self._ahead and now >= self._claim_after:
            self._claim()
            self._claim_after = now + self.claim_idle_secs / 4
        if not self._ahead and now >= self._read_after:
            if now >= self._look_after:
                self._see_removed()
                self._look_after = now + _LOOK_SECS
            answer = self._client.xreadgroup(self.group, self.consumer, {self.stream: ">"}, count=self._page)
            self._ahead.extend((entry_id.decode(), fields, 1) for entry_id, fields in _entries(answer))
            self._empty_reads = 0 if self._ahead else self._empty_reads + 1
            idle_secs = _IDLE_SECS if self._empty_reads < _RESTS_AFTER else _AT_REST_SECS
            self._read_after = 0.0 if self._ahead else now + idle_secs
            if len(self._ahead) == self._page:  # it is behind: what trims the stream may overtake it
                self._look_after = min(self._look_after, now + _LOOK_BEHIND_SECS)

    def _recover(self) -> None:
        """Read this consumer's pending entries that are neither open nor read ahead."""
        after = "0"
        while True:
            answer = self._client.xreadgroup(self.group, self.consumer, {self.stream: after}, count=_PAGE)
            entries = _entries(answer)
            if not entries:
                return
            after = entries[-1][0].decode()
            self._put(entries)

    def _claim(self) -> None:
        """Take over entries that are idle with other consumers."""
        cursor: Any = "0-0"
        idle_ms = int(self.claim_idle_secs * 1000)
        while True:
            cursor, entries, *removed = self._client.xautoclaim(
                self.stream, self.group, self.consumer, idle_ms, cursor, count=_PAGE
            )
            self._put([(entry_id, fields) for entry_id, fields in entries if fields is not None])
            gone = {entry_id.decode() for entry_id in (removed[0] if removed else ())}
            count = len(gone - self._here())
            self._report_removed(count, "pending at other consumers", "what none of them has open is lost")
            if cursor in (b"0-0", "0-0") or len(self._ahead) >= self._page:
                return

    def _put(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        """Add entries that are not here yet to those read ahead, with the number of their delivery."""
        here = self._here()
        fresh = [(entry_id, fields) for entry_id, fields in entries if entry_id.decode() not in here]
        removed = [entry_id for entry_id, fields in fresh if not fields]
        if removed:
            self._client.xack(self.stream, self.group, *removed)
            self._report_removed(len(removed), "pending")
            fresh = [(entry_id, fields) for entry_id, fields in fresh if fields]
        if not fresh:
            return
        # One by one: a range from the first to the last may hold any number of entries that are open here.
        with self._client.pipeline(transaction=False) as questions:
            for entry_id, _ in fresh:
                questions.xpending_range(self.stream, self.group, entry_id, entry_id, count=1)
            answers = questions.execute()
        times = {each["message_id"]: int(each["times_delivered"]) for each in chain.from_iterable(answers)}
        self._ahead.extend((entry_id.decode(), fields, times.get(entry_id, 1)) for entry_id, fields in fresh)

    def _here(self) -> set[str]:
        """The entries that are open, read ahead, or wait for another attempt."""
        here = self._mine.union(entry_id for entry_id, _, _ in self._ahead)
        here.update(entry_id for entry_id, _ in self._again)
        return here

    def _see_removed(self) -> None:
        """Report entries that were removed from the stream before the group read them.

        Redis 7 counts the entries that were added, and those that a group has read, where it knows.
        """
        with suppress(redis.exceptions.NoPermissionError):
            stream = self._client.xinfo_stream(self.stream)  # first: what is read meanwhile counts as read
            group = self._group()
            if None in (stream.get("entries-added"), group.get("entries-read")):
                return
            removed = max(0, stream["entries-added"] - stream["length"] - group["entries-read"])
            self._report_removed(removed - self._removed, "not delivered yet")
            self._removed = max(self._removed, removed)  # it is less while processed entries are kept

    def _group(self) -> dict[str, Any]:
        """What Redis knows of the group; empty where there is none."""
        groups = self._client.xinfo_groups(self.stream)
        return next((each for each in groups if each["name"] == self.group.encode()), {})

    def _report_removed(self, count: int, state: str, effect: str = "they are lost") -> None:
        if count > 0:
            what = f"{count:,} entries that were {state} were removed from the stream: {effect}"
            fix = "keep more: raise MAXLEN, or XTRIM with the MINID of the oldest pending entry (XPENDING)"
            self._collector.report_error(ConnectorError(what, self._where, fix, can_retry=True))

    @contextmanager
    def _as_connector_errors(self) -> Iterator[None]:
        """Raise the client's errors as a ConnectorError."""
        try:
            yield
        except (redis.exceptions.RedisError, OSError) as error:
            self._must_recover = True
            raise connector_error(error, self._where) from error


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:  # noqa: ANN401  # a list, or RESP3's dict
    if not answer:
        return []
    given = next(iter(answer.values())) if isinstance(answer, dict) else answer[0][1]
    if given and isinstance(given[0], list) and given[0] and isinstance(given[0][0], (list, tuple)):
        given = given[0]
    return [(entry_id, fields or {}) for entry_id, fields in given]


class RedisStreamSink(BatchSink[dict[bytes, bytes]]):
    """Adds each tuple's ``fields`` (a dict) to a stream, and acks it when Redis has answered. At least once.

    Args:
        url: As of the spout.
        stream: The stream; Redis creates it with the first entry.
        maxlen: About how many entries the stream keeps; older ones are trimmed. None: all.

    Keys and values are bytes, texts, which become UTF-8, and numbers, which become their text; a tuple with
    others fails alone. If Redis does not answer within 5 s, later tuples of the micro-batch are not sent, and
    the messages of this one and of those wait.
    """

    def __init__(self, url: str, stream: str, *, maxlen: int | None = None) -> None:
        self._where = f"stream {stream!r} at {host_of(url, 'RedisStreamSink(...)')}"
        self._url, self.stream, self.maxlen = url, stream, maxlen

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the server answers. Raises ConnectorError."""
        try:
            with client_of(self._url) as looks:
                looks.exists(self.stream)
        except (redis.exceptions.RedisError, OSError) as error:
            raise connector_error(error, self._where) from error

    def prepare(self, config: Config, context: TaskContext, collector: Any) -> None:  # noqa: ANN401  # as Bolt's
        """Connect at the first page; the connections stay with the process."""
        super().prepare(config, context, collector)
        self._client = context.cached((self._url, "redis"), lambda: client_of(self._url))

    def entry(self, tup: Tuple) -> dict[bytes, bytes]:
        """The fields as Redis keeps them."""
        fields = tup["fields"]
        if not isinstance(fields, Mapping) or not fields:
            what = "'fields' is empty" if isinstance(fields, Mapping) else "'fields' is not a dict"
            raise ConnectorError(what, self._where, "emit a dict with a key at least")
        entry = {
            self._encoded("a key of 'fields'", name): self._encoded(f"'fields', {name!r:.60},", value)
            for name, value in fields.items()
        }
        if len(entry) < len(fields):
            fix = "give each key one form: a text, bytes or a number"
            raise ConnectorError("two keys of 'fields' become the same bytes", self._where, fix)
        return entry

    def _encoded(self, name: str, value: object) -> bytes:
        if isinstance(value, int) and not isinstance(value, bool):
            return int.__repr__(value).encode()
        if isinstance(value, float):
            return float.__repr__(value).encode()
        return as_bytes(name, value, self._where)

    def send(self, _: Sequence[Tuple], entries: Sequence[dict[bytes, bytes]]) -> Iterator[Outcome]:
        """Add one after the other, and wait for each answer."""
        for index, entry in enumerate(entries):
            yield [index], self._add(entry)

    def _add(self, entry: dict[bytes, bytes]) -> ConnectorError | None:
        """Add an entry. Returns why it is refused. Raises ConnectorError if the server cannot be used."""
        try:
            self._client.xadd(self.stream, entry, maxlen=self.maxlen)
        except (redis.exceptions.RedisError, OSError) as error:
            # Redis closes the connection over an entry that it does not take, sometimes without a word.
            is_closed = isinstance(error, redis.exceptions.ConnectionError) or "Protocol error" in str(error)
            if not is_closed or not self._answers():
                raise connector_error(error, self._where) from error
            fix = "see whether the entry is larger than proto-max-bulk-len, and the server's log"
            return client_errors.broken_by_a_message("Redis", str(error), self._where, fix)
        return None

    def _answers(self) -> bool:
        try:
            return bool(self._client.ping())
        except (redis.exceptions.RedisError, OSError):
            return False


_WRITE: Final = """
local outages = {OUTAGES}

local function failed(answer) return type(answer) == 'table' and answer.err or nil end

local function add(key, names, values)
  local before = redis.pcall('HMGET', key, unpack(names))
  if failed(before) then return before.err end
  for at, name in ipairs(names) do
    local is_whole = string.match(values[at], '^[+-]?%d+$')
    local answer = redis.pcall(is_whole and 'HINCRBY' or 'HINCRBYFLOAT', key, name, values[at])
    if failed(answer) then
      for undone = 1, at - 1 do
        if before[undone] then redis.call('HSET', key, names[undone], before[undone])
        else redis.call('HDEL', key, names[undone]) end
      end
      return answer.err
    end
  end
end

local function put(key, names, values)
  local pairs = {}
  for at, name in ipairs(names) do pairs[#pairs + 1], pairs[#pairs + 2] = name, values[at] end
  return failed(redis.pcall('HSET', key, unpack(pairs)))
end

local seen, mark, unfit, mode = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if mark ~= '' then
  local found = redis.call('HMGET', KEYS[1], 'mark', 'refused', 'unfit')
  if (found[1] or '') == mark then return {1, found[2], found[3]} end
  if (found[1] or '') ~= seen then return {0} end
end
local refused, at = {}, 5
while at <= #ARGV do
  local index, key, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local names, values = {}, {}
  for field = 1, count do
    names[field], values[field] = ARGV[at + 1 + 2 * field], ARGV[at + 2 + 2 * field]
  end
  local reason = (mode == 'add' and add or put)(key, names, values)
  -- Nothing was written before: of one script Redis refuses all writes so, or none.
  if reason and outages[string.match(reason, '^%-?(%u+)')] then return redis.error_reply(reason) end
  refused[index] = reason
  at = at + 3 + 2 * count
end
refused = cjson.encode(refused)
if mark ~= '' then redis.call('HSET', KEYS[1], 'mark', mark, 'refused', refused, 'unfit', unfit) end
return {1, refused, unfit}
"""
"""Writes hashes and a mark. Redis runs no other command in between, and logs all of it as one transaction."""
_OUTAGES: Final = sorted(code for code, cause in ERRORS.items() if cause is BUSY and " " not in code)
_SCRIPT: Final = _WRITE.replace("OUTAGES", ", ".join(f"{code} = true" for code in _OUTAGES))

_Hash = tuple[bytes, dict[bytes, bytes]]
"""The name of a hash, and its fields."""


class RedisSink(BatchSink[_Hash], Sink):
    """Writes each tuple as a hash of its fields, and acks it when Redis has answered.

    At least once in ``set_bolt``; in ``set_sink`` each row once.

    Args:
        url: As of the spout; not of a cluster.
        prefix: What the names of the hashes begin with.
        key: The field whose value follows in the name. It is not in the hash.
        mode: ``"upsert"``: the hash's fields get the new values. ``"add"``: the numbers in them grow by the
            new ones; in ``set_bolt`` a message that is processed twice is added twice.

    Keys are texts, numbers, UUIDs and dates, values are bytes, texts and numbers; a tuple with others fails
    alone. As a sink, the mark of a task is in a hash
    named ``<prefix>acktree:<checkpoint>/<sink>/<task>``: expire neither.
    """

    page = None

    def __init__(
        self, url: str, prefix: str, *, key: str = "key", mode: Literal["upsert", "add"] = "upsert"
    ) -> None:
        self._where = f"hashes {prefix!r} at {host_of(url, 'RedisSink(...)')}"
        if mode not in ("upsert", "add"):
            raise ConfigError(f"mode is {mode!r}", f"RedisSink(..., {prefix!r})", 'give "upsert" or "add"')
        self._url, self.prefix, self.key, self.mode = url, prefix, key, mode
        self.latest_by = (key,) if mode == "upsert" else None

    def prepare(self, config: Config, context: TaskContext, collector: Any) -> None:  # noqa: ANN401  # as Bolt's
        """Connect at the first page; the connections stay with the process."""
        super().prepare(config, context, collector)
        self._connect(context)

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the key is a field of each stream, not the only one, and whether the server answers.

        Raises:
            ConfigError: The key cannot be that of the hashes.
            ConnectorError: The server cannot be used.
        """
        for (source, stream), fields in context.input_fields.items():
            if self.key not in fields or len(fields) == 1:
                what = f"stream {stream!r} of {source!r} has no field {self.key!r}, or no other"
                fix = f"name the field of the key and emit another: key=..., one of {', '.join(fields)}"
                raise ConfigError(what, f"RedisSink(..., {self.prefix!r})", fix)
        with self._as_connector_errors(), client_of(self._url) as looks:
            looks.hget(f"{self.prefix}acktree:", "mark")

    def open(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """Connect at the first command; the connections stay with the process."""
        self._connect(context)
        self._writer, self._seen = f"{self.prefix}acktree:{writer_of(context)}", b""

    def _connect(self, context: TaskContext) -> None:
        self._client = context.cached((self._url, "redis"), lambda: client_of(self._url))

    def last_mark(self) -> bytes | None:
        """The mark in this task's hash."""
        with self._as_connector_errors():
            self._seen = self._client.hget(self._writer, "mark") or b""
        return self._seen or None

    def write(self, batch: pa.RecordBatch, mark: bytes) -> Mapping[int, str]:
        """Write hashes and the mark in one script."""
        rows, refused = rows_of(batch)
        hashes: dict[int, _Hash] = {}
        for index, row in rows.items():
            try:
                hashes[index] = self._hash(row)
            except ConnectorError as error:
                refused[index] = str(error)
        answer = self._run(self._writer, (self._seen, mark, json.dumps(refused)), hashes)
        if not answer[0]:
            raise otherwise_marked(self._where)
        self._seen = mark
        reasons = {index: f"Redis refused the hash: {why}" for index, why in refusals_of(answer[1]).items()}
        return reasons | refusals_of(answer[2])

    def entry(self, tup: Tuple) -> _Hash:
        """The hash as Redis keeps it."""
        return self._hash(tup.as_dict())

    def send(self, _: Sequence[Tuple], entries: Sequence[_Hash]) -> Iterator[Outcome]:
        """Write hashes in one script."""
        answer = self._run(self.prefix, ("", "", "{}"), dict(enumerate(entries)))
        refused = refusals_of(answer[1])
        yield [index for index in range(len(entries)) if index not in refused], None
        for index, reason in refused.items():
            fix = "correct the value, or what Redis has under this name"
            yield [index], ConnectorError(f"Redis refused the hash: {reason}", self._where, fix)

    def _hash(self, row: Mapping[str, Any]) -> _Hash:
        """Raises ConnectorError for a value that Redis does not take."""
        if self.key not in row or len(row) == 1:
            what = f"the tuple has no field {self.key!r}, or no other"
            raise ConnectorError(
                what, self._where, "emit the key and a value, or name another field: key=..."
            )
        encode = self._number if self.mode == "add" else self._value
        name = self.prefix + as_id(repr(self.key), row[self.key], self._where)
        fields = {field.encode(): encode(field, value) for field, value in row.items() if field != self.key}
        return name.encode(), fields

    def _value(self, field: str, value: object) -> bytes:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return self._number(field, value) if is_number else as_bytes(repr(field), value, self._where)

    def _number(self, field: str, value: object) -> bytes:
        for kind in (int, float):
            if isinstance(value, kind) and not isinstance(value, bool):
                return kind.__repr__(value).encode()
        raise misfit(repr(field), value, self._where, "emit the number to add, or leave the field out")

    def _run(self, writer: str, marks: tuple[Any, Any, str], hashes: Mapping[int, _Hash]) -> list[Any]:
        """Run the script. Raises ConnectorError if Redis cannot be used."""
        arguments: list[Any] = [*marks, self.mode]
        for index, (name, fields) in hashes.items():
            arguments += [index, name, len(fields), *chain.from_iterable(fields.items())]
        with self._as_connector_errors():
            try:
                answer: list[Any] = self._client.eval(_SCRIPT, 1, writer, *arguments)
            except redis.exceptions.ResponseError as error:  # an answer: the script has written nothing
                refused = connector_error(error, self._where)
                refused.nothing_written = True
                raise refused from error
        return answer

    @contextmanager
    def _as_connector_errors(self) -> Iterator[None]:
        try:
            yield
        except (redis.exceptions.RedisError, OSError) as error:
            raise connector_error(error, self._where) from error
