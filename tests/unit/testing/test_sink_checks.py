"""What ``check_sink`` finds: each mistake that a sink of a user may make is named by one check."""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path

import pytest

from acktree import ConnectorError, Sink
from acktree.testing import SINK_CHECKS, check_sink

MISTAKES = {
    "one mark for all tasks": "writers_have_marks_of_their_own",
    "a second run writes": "a_write_with_the_last_mark_changes_nothing",
    "refusals are forgotten": "a_refused_row_fails_alone_and_is_refused_again",
    "one row refuses all": "a_refused_row_fails_alone_and_is_refused_again",
    "an abandoned process writes": "an_abandoned_process_writes_nothing",
    "no rows, no mark": "a_batch_without_rows_has_a_mark",
    "the mark comes after the rows": "a_write_killed_at_any_line_leaves_all_or_nothing",
    "the mark comes before the rows": "a_write_killed_at_any_line_leaves_all_or_nothing",
    "a file is seen before it is whole": "a_write_killed_at_any_line_leaves_all_or_nothing",
}


class FolderSink(Sink):
    """A file of JSON for each write, with rows, mark and refusals: its renaming is the transaction."""

    def __init__(self, folder, mistake=""):
        self.folder, self.mistake = Path(folder), mistake

    def open(self, config, context):
        names = [context.checkpoint_id, context.component_id, str(context.task_id)]
        if self.mistake == "one mark for all tasks":
            names.pop()
        self.own = self.folder / hashlib.sha256("/".join(names).encode()).hexdigest()
        self.own.mkdir(parents=True, exist_ok=True)

    def last_mark(self):
        self.seen = self._newest()[1]["mark"]
        return bytes.fromhex(self.seen) if self.seen else None

    def write(self, batch, mark):
        with (self.own / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self._written(batch.to_pylist(), mark.hex())

    def _newest(self):
        files = sorted(self.own.glob("*.json"))
        newest = json.loads(files[-1].read_text()) if files else {"mark": None, "refused": {}}
        return len(files), newest

    def _written(self, rows, mark):
        number, newest = self._newest()
        if newest["mark"] == mark and self.mistake != "a second run writes":
            is_forgetful = self.mistake == "refusals are forgotten"
            return {} if is_forgetful else {int(row): why for row, why in newest["refused"].items()}
        if newest["mark"] != self.seen and self.mistake != "an abandoned process writes":
            raise ConnectorError("another process has written", str(self.own), "let that one go on")
        refused = {n: "too long" for n, row in enumerate(rows) if len(row["value"]) > 100}
        if refused and self.mistake == "one row refuses all":
            refused = dict.fromkeys(range(len(rows)), "too long")
        kept = [row for n, row in enumerate(rows) if n not in refused]
        if kept or self.mistake != "no rows, no mark":
            for at, content in enumerate(self._files(kept, mark, refused, newest["mark"])):
                self._put(f"{number + at:09}.json", json.dumps(content))
        self.seen = mark
        return refused

    def _files(self, rows, mark, refused, before):
        whole = {"mark": mark, "refused": refused, "rows": rows}
        if self.mistake == "the mark comes after the rows":
            return [{**whole, "mark": before}, {**whole, "rows": []}]
        if self.mistake == "the mark comes before the rows":
            return [{**whole, "rows": []}, whole]
        return [whole]

    def _put(self, name, text):
        if self.mistake == "a file is seen before it is whole":
            with (self.own / name).open("w", buffering=1) as file:
                file.write(text[:20] + "\n")
                file.write(text[20:])
            return
        temporary = self.own / "new"
        temporary.write_text(text)
        temporary.replace(self.own / name)


def checked(folder, mistake, checks):
    def read():
        for file in folder.glob("*/*.json"):
            yield from json.loads(file.read_text())["rows"]

    refused = {"key": f"refused {mistake}", "value": "x" * 200}
    check_sink(lambda: FolderSink(folder, mistake), read, refused=refused, only=checks)


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_a_sink_without_a_mistake_passes(tmp_path, check):
    checked(tmp_path, "", [check])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found_by_name(tmp_path, mistake):
    with pytest.raises(AssertionError, match=f"^{MISTAKES[mistake]}: "):
        checked(tmp_path, mistake, [MISTAKES[mistake]])
