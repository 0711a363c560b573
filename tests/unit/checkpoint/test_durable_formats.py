"""What is stored names no module of acktree, and stays readable: the formats as bytes, in ``tests/golden``.

A format changes with its version alone. Where one does, its golden file gets a new name, and a reader of the
old one stays as long as the checkpoint's version says so. To write those that are missing::

    python -m tests.unit.checkpoint.test_durable_formats
"""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import acktree
from acktree import (
    Bolt,
    CheckpointError,
    ColumnState,
    DeadLetterLimitError,
    KeyValueState,
    MisuseError,
    Retry,
    SpoutError,
    Unavailable,
    errors,
)
from acktree.checkpoint.logs.commit_log import Commit, CommitLog, Outcome, Participant, Section, section_of
from acktree.core import durable
from acktree.core.data.values import batch_from_bytes, batch_to_bytes, decode_rows, encode_rows
from acktree.core.durable import TAGS, class_of, dumps, dumps_by_value, loads
from acktree.core.packing import pack, unpack
from acktree.core.state.store import MemoryStore
from acktree.core.tracking.ledger import Ledger
from acktree.core.tracking.lineage import Lineage, Sparse
from acktree.core.tracking.lineage_runs import Runs
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind, Verdicts
from acktree.tasks.bolts.memory import TaskMemory
from acktree.tasks.bolts.rows.frame_rows import InboundRows
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.keys.labels import Labelled, id_of, label_of
from acktree.tasks.spouts.retries import Redriven
from tests.unit.core.tracking.ledgers import deltas_of
from tests.unit.tasks.bolts.bolt_harness import bench

GOLDEN = Path(__file__).parents[2] / "golden"


@dataclass(frozen=True)
class Format:
    """A durable format: how a value is written and read, and what of it two values are compared by."""

    value: Callable[[], Any]
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    shown: Callable[[Any], object] = repr


def failure(exception: BaseException | None) -> Failure:
    return Failure(
        reason="no such order \udce9", kind=FailureKind.FAILED, cause=FailureCause.MISUSE, component="count",
        exception=exception, exception_types=("acktree.MisuseError", "acktree.AcktreeError"),
        traceback="Traceback", attempt=2, final=True, others=3,
    )  # fmt: skip


LATER = {"HookError", "Unavailable"}
"""Errors that were made after the golden file."""


def errors_of_ours() -> list[Exception]:
    then = [name for name in errors.__all__ if name not in LATER]
    every = [kind for name in then if isinstance(kind := getattr(errors, name), type)]
    plain = [kind("what", "where", "fix") for kind in every]
    limit = DeadLetterLimitError("what", "where", "fix", recorded=frozenset({7}))
    return [*plain, SpoutError("what", "where", "fix", can_go_on=False, pause_secs=2.5), limit]


HELD = Sparse(np.array([0, 1]), np.array([77]), np.array([99]))


def chunk() -> Chunk:
    return Chunk(
        "orders", 3, "default", is_tracked=True, first_sequence=40, emitted_ms=1_800_000_000_000,
        values=encode_rows(["word", "n"], [["a", 1], ["b", 2]]), attempts=np.array([1, 2], dtype=np.int32),
        first_emitted_ms=np.array([5, 6]), retry_of=np.array([-1, 9]),
        message_ids=dumps(["a", Redriven(7)]), position=dumps({"at": 12}),
    )  # fmt: skip


def remembering(lineage: Lineage = HELD) -> SimpleNamespace:
    rows = InboundRows("words", "default", 3, ("word", "n"), lineage, [["a"], [(1, 2.5)]])
    rows.came_ms = 1_800_000_000_000
    bolt = SimpleNamespace(
        counts={"a": 1}, state=KeyValueState({"a": 1, "b": [2]}), nested=[KeyValueState({"c": 3})],
        held=[rows.handle(0)], last=MisuseError("what", "where", "fix"),
    )  # fmt: skip
    rows.owner = bolt
    return bolt


