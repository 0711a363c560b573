"""Components of pystorm's kind in acktree's process: verdicts, memory that moves, ticks, batches."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict

import pytest

from acktree import Config, ConfigError, MisuseError, Verdict
from acktree.core.data import context as contexts
from acktree.pystorm.hosted import HostedBolt
from acktree.pystorm.spout import takes_failure
from acktree.streamparse import (
    BatchingBolt,
    Bolt,
    Grouping,
    ReliableSpout,
    Spout,
    StormHandler,
    Stream,
    TicklessBatchingBolt,
    Topology,
    load,
)
from acktree.streamparse.testing import run_bolt, run_topology
from acktree.testing import LocalCluster
from tests.unit.pystorm.word_count import BATCHES, COUNTS, TOLD, Count, Picky, WordCount, Words, fed


@pytest.mark.parametrize("partitions", [1, 2])
def test_data_of_a_component_go_on_where_its_task_stays_and_where_it_moves_after_each_micro_batch(partitions):
    def forget():
        contexts._cached.clear()  # what a process keeps: as if each micro-batch came to a new one

    config = Config(partitions=partitions)
    _, stayed, _, _ = fed(WordCount, batches=BATCHES, config=config)
    feeder, moved, _, _ = fed(WordCount, batches=BATCHES, config=config, after_each=forget)
    assert sorted(stayed) == sorted(moved) == sorted(COUNTS)
    assert len(feeder.acked) == len(COUNTS)


def test_two_processes_that_take_turns_each_go_on_from_the_memory_and_not_from_their_own_copy():
    processes = [{}, {}]

    def swap():
        processes[0] = dict(contexts._cached)
        contexts._cached.clear()
        contexts._cached.update(processes[1])
        processes.reverse()

    _, counted, _, _ = fed(WordCount, batches=BATCHES, after_each=swap)
    assert sorted(counted) == sorted(COUNTS)


def test_a_second_run_in_one_process_begins_anew():
    for _ in range(2):
        _, counted, _, _ = fed(WordCount, batches=[["dog"]])
        assert counted == [["dog", 1]]


def test_only_data_that_changed_are_written(monkeypatch):
    written = []
    flush = HostedBolt.flush

    def noting(bolt, collector):
        before = bolt._kept.get("version")
        flush(bolt, collector)
        written.append(bolt._kept.get("version") != before)

    monkeypatch.setattr(HostedBolt, "flush", noting)

    class Constant(Bolt):
        outputs = ["word"]

        def initialize(self, storm_conf, context):
            self.table = dict.fromkeys(range(10))

        def process(self, tup):
            self.emit([tup.values.word])

    class Plain(Topology):
        words = Words.spec()
        count = Constant.spec(inputs=[words])

    fed(Plain, batches=[["a"], ["b"], ["c"]])
    assert written == [True, False, False]


class Remembering(Count):
    remembers = ["counter"]

    def process(self, tup):
        self.counter[tup.values.word] += 1
        self.seen = getattr(self, "seen", 0) + 1
        self.emit([self.seen, self.counter[tup.values.word]])


def test_remembers_names_the_attributes_that_are_kept():
    class Kept(Topology):
        words = Words.spec()
        count = Remembering.spec(inputs=[words])

    _, emitted, _, _ = fed(Kept, batches=[["a"], ["a"]], after_each=contexts._cached.clear)
    assert emitted == [[1, 1], [1, 2]]


# --- batches and ticks -------------------------------------------------------------------------------------


class Totals(BatchingBolt):
    outputs = ["key", "total"]

    def group_key(self, tup):
        return tup.values.word[0]

    def process_batch(self, key, tups):
        if key == "x":
            raise RuntimeError("bad batch")
        self.emit([key, len(tups)])


class TotalsTopology(Topology):
    words = Words.spec()
    count = Totals.spec(inputs=[words], config={"topology.tick.tuple.freq.secs": 1})


@pytest.mark.parametrize("moves", [False, True])
def test_a_batch_is_held_until_the_second_tick_and_acked_whole_also_where_its_task_moves(moves):
    after = contexts._cached.clear if moves else lambda: None
    feeder, emitted, _, _ = fed(
        TotalsTopology, batches=[["ant", "bee"], ["auk"], [], []], clock_secs=0.9, after_each=after
    )
    assert sorted(emitted) == [["a", 2], ["b", 1]]
    assert sorted(feeder.acked) == [0, 1, 2]


def test_a_batch_that_raises_fails_its_own_tuples_alone():
    feeder, emitted, _, _ = fed(
        TotalsTopology, batches=[["ant", "xy", "bee", "xz"], [], [], []], clock_secs=1
    )
    assert sorted(emitted) == [["a", 1], ["b", 1]]
    assert sorted(feeder.acked) == [0, 2]
    assert sorted(message for message, _ in feeder.failed) == [1, 3]
    assert {failure.reason for _, failure in feeder.failed} == {"RuntimeError: bad batch"}


def test_a_bolt_may_process_its_batches_at_a_number_of_tuples():
    class Pairs(Totals):
        tuples_between_batches = 2

    class PairsTopology(Topology):
        words = Words.spec()
        count = Pairs.spec(inputs=[words])

    feeder, emitted, _, _ = fed(PairsTopology, batches=[["ant", "auk", "ape"]])
    assert (emitted, feeder.acked) == ([["a", 2]], [0, 1])


class Timed(TicklessBatchingBolt):
    outputs = ["key", "total"]
    secs_between_batches = 0.5

    def process_batch(self, key, tups):
        TOLD["threads"].append(threading.current_thread())
        self.emit([key, len(tups)])


class TimedTopology(Topology):
    words = Words.spec()
    count = Timed.spec(inputs=[words])


def test_a_tickless_bolt_processes_its_batches_at_its_interval_on_the_same_thread():
    feeder, emitted, _, _ = fed(TimedTopology, batches=[["a", "b"], []], clock_secs=0.6)
    assert (emitted, sorted(feeder.acked)) == ([[None, 2]], [0, 1])
    assert TOLD["threads"] == [threading.current_thread()]


class Ticking(Timed):
    def process_tick(self, tup):
        self.emit(["tick", self.storm_conf.get("nothing", 0)])


class TickingTopology(Topology):
    words = Words.spec()
    count = Ticking.spec(inputs=[words])


def test_a_tickless_bolt_with_a_tick_of_its_own_processes_its_batches_all_the_same():
    feeder, emitted, _, _ = fed(TickingTopology, batches=[["a", "b"], []], clock_secs=0.6)
    assert [each for each in emitted if each != ["tick", 0]] == [[None, 2]]
    assert ["tick", 0] in emitted
    assert sorted(feeder.acked) == [0, 1]


class Running(Picky):
    def run(self):
        self.ready = True
        super().run()


def test_a_method_that_is_called_in_a_child_process_alone_is_named(caplog):
    run_bolt(Running, [["good"]])
    (line,) = [record.getMessage() for record in caplog.records if "run()" in record.getMessage()]
    assert "is not called in acktree's own process" in line
    assert '"acktree.process": True' in line


class Single(Count):
    made = None

    def __new__(cls, **_):
        cls.made = cls.made or super().__new__(cls)
        return cls.made

    def __init__(self, **given):
        if "counter" not in vars(self):
            super().__init__(**given)
            self.counter = Counter()


def test_a_class_that_gives_one_object_to_two_tasks_is_refused():
    class SingleTopology(Topology):
        words = Words.spec()
        count = Single.spec(inputs={words: Grouping.ALL}, par=2)

    feeder, _, _, errors = fed(SingleTopology, batches=[["a"]], config=Config(partitions=1))
    assert feeder.acked == []
    assert "let each call make an object of its own" in str(errors[0].traceback or errors[0].reason)


class Logging(Bolt):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        self.handler = StormHandler(self.serializer)
        logging.getLogger().addHandler(self.handler)

    def process(self, tup):
        self.logger.info("of the component")
        self.log("by hand")
        logging.getLogger("a library").warning("of a library")
        logging.getLogger().removeHandler(self.handler)


def test_a_handler_that_sends_records_to_storm_sends_each_once(caplog):
    ran = run_bolt(Logging, [["a"]])
    assert ran.acked == [["a"]]
    assert ran.logged == ["of the component", "by hand", "of a library"]


# --- spouts and streams ------------------------------------------------------------------------------------


class Four(ReliableSpout):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        self.left = [3, 2, 1, 0]
        self.verdicts = []

    def next_tuple(self):
        if self.left:
            self.emit([f"word {self.left[-1]}"], tup_id=self.left.pop())


class FourNoted(Four):
    def fail(self, tup_id, failure):
        TOLD["attempts"].append(failure.attempt)
        super().fail(tup_id)


class Failing(Bolt):
    outputs = ["word"]

    def process(self, tup):
        raise ValueError(tup.values.word)


def test_a_reliable_spout_emits_a_failed_message_three_times_more_and_then_reports_it():
    class Retried(Topology):
        words = FourNoted.spec()
        count = Failing.spec(inputs=[words])

    with LocalCluster() as cluster:
        running = cluster.submit(load(Retried).topology)
        cluster.advance()
        assert running.stats()["words"].total.failed == 16
        given_up = [error.reason for error in running.errors if "max_fails" in error.reason]
        assert "message 0 is given up" in given_up[0]
        assert sorted(TOLD["attempts"]) == sorted([1, 2, 3, 4] * 4)


class Listening(Spout):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        self.left = [None, "id"]

    def next_tuple(self):
        if self.left:
            self.emit(["a"], tup_id=self.left.pop())

    def fail(self, tup_id, failure):
        TOLD["heard"].append((tup_id, str(failure.exception)))


class Heard(Topology):
    words = Listening.spec()
    count = Failing.spec(inputs=[words])


def test_a_spout_is_given_the_failure_if_its_fail_takes_two_arguments():
    with LocalCluster() as cluster:
        cluster.submit(load(Heard).topology)
        cluster.advance()
    assert TOLD["heard"] == [("id", "a")]


@pytest.mark.parametrize(
    ("fail", "takes"),
    [
        (lambda tup_id: None, False),
        (lambda tup_id, failure: None, True),
        (lambda tup_id, why: None, True),
        (lambda tup_id, failure=None: None, True),
        (lambda tup_id, retries=3: None, False),
        (lambda *args: None, False),
        (lambda tup_id, **more: None, False),
        (print, False),
    ],
)
def test_a_second_parameter_of_fail_that_a_program_has_for_its_own_is_left_alone(fail, takes):
    assert takes_failure(fail) is takes


def test_a_spout_with_a_fail_of_its_own_is_warned_of_tuples_that_nobody_tracks(caplog):
    class Untracked(Four):
        def next_tuple(self):
            if self.left:
                Spout.emit(self, [str(self.left.pop())])

    class UntrackedTopology(Topology):
        words = Untracked.spec()
        count = Count.spec(inputs=[words])

    with LocalCluster() as cluster:
        cluster.submit(load(UntrackedTopology).topology)
        cluster.advance()
    assert sum("without tup_id" in record.getMessage() for record in caplog.records) == 1


def test_a_spout_stays_in_its_process_so_a_generator_of_its_own_is_not_named(caplog):
    class Generating(Spout):
        outputs = ["word"]

        def initialize(self, storm_conf, context):
            self.words = iter_of("a", "b")

        def next_tuple(self):
            for word in self.words:
                self.emit([word], tup_id=word)

    class GeneratingTopology(Topology):
        words = Generating.spec()
        count = Count.spec(inputs=[words])

    with LocalCluster() as cluster:
        running = cluster.submit(load(GeneratingTopology).topology)
        cluster.advance()
        assert running.tuples("count") == [["a", 1], ["b", 1]]
    assert not [record for record in caplog.records if "words is a generator" in record.getMessage()]


def iter_of(*words):
    yield from words


class Direct(Bolt):
    outputs = [
        Stream(["word"], name="sent", direct=True),
        Stream(["word"], name="all"),
        Stream([], name="end"),
    ]

    def initialize(self, storm_conf, context):
        self.tasks = sorted(int(task) for task, name in context["task->component"].items() if name == "count")

    def process(self, tup):
        assert self.emit([tup.values.word], stream="sent", direct_task=self.tasks[1], need_task_ids=True) == [
            self.tasks[1]
        ]
        assert self.emit([tup.values.word], stream="all", need_task_ids=True) == self.tasks
        assert self.emit([], stream="end", need_task_ids=True) == self.tasks[:1]


class Where(Bolt):
    outputs = ["task", "stream"]

    def process(self, tup):
        assert tup.component == "direct"
        self.emit([self.task_id, tup.stream])


class Streams(Topology):
    words = Words.spec()
    direct = Direct.spec(inputs=[words])
    count = Where.spec(
        inputs={
            direct["sent"]: Grouping.DIRECT,
            direct["all"]: Grouping.ALL,
            direct["end"]: Grouping.GLOBAL,
        },
        par=2,
    )


def test_direct_streams_streams_without_fields_and_ids_of_tasks_that_do_not_depend_on_the_values():
    results = run_topology(Streams, {"words": [["a"]]})
    assert results.verdicts.of("words") == [Verdict.ACKED]
    first, second = sorted({task for task, _ in results.tuples("count")})
    assert sorted(results.tuples("count")) == [
        [first, "all"],
        [first, "end"],
        [second, "all"],
        [second, "sent"],
    ]


# --- places ------------------------------------------------------------------------------------------------


def test_containers_of_the_class_body_are_each_tasks_own():
    class Shared(Bolt):
        outputs = ["size"]
        seen: defaultdict[str, int] = defaultdict(int)

        def process(self, tup):
            self.seen[tup.values.word] += 1
            self.emit([len(self.seen)])

    class SharedTopology(Topology):
        words = Words.spec()
        count = Shared.spec(inputs={words: Grouping.fields("word")}, par=2)

    fed(SharedTopology, batches=[["a", "b", "c", "d"]])
    assert not Shared.seen


class Told(Bolt):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        TOLD["told"] = [storm_conf, context]

    def process(self, tup):
        assert type(tup.values).__name__ == "WordsDefaultTuple"


class ToldTopology(Topology):
    config = {"my.key": "topology's", "topology.message.timeout.secs": 12}
    words = Words.spec()
    count = Told.spec(inputs={words: Grouping.fields("word")}, config={"my.key": "bolt's"})


def test_settings_and_context_are_as_in_storms_handshake():
    results = run_topology(ToldTopology, {"words": [["a"]]}, options={"their.key": 1})
    assert results.verdicts.of("words") == [Verdict.ACKED]
    conf, context = TOLD["told"]
    assert (conf["my.key"], conf["their.key"]) == ("bolt's", 1)
    assert conf["topology.message.timeout.secs"] == 12
    assert conf["topology.name"] == "ToldTopology"
    assert context == {
        "componentid": "count",
        "source->stream->fields": {"words": {"default": ["word"]}},
        "source->stream->grouping": {"words": {"default": {"type": "FIELDS", "fields": ["word"]}}},
        "stream->outputfields": {"default": ["word"]},
        "stream->target->grouping": {"default": {}},
        "streams": ["default"],
        "task->component": {"1": "count", "2": "words"},
        "taskid": 1,
    }


def test_a_component_that_reads_messages_itself_is_told_that_there_are_none():
    class Reading(Bolt):
        outputs = ["word"]

        def process(self, tup):
            self.read_tuple()

    ran = run_bolt(Reading, [["a"]])
    assert ran.failed == [["a"]]
    assert isinstance(ran.errors[0], MisuseError)


def test_a_text_in_the_place_of_a_tuple_is_refused_with_what_to_write():
    with pytest.raises(ConfigError, match="a value for each character") as refused:
        run_bolt(Picky, ["abc"])
    assert "give a list of its values, ['abc']" in refused.value.fix


def test_a_bolt_alone_shows_what_it_emitted_acked_failed_and_logged():
    class Alone(Picky):
        outputs = ["word", Stream(["word"], name="late")]

        def process(self, tup):
            super().process(tup)
            self.logger.info("saw %s", tup.values.word)
            self.log("by hand", level="warn")
            self.emit([tup.values.word], stream="late")

        def process_tick(self, tup):
            self.emit([f"tick {self.storm_conf['my.key']}"])

    ran = run_bolt(Alone, [{"word": "good"}, {"word": "raise"}], config={"my.key": 1}, ticks=2)
    assert (ran.acked, ran.failed) == ([["good"]], [["raise"]])
    assert ran.emitted == [["tick 1"]] * 2
    assert ran.streams["late"] == [["good"]]
    assert ran.logged == ["saw good", "by hand"]
    assert [type(error) for error in ran.errors] == [ValueError]
