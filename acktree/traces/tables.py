"""The tables of the store of traces, and the statements that write them.

Rules of this file
------------------
1. A statement that is executed twice with the same values changes nothing the second time.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 5
"""2: with traceparents; 3: the facts of a micro-batch in one row; 4: values by field; 5: labels."""

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
    traceparent TEXT,
    label       TEXT,
    pack        INTEGER,
    tuples      INTEGER NOT NULL DEFAULT 0,
    components  TEXT NOT NULL DEFAULT '[]',
    shown       TEXT
);
CREATE INDEX IF NOT EXISTS messages_by_time ON messages (emitted_ms, root);
CREATE INDEX IF NOT EXISTS messages_by_id ON messages (message_id);
CREATE INDEX IF NOT EXISTS messages_by_label ON messages (label) WHERE label IS NOT NULL;
CREATE INDEX IF NOT EXISTS messages_by_verdict ON messages (verdict, emitted_ms);
CREATE TABLE IF NOT EXISTS packs (
    pack     INTEGER PRIMARY KEY,
    batch_id INTEGER NOT NULL,
    clock_ms INTEGER NOT NULL,
    body     BLOB NOT NULL,
    UNIQUE (batch_id, clock_ms)
);
CREATE TABLE IF NOT EXISTS later (
    root       INTEGER NOT NULL,
    pack       INTEGER NOT NULL,
    tuples     INTEGER NOT NULL,
    components TEXT NOT NULL,
    PRIMARY KEY (root, pack)
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""
"""A pack has the facts of a micro-batch. A message has most of them in one; ``later`` names its others."""

MESSAGE: Final = (
    "INSERT INTO messages (root, spout, task_id, stream, message_id, attempt, retry_of, emitted_ms,"
    # Another attempt belongs to the trace of the one before.
    " traceparent, label, pack, tuples, components, shown) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,"
    " coalesce(?9, (SELECT traceparent FROM messages WHERE root = ?7)),"
    " ?10, ?11, coalesce(?12, 0), coalesce(?13, '[]'), ?14)"
    " ON CONFLICT (root) DO UPDATE SET traceparent = coalesce(excluded.traceparent, traceparent),"
    " label = coalesce(excluded.label, label),"
    " message_id = coalesce(excluded.message_id, message_id), attempt = max(attempt, excluded.attempt),"
    " retry_of = coalesce(excluded.retry_of, retry_of), emitted_ms = min(emitted_ms, excluded.emitted_ms),"
    " pack = coalesce(?11, pack), tuples = coalesce(?12, tuples), components = coalesce(?13, components),"
    " shown = coalesce(?14, shown)"
)
VERDICT: Final = (
    "UPDATE messages SET verdict = ?, verdict_ms = ?, reason = ?, component = ?, traceback = ? WHERE root = ?"
)
LATER: Final = "INSERT OR REPLACE INTO later (pack, tuples, components, root) VALUES (?, ?, ?, ?)"