def columns() -> ColumnState[str]:
    state = ColumnState(str, {"count": int, "total": float})
    state.update_many(["a", "b", "é"], {"count": [1, 300, -1], "total": 0.5})
    return state


REMEMBERED = ("counts", "state", "nested", "held", "last")


def written_memory(
    bolt: SimpleNamespace, names: Sequence[str] = REMEMBERED, now_ms: int | None = None
) -> bytes:
    store = MemoryStore()
    TaskMemory(names, store, bolt, now_ms=now_ms).save(bolt)
    return pack(*(part for name, blob in sorted(store.blobs.items()) for part in (name.encode(), blob)))


def read_memory(blob: bytes, names: Sequence[str] = REMEMBERED) -> SimpleNamespace:
    store, parts = MemoryStore(), [bytes(part) for part in unpack(blob)]
    store.blobs = {name.decode(): part for name, part in zip(parts[::2], parts[1::2], strict=True)}
    bolt = SimpleNamespace()
    TaskMemory(names, store, bolt).restore(bolt)
    return bolt


def shown_memory(bolt: SimpleNamespace) -> object:
    [held] = bolt.held
    account = held.component, held.stream, held.fields, [*held.values], dict(held.anchors)
    return account, bolt.counts, dict(bolt.state), [dict(one) for one in bolt.nested], repr(bolt.last)


def ledger() -> Ledger:
    made = Ledger(30_000)
    made.judge(deltas_of(("init", 77, 5), ("init", 78, 6)), 1_000, is_first=True)
    return made


def verdicts() -> Verdicts:
    made = Ledger(30_000)
    said = made.judge(deltas_of(("init", 77, 5), ("fail", 77, failure(None).to_bytes())), 1, is_first=True)
    return said.together_with([(3, np.arange(4, 9))], np.zeros(0, np.int64), np.zeros(0, np.int32))


class Says(Participant):
    """A participant that writes one section."""

    def __init__(self, name: str, section: Section) -> None:
        self.name, self.section = name, section

    def recover(self, sections: Sequence[tuple[int, Section]]) -> None:
        """Nothing to resume."""

    def write(self, commit: Commit, outcome: Outcome) -> Section:
        return self.section


SECTIONS = {"acker": Section(b"a change"), "counts": Section(b"the whole state", is_whole=True)}


def written_commit(sections: dict[str, Section]) -> bytes:
    with TemporaryDirectory() as folder:
        log = CommitLog(Path(folder), [Says(*each) for each in sections.items()])
        log.write(Commit(7, 1_800_000_000_000, 12), Outcome({}))
        return Path(folder, "commits", "000000000007").read_bytes()


def read_commit(blob: bytes) -> dict[str, Section]:
    with TemporaryDirectory() as folder:
        Path(folder, "commits").mkdir()
        Path(folder, "commits", "000000000007").write_bytes(blob)
        found = {name: section_of(Path(folder), 7, name) for name in SECTIONS}
        return {name: Section(bytes(each.content), each.is_whole) for name, each in found.items() if each}


