"""Rows a second into PostgreSQL: ``SqlSink`` with its marks, and a bare COPY loop, in turn.

::

    python -m benchmarks sql_sink --rows 200000 --connections 2 --rounds 5

``upsert`` writes new keys, ``update`` keys that are all there. Both kinds write the same rows, a page in each
transaction, with as many processes and connections; the server runs on this machine. The loop gives
psycopg's ``copy`` tuples that are there. The sink gets Arrow batches, as from
a gate, checks each value, and writes its mark. Not in it: Spark, the way through the gate, and a first page,
with which the sink reads the table's definition.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any, Final

from benchmarks.report import Report, add_keep_argument, print_line

_FIELDS: Final = ("id", "word", "amount", "at")
_TABLE: Final = "(id bigint PRIMARY KEY, word text, amount double precision, at bigint)"


def _columns(first: int, count: int) -> list[list[Any]]:
    numbers = range(first, first + count)
    return [
        [*numbers],
        [f"word {n % 5000}" for n in numbers],
        [n / 7 for n in numbers],
        [1_800_000_000_000 + n for n in numbers],
    ]


def _pages(writer: int, rows: int, page: int) -> list[list[list[Any]]]:
    starts = range(-page, rows, page)  # the first page is not timed
    return [_columns(writer * 10**9 + page + first, min(page, rows - first)) for first in starts]


def bare(url: str, table: str, writer: int, rows: int, page: int) -> float:
    """A COPY loop; returns its seconds."""
    import sqlalchemy as sa  # noqa: PLC0415  # an extra

    pages = [[*zip(*each, strict=True)] for each in _pages(writer, rows, page)]
    with sa.create_engine(url).connect() as pooled:
        connection: Any = pooled.connection.driver_connection
        started = time.perf_counter()
        for number, each in enumerate(pages):
            if number == 1:
                started = time.perf_counter()
            statement = f"COPY {table} ({', '.join(_FIELDS)}) FROM STDIN"
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                for row in each:
                    copy.write_row(row)
            connection.commit()
        return time.perf_counter() - started


def sink(url: str, table: str, writer: int, rows: int, page: int, mode: str) -> float:
    """``SqlSink`` as a task calls it; returns its seconds."""
    import pyarrow as pa  # noqa: PLC0415

    from acktree import Config  # noqa: PLC0415
    from acktree.connectors.sql import SqlSink  # noqa: PLC0415
    from acktree.core.data.context import TaskContext  # noqa: PLC0415

    pages = [pa.record_batch(each, names=[*_FIELDS]) for each in _pages(writer, rows, page)]
    way: Any = "insert" if mode == "insert" else "upsert"
    made = SqlSink(url, table, mode=way, key=() if mode == "insert" else "id")
    checkpoint = f"run {time.monotonic_ns()}"
    made.open(Config(), TaskContext("t", "sink", writer, 0, {"sink": (1,)}, checkpoint_id=checkpoint))
    made.last_mark()
    before = pages if mode == "update" else pages[:1]
    started = time.perf_counter()
    for number, each in enumerate(before + pages[1:]):
        if number == len(before):
            started = time.perf_counter()
        refused = made.write(each, f"mark {number}".encode())
        assert not refused, refused
    return time.perf_counter() - started


def _rate(job: Any, arguments: Sequence[Any], connections: int, rows: int, page: int) -> float:  # noqa: ANN401
    url, table, *more = arguments
    with ProcessPoolExecutor(connections, mp_context=get_context("spawn")) as pool:
        runs = [
            pool.submit(job, url, table, at, rows // connections, page, *more) for at in range(connections)
        ]
        secs: float = max(run.result() for run in runs)
    return rows / secs


def main(arguments: Sequence[str]) -> None:
    """Print a line of JSON for each mode."""
    from tests.services.postgresql import PostgreSQL, programs  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m benchmarks sql_sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--page", type=int, default=10_000, help="rows of a transaction")
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--modes", nargs="+", default=["insert", "upsert"], choices=["insert", "upsert", "update"]
    )
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    folder = programs()
    if folder is None:
        raise SystemExit("PostgreSQL is not installed")
    server = PostgreSQL(folder)
    try:
        server.make_schema("bench")
        for mode in given.modes:
            report = Report("sql_sink", {"mode": mode, "page": given.page, "connections": given.connections})
            rates: dict[str, list[float]] = {"copy": [], "sink": []}
            for at in range(given.rounds):
                for kind in ("copy", "sink") if at % 2 else ("sink", "copy"):
                    with server.connect() as connection:
                        connection.execute("DROP TABLE IF EXISTS bench.bare")
                        connection.execute(f"CREATE TABLE bench.bare {_TABLE}")
                    more = (mode,) if kind == "sink" else ()
                    target = (server.url("bench"), "bare", *more)
                    job = sink if kind == "sink" else bare
                    rates[kind].append(_rate(job, target, given.connections, given.rows, given.page))
            ratios = [ours / its for ours, its in zip(rates["sink"], rates["copy"], strict=True)]
            found = {f"{kind}_rows_per_sec": round(median(each)) for kind, each in rates.items()}
            ratio = {"ratio": round(median(ratios), 3), "ratios": [round(each, 3) for each in ratios]}
            print_line(report.line({**found, **ratio}), keep=given.keep)
    finally:
        server.remove()
