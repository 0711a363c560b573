"""The tables of the store of traces, and the statements that write them.

Rules of this file
------------------
1. A statement that is executed twice with the same values changes nothing the second time.
"""

from __future__ import annotations

from typing import Final

__all__ = ["EXECUTION", "LINK", "MESSAGE", "MORE", "TABLES", "VERDICT", "VERSION"]

VERSION: Final = 2
"""2: with traceparents."""

TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS messages (
    root        INTEGER PRIMARY KEY,
    spout       TEXT NOT NULL,
    task_id     INTEGER,
    stream      TEXT NOT NULL,
    message_id  TEXT,
    attempt     INTEGER NOT NULL,
    retry_of    INTEGER,
    emitted_ms  INTEGER NOT NULL,
    verdict     TEXT,
    verdict_ms  INTEGER,
    reason      TEXT,
    component   TEXT,
    traceback   TEXT,
    tuples      INTEGER NOT NULL DEFAULT 0,
    traceparent TEXT
);
CREATE INDEX IF NOT EXISTS messages_by_time ON messages (emitted_ms, root);
CREATE INDEX IF NOT EXISTS messages_by_id ON messages (message_id);
CREATE INDEX IF NOT EXISTS messages_by_verdict ON messages (verdict, emitted_ms);
CREATE TABLE IF NOT EXISTS tuples (
    root          INTEGER NOT NULL,
    edge          INTEGER NOT NULL,
    parents       TEXT,
    component     TEXT NOT NULL,
    task_id       INTEGER,
    source        TEXT,
    source_task   INTEGER,
    stream        TEXT,
    batch_id      INTEGER NOT NULL,
    began_ms      INTEGER,
    took_ms       REAL,
    together      INTEGER NOT NULL DEFAULT 1,
    fate          TEXT,
    fate_batch_id INTEGER,
    reason        TEXT NOT NULL DEFAULT '',
    shown         TEXT,
    PRIMARY KEY (root, edge)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS more (
    root INTEGER NOT NULL, component TEXT NOT NULL, batch_id INTEGER NOT NULL, part TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (root, component, batch_id, part)
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""

MESSAGE: Final = (
    "INSERT INTO messages (root, spout, task_id, stream, message_id, attempt, retry_of, emitted_ms,"
    # Another attempt belongs to the trace of the one before.
    " traceparent) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,"
    " coalesce(?9, (SELECT traceparent FROM messages WHERE root = ?7)))"
    " ON CONFLICT (root) DO UPDATE SET traceparent = coalesce(excluded.traceparent, traceparent),"
    " message_id = coalesce(excluded.message_id, message_id), attempt = max(attempt, excluded.attempt),"
    " retry_of = coalesce(excluded.retry_of, retry_of), emitted_ms = min(emitted_ms, excluded.emitted_ms)"
)
VERDICT: Final = (
    "UPDATE messages SET verdict = ?, verdict_ms = ?, reason = ?, component = ?, traceback = ? WHERE root = ?"
)
LINK: Final = (
    "INSERT INTO tuples (root, edge, parents, source, source_task, stream, component, task_id, shown,"
    " batch_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (root, edge) DO UPDATE SET"
    " parents = excluded.parents, source = excluded.source, source_task = excluded.source_task,"
    " stream = excluded.stream, shown = excluded.shown"
)
EXECUTION: Final = (
    "INSERT INTO tuples (root, edge, component, task_id, began_ms, took_ms, together, fate, reason, batch_id,"
    " fate_batch_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (root, edge) DO UPDATE SET"
    # A tuple that was held is executed in one micro-batch and acked in a later one.
    " batch_id = iif(excluded.took_ms IS NULL, batch_id, excluded.batch_id),"
    " began_ms = iif(excluded.took_ms IS NULL, coalesce(began_ms, excluded.began_ms), excluded.began_ms),"
    " took_ms = coalesce(excluded.took_ms, took_ms), together = max(together, excluded.together),"
    " fate = excluded.fate, reason = iif(excluded.reason = '', reason, excluded.reason),"
    " fate_batch_id = excluded.fate_batch_id"
)
MORE: Final = (
    "INSERT INTO more VALUES (?, ?, ?, ?, ?) ON CONFLICT (root, component, batch_id, part) DO UPDATE SET"
    " count = excluded.count"
)
