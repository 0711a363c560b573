"""What the checksums of durable files cost: the tracked word count's micro-batches, with them and without.

    python -m benchmarks checksums --bolts arrow --pairs 15

Levels, acker and files run in this process, without Spark: chunks in the inbox, which each partition reads
again, what bolts remember, and the commit log. Two checkpoints take micro-batches in turn (A B B A ...), one
of them with a constant in the place of CRC-32. Compared is the CPU time of each pair, user and system. A
whole run has Spark's part on top, so there the share is smaller.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from types import SimpleNamespace
from typing import Any

from acktree.checkpoint import envelope, memory_files
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import ChunkKind, Entry, read_chunk
from acktree.checkpoint.logs.acker_log import DurableAcker
from acktree.checkpoint.logs.commit_log import Commit, CommitLog, Outcome
from acktree.checkpoint.logs.memory_log import MemoryLog, MemoryOfBatch
from acktree.core.data.frames import Kind
from acktree.core.micro_batch import MicroBatch as Batch
from acktree.driver.batch import rows_by_kind
from acktree.tasks.bolts.level import ReadChunk
from acktree.tasks.chunk import Chunk
from acktree.tasks.payloads import no_payloads
from benchmarks.python_side import MicroBatch
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import Variant


class Stored(MicroBatch):
    """Micro-batches of which all that a run keeps is in files."""

    def __init__(self, variant: Variant, sentences: int, folder: Path) -> None:
        """Begin a checkpoint in a folder, which is made."""
        super().__init__(variant, sentences)
        folder.mkdir()
        self.folder, self.number, self.first = folder, -1, 0
        self.inbox = FileInbox(folder / "inbox", -1, 1 << 40, 1 << 40)
        self.durable = DurableAcker(self.plan, folder)
        self.log = CommitLog(folder, [self.durable, MemoryLog(folder / "state", 0)])
        self.log.recover(-1)

    def take(self) -> int:
        """Run the next one, and commit it. Returns how many messages were acked."""
        self.number += 1
        memories = {key: MemoryOfBatch(self.folder / "state", self.number, 0) for key in self.stores}
        self.stores.update(memories)
        rows = self.run_levels({})
        for (_, partition), memory in memories.items():
            rows += memory.commit(partition)
        by_kind = rows_by_kind(rows)
        deltas = (*by_kind.get(Kind.DELTAS, ()), *by_kind.get(Kind.COMBINED, ()))
        verdicts, _ = self.durable.judge(Batch(self.number, self.clock_ms), deltas, no_payloads)
        end = self.inbox.last_number
        self.log.write(Commit(self.number, self.clock_ms, end), Outcome(by_kind, verdicts))
        for number in range(self.first, end + 1):
            self.inbox.release(number)
        self.inbox.consumed(end)
        self.inbox.committed(end)
        return sum(len(sequences) for _, sequences in verdicts.done) + len(verdicts.acked.roots)

    def _reader(self, chunks: Sequence[Chunk]) -> ReadChunk:
        self.first = self.inbox.append(chunks)
        numbered = enumerate(chunks, self.first)
        names = [Entry(number, ChunkKind.DATA, chunk.task, len(chunk)).name for number, chunk in numbered]
        return lambda name: read_chunk(self.folder / "inbox", names[int(name)])


@contextmanager
def without_checksums() -> Iterator[None]:
    """Let a constant be the checksum of whatever is written and read in this block."""
    of_envelopes, of_memory = vars(envelope), vars(memory_files)
    before = of_envelopes["zlib"], of_memory["crc32"]
    constant = SimpleNamespace(crc32=lambda *_: 0)
    of_envelopes["zlib"], of_memory["crc32"] = constant, constant.crc32
    try:
        yield
    finally:
        of_envelopes["zlib"], of_memory["crc32"] = before


def measure(variant: Variant, sentences: int, pairs: int) -> dict[str, Any]:
    """Both in turn."""
    report, names = Report("checksums", asdict(variant)), ("with", "without")
    took: tuple[list[float], list[float]] = ([], [])
    with TemporaryDirectory(prefix="acktree-benchmark-") as folder:
        sides = [Stored(variant, sentences, Path(folder, name)) for name in names]
        for number in range(pairs + 1):
            for at in (0, 1) if number % 2 else (1, 0):
                with without_checksums() if at else nullcontext():
                    started = process_time()
                    acked = sides[at].take()
                    spent = process_time() - started
                assert acked == sentences, f"{acked} of {sentences} acked"
                if number:  # the first imports, and fills the memories
                    took[at].append(spent / sentences * 1e6)
    ratios = [checked / bare for checked, bare in zip(*took, strict=True)]
    return report.line(
        {
            "sentences": sentences,
            "us_per_root": dict(
                zip(names, (round(statistics.median(each), 3) for each in took), strict=True)
            ),
            "ratio": round(statistics.median(ratios), 4),
            "ratio_of_least": round(min(took[0]) / min(took[1]), 4),  # on a busy machine
            "ratios": [round(each, 4) for each in ratios],
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks checksums",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.set_defaults(trace_rate=0.0)
    parser.add_argument("--sentences", type=int, default=100_000, help="messages in a micro-batch")
    parser.add_argument("--pairs", type=int, default=15)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    print_line(measure(variant_of(args), args.sentences, args.pairs), keep=args.keep)


if __name__ == "__main__":
    main()
