"""The word count as a Pathway program. Run by Pathway's own interpreter, which has no acktree.

Environment variables: FLOW_SOURCE, ``files`` of the folder FLOW_FOLDER, or ``python`` for the lines of the
file FLOW_SENTENCES; FLOW_COMMIT_MS, how long a micro-batch collects; FLOW_BACKLOG, how many sentences wait;
FLOW_UDF_ROWS, how many sentences a call of the split has; FLOW_WARM_UP and FLOW_SECS.

Says "measuring" on a line at the first end of a micro-batch after the warm-up, at a later one what it found
as a line of JSON, and then waits for its standard input to end, so that its CPU can be read while it lives.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from itertools import cycle
from pathlib import Path

import pathway as pw

WORDS = 6
MEMORY_BYTES = 8_000_000_000
WARM_UP, SECS = float(os.environ["FLOW_WARM_UP"]), float(os.environ["FLOW_SECS"])


class Meter:
    """Knows how many words are counted, and looks at the clock at the end of each micro-batch."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self.words = self.changed = self.before = 0
        self.first = self.began = 0.0

    def on_change(self, key: object, row: dict[str, int], time: int, is_addition: bool) -> None:  # noqa: FBT001
        """There is one row, with the sum of all counts; the old one is taken away."""
        if is_addition:
            self.words = row["words"]

    def on_time_end(self, _: int) -> None:
        """The micro-batch ends."""
        if self.words == self.changed:
            return
        now, self.changed = time.perf_counter(), self.words
        if not self.first:
            self.first = now
        if not self.began and now >= self.first + WARM_UP:
            self.began, self.before = now, self.words
            print("measuring", flush=True)
        elif self.began and now >= self.began + SECS:
            roots = (self.words - self.before) // WORDS
            print(json.dumps({"roots": roots, "secs": now - self.began}), flush=True)
            sys.stdin.read()
            os._exit(0)


@pw.udf(  # type: ignore[untyped-decorator]
    max_batch_size=int(os.environ["FLOW_UDF_ROWS"]), deterministic=True
)
def split(sentences: list[str]) -> list[list[str]]:
    """Pathway has no split of its own."""
    return [sentence.split() for sentence in sentences]


class Sentences(pw.io.python.ConnectorSubject):  # type: ignore[misc]  # Pathway is not where types are checked
    """Goes round the sentences."""

    deletions_enabled = False

    def run(self) -> None:
        """A call for each; it blocks while too many wait."""
        for sentence in cycle(Path(os.environ["FLOW_SENTENCES"]).read_text().splitlines()):
            self.next(data=sentence)


class Line(pw.Schema):  # type: ignore[misc]
    """One sentence."""

    data: str


def die_after(secs: float) -> None:
    """End the process if it has not ended until then."""
    time.sleep(secs)
    print(f"nothing was found in {secs:.0f} s", file=sys.stderr, flush=True)
    os._exit(1)


resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))  # or it takes all that the machine has
threading.Thread(target=die_after, args=(WARM_UP + SECS + 90,), daemon=True).start()
commit_ms, backlog = int(os.environ["FLOW_COMMIT_MS"]), int(os.environ["FLOW_BACKLOG"])
if os.environ["FLOW_SOURCE"] == "python":
    lines = pw.io.python.read(
        Sentences(), schema=Line, autocommit_duration_ms=commit_ms, max_backlog_size=backlog
    )
else:
    lines = pw.io.plaintext.read(
        os.environ["FLOW_FOLDER"],
        mode="streaming",
        autocommit_duration_ms=commit_ms,
        max_backlog_size=backlog,
    )
words = lines.select(word=split(pw.this.data)).flatten(pw.this.word)
counts = words.groupby(pw.this.word).reduce(pw.this.word, count=pw.reducers.count())
total = counts.reduce(words=pw.reducers.sum(pw.this.count))
meter = Meter()
pw.io.subscribe(total, on_change=meter.on_change, on_time_end=meter.on_time_end)
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
