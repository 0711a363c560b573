"""The counts of all runs: a micro-batch counts once, whenever the driver is killed."""

from __future__ import annotations

import json
import logging
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acktree.checkpoint.logs.commit_log import Commit, Outcome, Section
from acktree.core.stats import count_table
from acktree.core.stats.counters import Counters
from acktree.core.stats.histograms import Histogram
from acktree.core.tracking.verdicts import FailureCause, FailureKind
from acktree.driver.metrics.total_counts import TotalCounts, Totals
from acktree.errors import CheckpointError
from acktree.tasks.spouts.chunks.sent_streams import SentStreams
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from tests.unit.checkpoint.commits import Commits, committed_numbers


def spout(*streams):
    """A spout task that has emitted ten messages to each of some streams."""
    sent = SentStreams()
    for at, stream in enumerate(streams):
        sent.add(10 * at, stream)
    return SimpleNamespace(own=Counters(), complete_ms=Histogram(), sent=sent)


def failed(kind, cause=FailureCause.EXCEPTION):
    return SimpleNamespace(kind=kind, cause=cause)


def counted(n, what="executed"):
    counters = Counters()
    counters.add("split", 3, "spout:default", what, n)
    return counters


def opened(folder, last_committed):
    totals = TotalCounts("t")
    return totals, Commits(folder, [totals], last_committed)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(0, 9),
        st.integers(0, 3),
        st.sampled_from(["commit", "commit", "commit", "die in the sink", "die before the commit", "stop"]),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_micro_batch_counts_once_wherever_the_driver_dies(tmp_path_factory, steps):
    """A naive model beside: what committed micro-batches brought, and nothing else."""
    folder, committed, model = tmp_path_factory.mktemp("c"), -1, Counter()
    (totals, log), task = opened(folder, committed), spout("default", "late")
    totals.watch("spout", 1, task)
    for executed, acked, late, end in steps:
        totals.note(counted(executed))
        verdicts = VerdictBatch(
            acked=np.arange(acked), failed=[(np.arange(10, 10 + late), failed(FailureKind.TIMED_OUT))]
        )
        totals.note_verdicts({1: verdicts, 99: verdicts})  # 99: a task that the topology has no more
        if end != "die in the sink":
            log.write(committed + 1)
        if end in {"commit", "stop"}:
            committed += 1
            model += Counter({"executed": executed, "acked": acked, "timed_out": late})
        if end == "stop":
            log.log.close()
        if end != "commit":
            totals, log = opened(folder, committed)
            task = spout("default", "late")
            totals.watch("spout", 1, task)
        now = totals.now().counters
        assert {what: now.total(what) for what in ("executed", "acked", "timed_out")} == {
            what: model[what] for what in ("executed", "acked", "timed_out")
        }
        assert now.total("acked", component="spout", stream="default") == model["acked"]
        assert now.total("timed_out", component="spout", stream="late") == model["timed_out"]
    assert len(committed_numbers(folder)) <= 4  # that of the last table, the last two, and one to be deleted


def test_what_spouts_count_themselves_is_seen_at_once_and_stored_with_the_next_micro_batch(tmp_path):
    (totals, log), task = opened(tmp_path, -1), spout("default")
    totals.watch("spout", 1, task)
    totals.note(counted(1))
    log.write(0)
    task.own.add("spout", 1, "", "errors", 2)
    task.complete_ms.add(7, 3)
    assert totals.now().counters.total("errors") == 2
    assert totals.now().spread["spout"].count == 3
    assert opened(tmp_path, 0)[0].now().counters.total("errors") == 0  # killed before the next one: lost
    totals, log = opened(tmp_path, 0)
    totals.watch("spout", 1, task)
    totals.note(counted(1))
    log.write(1)
    task.own.add("spout", 1, "", "errors", 1)
    log.log.close()  # at the end of a run nothing is lost
    again, _ = opened(tmp_path, 1)
    assert again.now().counters.total("errors") == 3
    assert again.now().counters.total("executed") == 2
    assert again.now().spread["spout"].count == 3
    assert again.now().ran_ms >= totals.begun.ran_ms


