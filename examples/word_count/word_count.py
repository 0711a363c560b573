"""How often does each word of a text occur? Counted on Spark, with counts that survive a restart.

::

    lines ──shuffle──► split ──fields: word──► count ──global──► shelf ──► counts.sqlite

Run it: ``python examples/word_count/word_count.py [TEXT] [--checkpoint FOLDER]``. README.md says what to see.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from acktree import (
    ArrowBolt,
    ArrowOutputCollector,
    BasicBolt,
    BasicOutputCollector,
    Config,
    IterableSpout,
    KeyValueState,
    Retry,
    TaskContext,
    Topology,
    TopologyBuilder,
    Tuple,
    bolt,
    submit,
)

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
WORD = re.compile(r"\w+(?:['\u2019]\w+)*")


# 1. The messages are the lines of a text, always in the same order. A line's position is its message id.


def read_lines(text: Path) -> Iterator[str]:
    """The lines of a file, or of all text files in a folder."""
    for file in sorted(text.rglob("*")) if text.is_dir() else [text]:
        if file.is_file() and b"\0" not in file.read_bytes()[:8192]:
            with file.open(encoding="utf-8", errors="replace") as lines:
                yield from lines


# 2. The bolts.


@bolt(outputs=["word"])
def split(tup: Tuple) -> Iterator[list[str]]:
    """The words of a line, in lower case."""
    for word in WORD.findall(tup["line"].lower()):
        yield [word]


class Count(BasicBolt):
    """How often each word came so far. Equal words come to the same task, so counts never overlap."""

    outputs = ["word", "count"]
    remembers = ["counts"]

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.counts: KeyValueState[str, int] = KeyValueState()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        word = tup["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word]])


class Shelf(ArrowBolt):
    """Writes counts where others can read them, in one transaction for each batch.

    A micro-batch that was interrupted runs again and repeats its writes. A count only grows, so the larger
    one is the newer one.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        newest = (
            "INSERT INTO counts VALUES (?, ?) ON CONFLICT DO UPDATE SET count = max(count, excluded.count)"
        )
        with closing(sqlite3.connect(self.file)) as shelf, shelf:
            shelf.executemany(newest, zip(batch["word"].to_pylist(), batch["count"].to_pylist(), strict=True))


# 3. The topology: which bolt reads which component.


def word_count(text: Path, file: Path) -> Topology:
    """The topology that counts the words of ``text`` into the SQLite file ``file``."""
    with closing(sqlite3.connect(file)) as shelf, shelf:
        shelf.execute("CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count INTEGER NOT NULL)")
    # One attempt: a line that was tried again would be counted again. One that fails is a dead letter.
    once = Retry(max_attempts=1)
    builder = TopologyBuilder("word-count")
    builder.set_spout("lines", IterableSpout(lambda: read_lines(text), outputs=["line"]), retry=once)
    builder.set_bolt("split", split, parallelism=2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), parallelism=2).fields_grouping("split", ["word"])
    builder.set_bolt("shelf", Shelf(file)).global_grouping("count")
    return builder.create_topology()


def read_counts(file: Path) -> dict[str, int]:
    """What was counted, the most frequent word first."""
    with closing(sqlite3.connect(file)) as shelf:
        return dict(shelf.execute("SELECT word, count FROM counts ORDER BY count DESC, word"))


# 4. Run it, and print the result.


def main() -> int:
    """Count, and print the account and the most frequent words."""
    options = arguments()
    folder = options.checkpoint or Path(tempfile.mkdtemp(prefix="word_count-"))
    if not belongs_to(folder, options.text):
        sys.exit(f"{folder} counts another text; give {options.text} a folder of its own")
    file = folder / "counts.sqlite"  # beside the bolts' memory: the two belong together

    say("Starting Spark, which takes some seconds.")
    with submit(word_count(options.text, file), checkpoint=folder) as running:
        try:
            while not running.await_termination(timeout_secs=5):
                say(f"{running.stats()['lines'].total.acked:,} lines are counted.")
        except KeyboardInterrupt:
            say("\nStopping: what is open may still finish, for ten seconds.")
            running.kill(wait_secs=10)
            print(f"Stopped. To go on: python {sys.argv[0]} {options.text} --checkpoint {folder}")
            return 130
        acked, dead = running.stats()["lines"].total.acked, len(running.dead_letters)

    if acked:
        print(f"{acked:,} lines of {options.text} are counted, {dead:,} are dead letters.")
    else:
        print(f"Nothing new: all of {options.text} was counted in an earlier run.")
    counts = read_counts(file)
    print(f"{sum(counts.values()):,} words, {len(counts):,} different ones:\n")
    for word, count in list(counts.items())[: options.top]:
        print(f"{count:10,}  {word}")
    if not options.checkpoint:
        shutil.rmtree(folder)
    return 0


def belongs_to(folder: Path, text: Path) -> bool:
    """Whether a folder belongs to this text; a new folder does from now on."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "text"
    if not note.exists():
        note.write_text(str(text))
    return note.read_text() == str(text)


def arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(description="Counts the words of a text.")
    parser.add_argument(
        "text", nargs="?", type=existing, default=LICENSE,
        help="a file, or a folder of files (default: acktree's licence)",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER",
        help="keep counts and position; a run with the same folder continues (default: keep nothing)",
    )  # fmt: skip
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="how many words to show (default: 10)"
    )
    return parser.parse_args()


def existing(path: str) -> Path:
    """A path that is there."""
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path} is not there")
    return Path(path).resolve()


def say(what: str) -> None:
    """Print the progress, to stderr."""
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
