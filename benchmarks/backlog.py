"""A backlog of a DataFrame's rows in one micro-batch: the bytes that the driver gets, and its memory.

    python -m benchmarks backlog --rows 2000000 --master 'local[2,4]'
    python -m benchmarks backlog --rows 2000000 --master 'local-cluster[1,2,4096]' --apart

Parquet files hold rows of 1 KB; one in a thousand fails at each attempt. The source sets no limit, so one
micro-batch takes all of them. The spout has a ``Retry`` of two attempts: a row that fails twice becomes a
dead letter with its values. The verdicts are compared with the expected ones: a difference is an error.

``--apart`` runs as on a cluster: large rows go through Spark and not through files of one machine.

Printed: seconds until the last dead letter; the bytes that came to the driver through Spark, for each row;
the bytes of values that it read, for each failed row; and the largest resident memory of the driver's two
processes (Python, and the JVM, which with a ``local`` master also runs the tasks). One line of JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acktree import BasicBolt, DataFrameSpout, Retry, TopologyBuilder, submit
from acktree.bolt import BasicOutputCollector
from acktree.core.data.frames import WireRow
from acktree.core.data.tuples import Tuple
from benchmarks.report import Report, add_keep_argument, print_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree import RunningTopology

ROW_BYTES: Final = 1000
POISON_EVERY: Final = 1000
_FILE_ROWS: Final = 50_000
_PATIENCE_SECS: Final = 900.0


class Poisoned(BasicBolt):
    """Fails one row in :data:`POISON_EVERY`."""

    outputs: Sequence[str] = ()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:  # it emits nothing
        """Raise on a poisoned row."""
        if tup["n"] % POISON_EVERY == 0:
            raise ValueError("poison")


class Arrived:
    """Counts the bytes of wire rows that come to the driver through Spark."""

    def __init__(self) -> None:
        self.byte_count = 0

    def counting(self, rows_of: Any) -> Any:  # noqa: ANN401  # a function of the sink's, and one like it
        """The same function, which also counts."""

        def counted(batch: pa.RecordBatch) -> Iterator[WireRow]:
            for row in rows_of(batch):
                self.byte_count += len(row.head) + len(row.body)
                yield row

        return counted


def write_rows(folder: Path, rows: int) -> None:
    """Write rows to Parquet files; their values do not compress."""
    folder.mkdir(parents=True)
    for first in range(0, rows, _FILE_ROWS):
        numbers = np.arange(first, min(first + _FILE_ROWS, rows))
        noise = np.random.default_rng(first).bytes(len(numbers) * ROW_BYTES)
        offsets = np.arange(len(numbers) + 1, dtype=np.int32) * ROW_BYTES
        values = pa.BinaryArray.from_buffers(
            pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(noise)]
        )
        table = pa.table({"n": pa.array(numbers, pa.int64()), "payload": values})
        pq.write_table(table, folder / f"{first:09d}.parquet", compression="none", use_dictionary=False)


def session_on(master: str, folder: Path, settings: Iterable[tuple[str, str]]) -> SparkSession:
    """A session whose driver has 1 GB of heap, unless the settings say otherwise."""
    from acktree.spark.session.settings import SETTINGS  # noqa: PLC0415  # so that --help does not wait for Spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    wanted = {
        "spark.master": master,
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-Xss16m",
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    }
    wanted |= {setting.key: setting.value for setting in SETTINGS}
    builder = SparkSession.builder.appName("acktree-backlog")
    for key, value in (wanted | dict(settings)).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def measure(
    rows: int, master: str, *, apart: bool, settings: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Run one backlog to its last verdict.

    Args:
        apart: Whether large rows go through Spark, as on a cluster.
        settings: Spark's; they take precedence over acktree's.

    Raises:
        AssertionError: A row has another verdict than the expected one.
    """
    from acktree.spark import submit as submitting  # noqa: PLC0415
    from acktree.spark.query import results  # noqa: PLC0415  # so that --help does not wait

    variant = {"rows": rows, "master": master, "apart": apart, **dict(settings)}
    report, arrived = Report("backlog", variant), Arrived()
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        folder = Path(name)
        if os.fork() == 0:  # the memory for making the rows is not the driver's
            write_rows(folder / "rows", rows)
            os._exit(0)
        assert os.wait()[1] == 0, "the rows could not be written"
        session = session_on(master, folder / "local", settings)
        if apart:
            submitting._scratch_folder = lambda *_: None  # noqa: SLF001  # the only way to run as on a cluster
        results.rows_of = arrived.counting(results.rows_of)  # type: ignore[attr-defined]
        gateway = session.sparkContext._gateway  # noqa: SLF001  # its memory is measured
        assert gateway is not None, "the session runs"
        jvm = gateway.proc.pid
        for pid in (os.getpid(), jvm):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted from here
        frame = session.readStream.schema("n long, payload binary").parquet(str(folder / "rows"))
        builder = TopologyBuilder("backlog")
        retry = Retry(max_attempts=2, backoff_secs=(0.1, 0.1))
        builder.set_spout("rows", DataFrameSpout(frame, message_id="n"), retry=retry)
        builder.set_bolt("poisoned", Poisoned(), parallelism=2).shuffle_grouping("rows")
        began = time.monotonic()
        try:
            with submit(
                builder.create_topology(), checkpoint=folder / "checkpoint", spark=session
            ) as running:
                found = _to_the_end(running, rows)
        finally:
            peaks = {"python": _peak_mb(os.getpid()), "jvm": _peak_mb(jvm)}
            with suppress(Exception):
                session.stop()
        secs = time.monotonic() - began
    return report.line(
        {
            **found,
            "secs": round(secs, 1),
            "bytes_to_driver_per_row": round(arrived.byte_count / rows, 1),
            "peak_python_mb": peaks["python"],
            "peak_jvm_mb": peaks["jvm"],
        }
    )


def _to_the_end(running: RunningTopology, rows: int) -> dict[str, int]:
    """Wait for all verdicts, and compare them with the expected ones."""
    poison = -(-rows // POISON_EVERY)
    deadline = time.monotonic() + _PATIENCE_SECS
    while len(running.dead_letters) < poison:
        running.await_termination(0.2)  # raises what stopped it
        assert time.monotonic() < deadline, f"only {len(running.dead_letters)} dead letters"
    assert running.await_idle(timeout_secs=60)
    total = running.stats()["rows"].total
    assert (total.acked, total.failed, total.timed_out) == (rows - poison, 2 * poison, 0), total
    values: list[Any] = [letter.values for letter in running.dead_letters]
    letters = {int(number): len(row) for number, row in values}
    assert letters == dict.fromkeys(range(0, rows, POISON_EVERY), ROW_BYTES), "other dead letters"
    return {"acked": total.acked, "failed": total.failed, "dead_letters": len(letters)}


def _peak_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return round(int(peak.split()[1]) / 1024)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks backlog",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--master", default="local[2,4]", help="Spark's master")
    parser.add_argument("--apart", action="store_true", help="large rows go through Spark, as on a cluster")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's"
    )
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    settings = [(key, value) for key, _, value in (each.partition("=") for each in args.conf)]
    print_line(measure(args.rows, args.master, apart=args.apart, settings=settings), keep=args.keep)