FORMATS = {
    "commit": Format(lambda: SECTIONS, written_commit, read_commit),
    "value-unavailable": Format(lambda: [Unavailable("prices", retry_after_secs=5)], dumps, loads),
    "value": Format(lambda: {"a": [1, 2.5, None, b"b"]}, dumps, loads),
    "value-tagged": Format(
        lambda: [*errors_of_ours(), FailureKind.TIMED_OUT, FailureCause.HUNG, Redriven(7)], dumps, loads
    ),
    "value-labelled": Format(
        lambda: [Labelled("a", "order-17"), Labelled((0, 131), "é"), Redriven(7, "order-17")], dumps, loads,
        lambda ids: [(id_of(each), label_of(each)) for each in ids],
    ),
    "value-state": Format(lambda: KeyValueState({"a": 1}), dumps, loads, dict),
    "memory-ttl": Format(
        lambda: SimpleNamespace(seen=KeyValueState({"a": 1, "b": 2}, ttl_secs=60)),
        lambda bolt: written_memory(bolt, ["seen"], 1_800_000_000_000),
        lambda blob: read_memory(blob, ["seen"]),
        lambda bolt: (dict(bolt.seen), bolt.seen.ttl_secs),
    ),
    "value-columns": Format(columns, dumps, loads, dict),
    "memory-columns": Format(
        lambda: SimpleNamespace(columns=columns()),
        lambda bolt: written_memory(bolt, ["columns"]),
        lambda blob: read_memory(blob, ["columns"]),
        lambda bolt: dict(bolt.columns),
    ),
    "failure": Format(
        lambda: failure(MisuseError("what", "where", "fix")), Failure.to_bytes, Failure.from_bytes
    ),
    "failure-without-exception": Format(lambda: failure(None), Failure.to_bytes, Failure.from_bytes),
    "chunk": Format(
        chunk, Chunk.to_bytes, Chunk.from_bytes,
        lambda it: (repr(it.attempts), decode_rows(it.values), loads(it.message_ids), loads(it.position)),
    ),
    "memory": Format(remembering, written_memory, read_memory, shown_memory),
    "verdicts": Format(verdicts, Verdicts.to_bytes, Verdicts.from_bytes),
    "ledger": Format(
        ledger, Ledger.to_bytes, lambda blob: Ledger(30_000, blob), lambda it: (it.open_count, it.to_bytes())
    ),
    "dead-letter-payload": Format(
        lambda: encode_rows(["word", "error"], [["a", MisuseError("what", "where", "fix")]]),
        batch_to_bytes, batch_from_bytes, lambda batch: repr(decode_rows(batch)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_stored_format_is_written_as_ever(name: str) -> None:
    form = FORMATS[name]
    assert form.write(form.value()) == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_stored_is_read_as_what_it_was(name: str) -> None:
    form = FORMATS[name]
    assert form.shown(form.read((GOLDEN / name).read_bytes())) == form.shown(form.value())


@pytest.mark.parametrize("values", ["edges", "sums"])
def test_a_held_tuple_is_stored_alike_whichever_form_its_frame_had(values: str) -> None:
    runs = Runs(np.array([77]), np.array([0, 1]), **{values: np.array([99])})
    assert written_memory(remembering(runs)) == (GOLDEN / "memory").read_bytes()


def test_every_format_has_a_golden_file_and_every_file_a_format() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == FORMATS.keys()


def test_an_exception_keeps_what_it_knows_beside_its_words() -> None:
    back = loads((GOLDEN / "value-tagged").read_bytes())
    assert [(one.can_go_on, one.pause_secs) for one in back if type(one) is SpoutError] == [
        (True, 0.0),
        (False, 2.5),
    ]
    assert [one.recorded for one in back if type(one) is DeadLetterLimitError] == [
        frozenset(),
        frozenset({7}),
    ]


@pytest.mark.parametrize("tag", TAGS)
def test_every_tag_names_a_class_that_is_there(tag: str) -> None:
    assert durable.tag_of(class_of(tag)) == tag


def test_every_public_class_has_a_tag() -> None:
    public = [getattr(acktree, name) for name in acktree.__all__ if name != "submit"]
    ours = [kind for kind in public if inspect.isclass(kind) and kind.__module__.startswith("acktree.")]
    assert [kind for kind in ours if durable.tag_of(kind) is None] == []


def test_a_class_that_moved_is_found_by_its_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = dumps([MisuseError("what", "where", "fix")])
    moved = type("MovedError", (MisuseError,), {})
    monkeypatch.setitem(globals(), "MovedError", moved)
    monkeypatch.setattr(durable, "TAGS", {"acktree:MisuseError/1": (__name__, "MovedError")})
    class_of.cache_clear()
    try:
        assert [type(one) for one in loads(stored)] == [moved]
    finally:
        class_of.cache_clear()


def test_a_tag_and_a_layout_of_a_newer_release_are_refused() -> None:
    stored = dumps(Redriven(7))
    with pytest.raises(CheckpointError, match="'acktree:Redrives/1', which this acktree does not know"):
        loads(stored.replace(b"Redriven", b"Redrives"))
    with pytest.raises(CheckpointError, match="layout 2, and this acktree reads layout 1"):
        loads(stored[:1] + b"\x02" + stored[2:])


class TheirError(MisuseError):
    """A user's exception on top of one of ours."""


def test_users_classes_are_pickled_as_ever() -> None:
    assert dumps(TheirError("what", "where", "fix")) == pickle.dumps(
        TheirError("what", "where", "fix"), protocol=5
    )
    local = type("Local", (MisuseError,), {"__module__": "__main__"})
    back = loads(dumps_by_value(local("what", "where", "fix")))
    assert isinstance(back, MisuseError)
    assert back.args == ("what", "where", "fix")


def test_a_text_that_speaks_of_acktree_comes_back() -> None:
    assert loads(dumps(["acktree.errors", 1])) == ["acktree.errors", 1]


_TRACEBACK = (
    b"acktree.errors."  # what Python says before the class, in a traceback: words, which nobody resolves
)
_METADATA = {b"acktree.target"}


def modules_in(blob: bytes) -> set[bytes]:
    """The modules of acktree that stored bytes name."""
    return {
        found.group()
        for found in re.finditer(rb"acktree\.[a-z_]+[a-z_.]*", blob)
        if found.group() not in _METADATA
        and not (found.group() == _TRACEBACK and blob[found.end() :].startswith(b"MisuseError: "))
    }


class Everything(Bolt):
    """Remembers and holds whatever of ours there is; fails every third tuple with an exception of ours."""

    outputs = ["error"]
    remembers = ["state", "nested", "held", "last"]

    def prepare(self, config, context, collector):
        self.collector, self.state, self.nested = collector, KeyValueState(), {"in": KeyValueState()}
        self.held, self.last = [], None

    def execute(self, tup):
        number = tup["number"]
        self.last = MisuseError("what", "where", "fix")
        self.state[number] = [self.last, FailureKind.FAILED]
        self.nested["in"][number] = Retry
        if number % 3 == 0:
            raise self.last
        if number % 3 == 1:
            self.held.append(tup)
        else:
            self.collector.emit([MisuseError("what", "where", "fix")], anchors=[tup])
            self.collector.ack(tup)


def test_a_run_stores_no_name_of_a_module_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a release may rename any of them."""
    stored: list[tuple[str, bytes]] = []

    def noting(kind: type, name: str) -> None:
        write = getattr(kind, name)

        def noted(self: Any, *arguments: Any) -> bytes:
            blob = write(self, *arguments)
            stored.append((kind.__name__, blob))
            return blob

        monkeypatch.setattr(kind, name, noted)

    for kind in (Chunk, Verdicts, Failure, Ledger):
        noting(kind, "to_bytes")
    with bench(Everything(), outputs=("number", "error"), retry=Retry(max_attempts=1)) as running:
        for _ in range(2):
            ids = [((number, MisuseError("what", "where", "fix")), number) for number in range(6)]
            running.feed(*ids)
        running.running.dead_letters.redrive([letter.id for letter in running.running.dead_letters])
        running.cluster.advance()
        assert len(running.running.dead_letters) > 2
        letters = [letter.payload for letter in running.running.dead_letters]
        types = {letter.exception_type for letter in running.running.dead_letters}
        stores = [store.blobs for store in running.running._levels._stores.values()]
        blobs = [(name, blob) for store in stores for name, blob in store.items()]
    stored += [*blobs, *(("payload", payload) for payload in letters)]
    stored.append(("ids", dumps([Redriven(1)])))
    assert {name for name, _ in stored} >= {"Chunk", "Failure", "payload"}
    assert any("/held/bucket/" in name for name, _ in stored)
    assert {(name, module) for name, blob in stored for module in modules_in(blob)} == set()
    assert b"acktree:MisuseError/1" in b"".join(blob for _, blob in blobs)
    assert types == {"acktree.MisuseError"}


if __name__ == "__main__":
    for name, form in FORMATS.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(form.write(form.value()))