def test_rows_of_a_dataframe_are_counted_by_their_number(tmp_path):
    totals, log = opened(tmp_path, -1)
    totals.watch("rows", 1, spout())
    failure = failed(FailureKind.FAILED)
    totals.note_verdicts({1: VerdictBatch(acked_rows=4, failed_rows=[(np.arange(3), failure)])})
    log.write(0)
    now = totals.now().counters
    assert (now.total("acked", stream="default"), now.total("failed", stream="default")) == (4, 3)
    assert now["rows", 1, "default", "failed_by_EXCEPTION"] == 3


def test_a_write_that_was_not_committed_leaves_the_one_before_it(tmp_path):
    """Also where the end of the run writes it once more."""
    totals, log = opened(tmp_path, -1)
    for batch_id in range(3):
        totals.note(counted(1))
        log.write(batch_id)
    log.log.close()
    log.log.close()
    assert opened(tmp_path, 1)[0].now().counters.total("executed") == 2


@pytest.mark.parametrize("blob", [b"", b"nonsense", zlib.compress(b"{}"), zlib.compress(b'{"version": 99}')])
def test_counts_of_another_acktree_are_said_once_stop_nothing_and_are_kept(caplog, blob):
    totals = TotalCounts("t")
    with caplog.at_level(logging.WARNING, "acktree"):
        totals.recover([(0, Section(blob, is_whole=True))])
        totals.note(counted(5))
        assert totals.write(Commit(1, 1, 1), Outcome({})) is None  # no section: the log keeps the last one
    (said,) = caplog.messages
    assert "`:all-time` begins at 0 and is not stored" in said
    assert totals.now().counters.total("executed") == 5
    assert totals.closing_section() is None


COUNTED = st.dictionaries(
    st.tuples(st.text(), st.integers(0, 9), st.text(), st.sampled_from(["emitted", "execute_us"])),
    st.integers(1, 1 << 60),
)
SPREAD = st.dictionaries(st.text(), st.dictionaries(st.integers(0, 99), st.integers(1, 1 << 60)), max_size=3)


@given(COUNTED, SPREAD, st.integers(0, 1 << 60))
def test_what_is_stored_is_read(counts, spread, ran_ms):
    given_ = Totals(
        7, Counters.of(counts.items()), ran_ms, {name: Histogram(n) for name, n in spread.items()}
    )
    assert Totals.from_bytes(given_.to_bytes()) == replace(given_, batch_id=-1)


STORED = Totals(1, counted(5), 7, {"source": Histogram({3: 4})}).to_bytes()
HEADS = st.dictionaries(
    st.sampled_from(["version", "ran_ms", "spread", "bytes"]),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | st.floats(), lambda part: st.lists(part, max_size=3)
    ),
)


@given(
    st.one_of(
        st.binary(),
        st.binary().map(zlib.compress),
        HEADS.map(lambda head: zlib.compress(json.dumps(head).encode())),
        st.integers(0, len(STORED)).map(lambda end: STORED[:end]),
        st.tuples(st.integers(0, len(STORED) - 1), st.integers(1, 255)).map(
            lambda at: STORED[: at[0]] + bytes([STORED[at[0]] ^ at[1]]) + STORED[at[0] + 1 :]
        ),
    )
)
@example(zlib.compress(b"[" * 100_000))
def test_damage_is_a_value_error_and_never_another_number(blob):
    with suppress(ValueError, CheckpointError):
        assert Totals.from_bytes(blob) == Totals.from_bytes(STORED)


def test_a_micro_batch_encodes_what_is_new_and_no_key_twice(tmp_path, monkeypatch):
    """What a micro-batch costs follows what it counted, and not how many texts there are."""
    encoded, encode = [], count_table._encoded
    monkeypatch.setattr(count_table, "_encoded", lambda keys: encoded.append(len(keys)) or encode(keys))
    many = Counters.of(((f"bolt-{n}", n, "a:default", "executed"), 1) for n in range(1000))
    totals, log = opened(tmp_path, -1)
    for batch_id in range(20):
        totals.note(many)
        log.write(batch_id)
    assert encoded == [1000]
    assert opened(tmp_path, 19)[0].now().counters.total("executed") == 20_000


def test_two_hundred_components_take_little_space():
    counters = Counters()
    for component in range(200):
        for task in range(2):
            for what in ("emitted", "transferred", "executed", "acked"):
                counters.add(
                    f"component-{component}", 2 * component + task, "default", what, 10**9 + task * 7
                )
    assert len(Totals(0, counters).to_bytes()) < 40_000
