"""Rows a second into PostgreSQL: ``SqlSink``, a bare COPY loop, and Spark's recipe for exactly once, in turn.

::

    python -m benchmarks sql_sink --rows 200000 --connections 2 --rounds 5

``upsert`` writes new keys, ``update`` keys that are all there. All three write the same rows, a page in each
transaction, with as many processes and connections; the server runs on this machine. The loop gives
psycopg's ``copy`` tuples that are there, and can write new keys alone. The recipe is what a careful user of
``foreachBatch`` runs in ``foreachPartition``: the number of the micro-batch and the rows in one transaction,
COPY, and with a key a temporary table and ``INSERT ... ON CONFLICT``. Like the loop it gets tuples. It
takes each key once in a page, and a row that the table refuses fails its page. The sink gets Arrow
batches, as from a gate, checks each value, and writes its mark. Not in it: Spark, the way through the gate,
and a first page, with which the sink reads the table's definition.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
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


def recipe(url: str, table: str, writer: int, rows: int, page: int, mode: str) -> float:
    """The recipe for ``foreachBatch``; returns its seconds. It is written as its users write it."""
    import sqlalchemy as sa  # noqa: PLC0415

    pages = [[*zip(*each, strict=True)] for each in _pages(writer, rows, page)]
    with sa.create_engine(url).connect() as pooled:
        connection: Any = pooled.connection.driver_connection
        before = pages if mode == "update" else pages[:1]
        started = time.perf_counter()
        for number, each in enumerate(before + pages[1:]):
            if number == len(before):
                started = time.perf_counter()
            with connection.transaction(), connection.cursor() as cursor:
                _write_page(cursor, table, each, (writer, number), has_key=mode != "insert")
        return time.perf_counter() - started


def _write_page(
    cursor: Any,  # noqa: ANN401  # psycopg's
    table: str,
    rows: Sequence[tuple[Any, ...]],
    mark: tuple[int, int],
    *,
    has_key: bool,
) -> None:
    """Write the rows of a partition, unless they are written already: ``mark`` is its number, and Spark's."""
    cursor.execute(
        "INSERT INTO bench.written VALUES (%s, %s) ON CONFLICT (part) DO UPDATE SET batch = excluded.batch "
        "WHERE written.batch < excluded.batch",
        mark,
    )
    if not cursor.rowcount:
        return
    fields = ", ".join(_FIELDS)
    if has_key:
        cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS staged (LIKE {table}) ON COMMIT DELETE ROWS")
    with cursor.copy(f"COPY {'staged' if has_key else table} ({fields}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    if has_key:
        changes = ", ".join(f"{name} = excluded.{name}" for name in _FIELDS[1:])
        cursor.execute(
            f"INSERT INTO {table} ({fields}) SELECT {fields} FROM staged "  # noqa: S608  # our own names
            f"ON CONFLICT (id) DO UPDATE SET {changes}"
        )


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


_JOBS: Final = {"copy": bare, "recipe": recipe, "sink": sink}


def _ratios(rates: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The sink over the others and the recipe over the loop: the median of pairs, and each pair."""
    found: dict[str, Any] = {}
    for ours, its in (("sink", "copy"), ("sink", "recipe"), ("recipe", "copy")):
        ratios = [one / other for one, other in zip(rates[ours], rates[its], strict=True)]
        name = f"{ours}/{its}"
        found |= {name: round(median(ratios), 3), f"{name} each": [round(each, 3) for each in ratios]}
    return found


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
    parser.add_argument(
        "--fillfactor",
        type=int,
        default=100,
        help="percent of a page that new rows fill; 50: an update finds room",
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
            options = {"page": given.page, "connections": given.connections, "fillfactor": given.fillfactor}
            report = Report("sql_sink", {"mode": mode, **options})
            rates: dict[str, list[float]] = {kind: [] for kind in _JOBS}
            for at in range(given.rounds):
                for kind in [*_JOBS][:: 1 if at % 2 else -1]:
                    with server.connect() as connection:
                        connection.execute("DROP TABLE IF EXISTS bench.bare, bench.written")
                        connection.execute(
                            f"CREATE TABLE bench.bare {_TABLE} WITH (fillfactor={given.fillfactor})"
                        )
                        connection.execute("CREATE TABLE bench.written (part int PRIMARY KEY, batch bigint)")
                    target = (server.url("bench"), "bare", *(() if kind == "copy" else (mode,)))
                    rates[kind].append(_rate(_JOBS[kind], target, given.connections, given.rows, given.page))
            found = {f"{kind}_rows_per_sec": round(median(each)) for kind, each in rates.items()}
            print_line(report.line({**found, **_ratios(rates)}), keep=given.keep)
    finally:
        server.remove()
