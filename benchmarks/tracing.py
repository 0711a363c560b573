"""What the message trace costs: the tracked word count's levels in this process, with it and without.

    python -m benchmarks tracing --bolts basic --pairs 30
    python -m benchmarks tracing --messages 10000000 --rate 0.02

Runs micro-batches with and without tracing in turns, so that a busy neighbour disturbs both alike, and
compares the CPU time of each pair: the levels and the acker, and the recorder's thread, whose work is done at
the end of each micro-batch here.

``--messages``: this many messages with tracing alone; one line of JSON says what is stored, on disk and in
memory.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from acktree.core.data.frames import Kind, WireRow
from acktree.core.micro_batch import MicroBatch as Batch
from acktree.traces.recorder import TraceRecorder
from acktree.traces.store import TraceStore
from benchmarks.python_side import MicroBatch
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import Variant


def cpu_secs(micro_batch: MicroBatch, recorder: TraceRecorder, number: int) -> tuple[float, float]:
    """CPU seconds of the levels and the acker, and of the recorder, in one micro-batch."""
    seconds: dict[str, float] = {}
    sent: dict[str, list[WireRow]] = {}
    micro_batch.run(seconds, sent)
    traced = [row for rows in sent.values() for row in rows if row.kind == Kind.TRACE]
    started = process_time()
    recorder.add(Batch(number, number), traced)
    return sum(seconds.values()), process_time() - started


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print the ratio and its spread."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks tracing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.add_argument("--rate", type=float, default=0.001, help="the share of messages that is traced")
    parser.add_argument("--pairs", type=int, default=30, help="pairs of micro-batches")
    parser.add_argument("--messages", type=int, default=0, help="trace this many, and say what is stored")
    parser.add_argument("--sentences", type=int, default=20_000, help="sentences of a micro-batch")
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    variant = variant_of(args)
    if args.messages:
        print_line(_bounds(variant, args.rate, args.messages, args.sentences), keep=args.keep)
        return
    with TemporaryDirectory() as folder:
        store = TraceStore(Path(folder) / "traces.sqlite")
        sides: list[tuple[MicroBatch, TraceRecorder]] = []
        for rate in (0.0, args.rate):
            micro_batch = MicroBatch(variant, args.sentences)
            config = replace(micro_batch.plan.config, trace_sample_rate=rate)
            micro_batch.plan = replace(micro_batch.plan, config=config)
            sides.append((micro_batch, TraceRecorder(store, rate, 7, is_threaded=False)))
        times: tuple[list[float], list[float]] = ([], [])
        writes: list[float] = []
        for number in range(args.pairs + 2):
            for side in (0, 1) if number % 2 else (1, 0):
                levels, written = cpu_secs(*sides[side], number)
                if number > 1:  # the first ones warm up
                    times[side].append(levels + written)
                    writes += [written] * side
        print(_said(times, writes, store.count(), args.sentences))


def _bounds(variant: Variant, rate: float, messages: int, sentences: int) -> dict[str, Any]:
    """Trace many messages; what is stored, and the largest memory of the process after each tenth of them."""
    report = Report("tracing", asdict(replace(variant, trace_rate=rate)) | {"sentences": sentences})
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = TraceStore(folder / "traces.sqlite")
        micro_batch, recorder = (
            MicroBatch(variant, sentences),
            TraceRecorder(store, rate, 7, is_threaded=False),
        )
        config = replace(micro_batch.plan.config, trace_sample_rate=rate)
        micro_batch.plan = replace(micro_batch.plan, config=config)
        most_bytes = 0
        sizes: list[int] = []
        for number in range(max(1, messages // sentences)):
            cpu_secs(micro_batch, recorder, number)
            most_bytes = max(most_bytes, sum(file.stat().st_size for file in folder.iterdir()))
            if number % max(1, messages // sentences // 10) == 0:
                sizes.append(getrusage(RUSAGE_SELF).ru_maxrss // 1024)
        return report.line(
            {
                "messages": messages,
                "traced": store.recorded,
                "stored": store.count(),
                "most_disk_mb": round(most_bytes / 1e6),
                "most_memory_mb": sizes,
            }
        )


def _said(times: tuple[list[float], list[float]], writes: list[float], stored: int, sentences: int) -> str:
    ratios = sorted(traced / plain for plain, traced in zip(*times, strict=True))
    low, middle, high = (ratios[len(ratios) * at // 4] for at in (1, 2, 3))
    plain = statistics.median(times[0]) / sentences * 1e6
    return (
        f"ratio {middle:.4f} (quartiles {low:.4f} to {high:.4f}, {len(ratios)} pairs); "
        f"{plain:.2f} us a sentence without; the recorder takes {statistics.median(writes) * 1e3:.1f} ms "
        f"a micro-batch; {stored:,} messages stored"
    )


if __name__ == "__main__":
    main()
