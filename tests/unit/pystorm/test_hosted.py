"""Components of pystorm's kind in acktree's process: verdicts, memory that moves, ticks, batches."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter, defaultdict

import pytest

from acktree import Config, ConfigError, ExecuteTimeoutError, FailureCause, MisuseError, Verdict
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
from acktree.testing import FeederSpout, LocalCluster

TOLD = defaultdict(list)
"""What components noted: each test has keys of its own."""


class Words(Spout):
    outputs = ["word"]


class Count(Bolt):
    outputs = ["word", "count"]

    def initialize(self, storm_conf, context):
        self.counter = Counter()
        self.shared = self.counter
        self.lock = threading.Lock()
        self.numbers = (n for n in itertools.count())

    def process(self, tup):
        with self.lock:
            self.counter[tup.values.word] += 1
        assert self.shared is self.counter
        next(self.numbers)
        self.emit([tup.values.word, self.counter[tup.values.word]])


class WordCount(Topology):
    words = Words.spec()
    count = Count.spec(inputs={words: Grouping.fields("word")}, par=2)


def fed(topology, *, after_each=lambda: None, batches, config=None, clock_secs=0, **options):
    """Run a topology over batches of values; returns the feeder and what ``count`` emitted."""
    feeder = FeederSpout(["word"])
    loaded = load(topology, replace={"words": feeder}, options=options)
    numbers = itertools.count()
    with LocalCluster() as cluster:
        running = cluster.submit(loaded.topology, config=config or loaded.config)
        for batch in batches:
            for word in batch:
                feeder.feed([word], message_id=next(numbers))
            cluster.advance(clock_secs)
            after_each()
        return feeder, cluster.tuples("count"), running.stats(), running.errors


BATCHES = [["dog", "cat", "dog"], ["cat", "dog"], ["emu", "dog"]] * 3
WORDS = [*itertools.chain(*BATCHES)]
COUNTS = [[word, WORDS[: at + 1].count(word)] for at, word in enumerate(WORDS)]


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


# --- verdicts ----------------------------------------------------------------------------------------------


class Picky(Bolt):
    outputs = ["word"]

    def process(self, tup):
        (word,) = tup.values
        if word == "raise":
            raise ValueError("no such word")
        if word == "fail":
            self.fail(tup)  # and is acked by itself afterwards, as the documentation of streamparse has it
            return
        if word == "report":
            try:
                {}[word]
            except KeyError as error:
                self.raise_exception(error, tup)
        if word == "twice":
            self.ack(tup)
            self.ack(tup)
        if word == "unknown":
            self.ack("99")
        if word == "late":
            self.ack(tup)
            self.emit([word])
        if word == "undeclared":
            self.emit([word], stream="nowhere")
        if word == "wide":
            self.emit([word, word])


class PickyTopology(Topology):
    words = Words.spec()
    count = Picky.spec(inputs=[words])


def test_each_tuple_gets_the_verdict_that_its_bolt_gave_and_the_component_lives_on():
    words = ["good", "raise", "fail", "report", "twice", "unknown", "late", "undeclared", "wide", "good"]
    results = run_topology(PickyTopology, {"words": [[word] for word in words]})
    verdicts = results.verdicts.of("words")
    acked = {word for word, verdict in zip(words, verdicts, strict=True) if verdict is Verdict.ACKED}
    assert acked == {"good", "report", "twice", "late"}  # "late" was acked before its mistake
    failures = {words[at]: failure for (_, at), failure in results.failures.items()}
    assert "component 'count' failed it" in failures["fail"].reason
    assert isinstance(failures["raise"].exception, ValueError)
    assert 'raise ValueError("no such word")' in (failures["raise"].traceback or "")
    assert "stream 'nowhere'" in failures["undeclared"].reason
    undeclared = failures["undeclared"].exception
    assert 'declare Stream(fields=[...], name="nowhere") in its outputs' in undeclared.fix
    assert "never given" in failures["unknown"].reason


def test_a_second_ack_by_hand_is_reported_and_has_no_effect():
    feeder, _, _, errors = fed(PickyTopology, batches=[["twice"]])
    assert feeder.acked == [0]
    assert "acked or failed before" in errors[0].reason


def test_an_emit_after_the_ack_is_an_error_and_the_tuple_stays_acked():
    feeder, emitted, _, errors = fed(PickyTopology, batches=[["late"]])
    assert (feeder.acked, emitted) == ([0], [])
    assert "anchored to '1', which was acked or failed before" in errors[0].reason


def test_without_auto_fail_nobody_fails_a_tuple_and_it_times_out():
    class Quiet(Picky):
        auto_fail = False

    class QuietTopology(Topology):
        words = Words.spec()
        count = Quiet.spec(inputs=[words])

    results = run_topology(QuietTopology, {"words": [["raise"]]})
    assert results.verdicts.of("words") == [Verdict.TIMED_OUT]


def test_a_default_stream_that_is_not_declared_drops_its_tuples_with_one_warning(caplog):
    class Silent(Bolt):
        outputs = []

        def process(self, tup):
            self.emit(list(tup.values))

    class SilentTopology(Topology):
        words = Words.spec()
        count = Silent.spec(inputs=[words])

    results = run_topology(SilentTopology, {"words": [["a"], ["b"]]})
    assert results.verdicts.of("words") == [Verdict.ACKED] * 2
    assert [
        record.getMessage() for record in caplog.records if "does not declare" in record.getMessage()
    ] == ["component 'count' emits on its default stream, which it does not declare: its tuples are dropped"]


class Spinning(BatchingBolt):
    outputs = ["word"]

    def group_key(self, tup):
        if tup.values.word == "spin":  # as the worker's timer interrupts it; a LocalCluster has none
            raise ExecuteTimeoutError("took too long", "execute", "be faster")
        if tup.values.word == "odd":
            raise ValueError("no key")

    def process_batch(self, key, tups):
        self.emit([len(tups)])


class SpinningTopology(Topology):
    words = Words.spec()
    count = Spinning.spec(inputs=[words], config={"topology.tick.tuple.freq.secs": 1})


def test_a_component_that_hangs_or_raises_between_batches_fails_that_tuple_alone():
    feeder, emitted, stats, _ = fed(
        SpinningTopology,
        batches=[["a", "spin", "odd", "b"], [], []],
        clock_secs=1,
    )
    assert (emitted, sorted(feeder.acked)) == ([[2]], [0, 3])
    causes = {message: failure.cause for message, failure in feeder.failed}
    assert causes == {1: FailureCause.HUNG, 2: FailureCause.EXCEPTION}
    assert stats["count"].tasks[1].held == 0


class TickRaises(Bolt):
    outputs = ["word"]

    def process(self, tup):
        self.emit(list(tup.values))

    def process_tick(self, tup):
        raise RuntimeError("at a tick")


class TickRaisesTopology(Topology):
    words = Words.spec()
    count = TickRaises.spec(inputs=[words], config={"topology.tick.tuple.freq.secs": 1})


def test_what_a_tick_raises_is_reported_and_fails_no_message():
    feeder, emitted, _, errors = fed(TickRaisesTopology, batches=[["a"], ["b"]], clock_secs=1)
    assert (emitted, feeder.acked, feeder.failed) == ([["a"], ["b"]], [0, 1], [])
    assert {error.reason for error in errors} == {"RuntimeError: at a tick"}


class Broken(Bolt):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        TOLD["broken"].append(context["componentid"])
        if len(TOLD["broken"]) == 1:
            raise OSError("no database")

    def process(self, tup):
        self.emit(list(tup.values))


class BrokenTopology(Topology):
    words = Words.spec()
    count = Broken.spec(inputs=[words])


def test_an_initialize_that_raises_fails_the_tuples_and_is_called_again_in_the_next_micro_batch():
    feeder, emitted, _, _ = fed(BrokenTopology, batches=[["a", "b"], ["c"]])
    assert len(TOLD["broken"]) == 2
    assert [message for message, _ in feeder.failed] == [0, 1]
    assert (feeder.acked, emitted) == ([2], [["c"]])


def test_what_initialize_emits_is_emitted_once_for_a_task_wherever_it_moves():
    class Greeting(Bolt):
        outputs = ["word"]

        def initialize(self, storm_conf, context):
            self.emit(["hello"])
            self.seen = 0

        def process(self, tup):
            self.seen += 1

    class GreetingTopology(Topology):
        words = Words.spec()
        count = Greeting.spec(inputs=[words])

    _, emitted, _, _ = fed(GreetingTopology, batches=[["a"], ["b"]], after_each=contexts._cached.clear)
    assert emitted == [["hello"]]


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
