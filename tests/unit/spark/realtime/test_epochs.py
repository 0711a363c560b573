"""The laws of epochs: beside a naive model that runs them one after the other, whatever the channels do."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acktree.errors import ProtocolError
from acktree.spark.realtime.epochs import MOST_UNDER_WAY, Alignment, Epochs

Rows = tuple[int, ...]


class Report(NamedTuple):
    """What a level tells of an epoch: what it ran over, and what it remembers from then on."""

    rows: Rows
    memory: int


def run_level(rows: Sequence[int], memory: int, partitions: int) -> tuple[list[list[int]], Report]:
    """A toy level: each row becomes two, sent to partitions by value; the memory is the sum of all rows."""
    ran = tuple(sorted(rows))
    out: list[list[int]] = [[] for _ in range(partitions)]
    for row in ran:
        for new in (row + 1, 2 * row):
            out[new % partitions].append(new)
    return out, Report(ran, memory + sum(ran))


def naive(contents: Sequence[Rows], levels: int, partitions: int) -> list[dict[tuple[int, int], Report]]:
    """What each epoch reports where one runs after the other, level by level."""
    memory = dict.fromkeys(product(range(levels), range(partitions)), 0)
    all_reports = []
    for content in contents:
        inputs = [list(content[at::partitions]) for at in range(partitions)]
        reports = {}
        for level in range(levels):
            following: list[list[int]] = [[] for _ in range(partitions)]
            for partition, rows in enumerate(inputs):
                out, report = run_level(rows, memory[level, partition], partitions)
                reports[level, partition], memory[level, partition] = report, report.memory
                for target, new in enumerate(out):
                    following[target] += new
            inputs = following
        all_reports.append(reports)
    return all_reports


class Query:
    """One incarnation: its channels, which keep their order each, and its levels."""

    def __init__(self, driver: Driver, memory: dict[tuple[int, int], int]) -> None:
        self.driver, self.incarnation = driver, driver.epochs.incarnation
        self.memory = memory
        self.alignments: dict[tuple[int, int], Alignment[int]] = {
            (level, partition): Alignment([-1] if level == 0 else range(driver.partitions))
            for level, partition in product(range(driver.levels), range(driver.partitions))
        }
        self.channels: dict[tuple[int, int, int], deque[tuple[int, int | None]]] = {}
        self.reports: dict[tuple[int, int], deque[tuple[int, Report]]] = {}

    def send(self, sender: int, level: int, target: int, epoch: int, rows: Sequence[int]) -> None:
        """Rows one by one, and a marker: None."""
        channel = self.channels.setdefault((level, target, sender), deque())
        channel.extend((epoch, row) for row in (*rows, None))

    def send_epoch(self, epoch: int, content: Rows) -> None:
        for partition in range(self.driver.partitions):
            self.send(-1, 0, partition, epoch, content[partition :: self.driver.partitions])

    def deliver(self, level: int, partition: int, sender: int) -> None:
        """The next message of a channel arrives."""
        epoch, row = self.channels[level, partition, sender].popleft()
        alignment = self.alignments[level, partition]
        if row is not None:
            alignment.arrived(sender, epoch, [row])
            return
        rows = alignment.marked(sender, epoch)
        if rows is None:
            return
        out, report = run_level(rows, self.memory[level, partition], self.driver.partitions)
        self.memory[level, partition] = report.memory
        if level + 1 < self.driver.levels:
            for target, new in enumerate(out):
                self.send(partition, level + 1, target, epoch, new)
        self.reports.setdefault((level, partition), deque()).append((epoch, report))

    def report(self, place: tuple[int, int]) -> None:
        epoch, report = self.reports[place].popleft()
        self.driver.epochs.reported(self.incarnation, place, epoch, report)


class Driver:
    """A driver: the protocol, and what it has committed."""

    def __init__(self, levels: int, partitions: int) -> None:
        self.levels, self.partitions = levels, partitions
        self.places = list(product(range(levels), range(partitions)))
        self.epochs: Epochs[Rows, Report] = Epochs(self.places)
        self.contents: list[Rows] = []
        self.committed: list[dict[tuple[int, int], Report]] = []
        self.queries: list[Query] = []
        self.begin()

    def begin(self) -> None:
        again = self.epochs.begin()
        memory = dict.fromkeys(self.places, 0)
        if self.committed:
            memory = {place: report.memory for place, report in self.committed[-1].items()}
        self.queries.append(Query(self, memory))
        for number, content in again.items():
            self.queries[-1].send_epoch(number, content)

    def cut(self, content: Rows) -> None:
        self.contents.append(content)
        self.queries[-1].send_epoch(self.epochs.cut(content), content)

    def commit(self) -> None:
        whole = self.epochs.whole()
        if whole is not None:
            number, _, reports = whole
            assert number == len(self.committed)
            self.committed.append(reports)
            self.epochs.committed(number)


class EpochsBesideANaiveModel(RuleBasedStateMachine):
    """Channels deliver in any order among them; the query fails at any moment, and old tasks still report."""

    @initialize(levels=st.integers(1, 3), partitions=st.integers(1, 3))
    def start(self, levels: int, partitions: int) -> None:
        self.driver = Driver(levels, partitions)

    @precondition(lambda self: self.driver.epochs.can_cut)
    @rule(content=st.lists(st.integers(0, 5), max_size=4).map(tuple))
    def cut(self, content: Rows) -> None:
        self.driver.cut(content)

    @rule(data=st.data(), count=st.integers(1, 12))
    def deliver(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            full = [(q, key) for q in self.driver.queries for key, channel in q.channels.items() if channel]
            if full:
                query, key = data.draw(st.sampled_from(full))
                query.deliver(*key)

    @rule(data=st.data(), count=st.integers(1, 4))
    def report(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            full = [(q, place) for q in self.driver.queries for place, queue in q.reports.items() if queue]
            if full:
                query, place = data.draw(st.sampled_from(full))
                query.report(place)
        self.driver.commit()

    @rule()
    def fail(self) -> None:
        self.driver.begin()

    @invariant()
    def at_most_two_are_under_way(self) -> None:
        if hasattr(self, "driver"):
            assert self.driver.epochs.under_way <= MOST_UNDER_WAY == 2

    @invariant()
    def what_is_committed_is_what_the_model_says(self) -> None:
        if hasattr(self, "driver"):
            expected = naive(self.driver.contents, self.driver.levels, self.driver.partitions)
            assert self.driver.committed == expected[: len(self.driver.committed)]

    def teardown(self) -> None:
        """Whatever was cut is committed in the end, if the last incarnation goes on."""
        if not hasattr(self, "driver"):
            return
        query = self.driver.queries[-1]
        while any(query.channels.values()) or any(query.reports.values()):
            for key in [key for key, channel in query.channels.items() if channel]:
                query.deliver(*key)
            for place in [place for place, queue in query.reports.items() if queue]:
                query.report(place)
        self.driver.commit()
        self.driver.commit()
        assert len(self.driver.committed) == len(self.driver.contents)
        self.what_is_committed_is_what_the_model_says()


TestEpochsBesideANaiveModel = EpochsBesideANaiveModel.TestCase


def test_a_level_runs_when_all_markers_are_there_and_not_before():
    alignment: Alignment[str] = Alignment([0, 1])
    alignment.arrived(0, 7, ["a"])
    assert alignment.marked(0, 7) is None
    alignment.arrived(1, 7, ["b"])
    assert alignment.marked(1, 7) == ["a", "b"]


def test_rows_of_a_faster_partition_wait_for_their_epoch():
    alignment: Alignment[str] = Alignment([0, 1])
    alignment.marked(0, 7)
    alignment.arrived(0, 8, ["next"])
    assert alignment.marked(0, 8) is None
    assert alignment.marked(1, 7) == []
    assert alignment.marked(1, 8) == ["next"]


@pytest.mark.parametrize(("sender", "epoch"), [(0, 7), (0, 9), (2, 8)])
def test_rows_out_of_turn_are_an_error(sender, epoch):
    alignment: Alignment[str] = Alignment([0, 1])
    alignment.marked(0, 7)
    with pytest.raises(ProtocolError, match="sender"):
        alignment.arrived(sender, epoch, ["late"])


def test_a_report_of_an_earlier_incarnation_does_not_count():
    epochs: Epochs[str, str] = Epochs([(0, 0)])
    epochs.begin()
    epochs.cut("rows")
    assert epochs.begin() == {0: "rows"}
    epochs.reported(1, (0, 0), 0, "of the first")
    assert epochs.whole() is None
    epochs.reported(2, (0, 0), 0, "of the second")
    assert epochs.whole() == (0, "rows", {(0, 0): "of the second"})


def test_reports_out_of_turn_are_errors():
    epochs: Epochs[str, str] = Epochs([(0, 0), (0, 1)], last_committed=4)
    epochs.begin()
    assert epochs.cut("rows") == 5
    epochs.reported(1, (0, 0), 5, "once")
    for place, number in [((0, 0), 5), ((0, 1), 6), ((1, 0), 5)]:
        with pytest.raises(ProtocolError, match="out of turn"):
            epochs.reported(1, place, number, "wrong")
    with pytest.raises(ProtocolError, match="is not the oldest"):
        epochs.committed(5)


def test_a_third_epoch_is_not_cut():
    epochs: Epochs[str, str] = Epochs([(0, 0)])
    epochs.cut("one")
    epochs.cut("two")
    with pytest.raises(ProtocolError, match="under way"):
        epochs.cut("three")
