"""What of a component is saved, and what a restart with other settings or other code makes of it."""

from __future__ import annotations

import itertools
import pickle
import sqlite3
import threading
from collections import Counter, defaultdict

import pytest

from acktree import CheckpointError, Config, MisuseError
from acktree.core.data import context as contexts
from acktree.pystorm.attributes import Attributes
from acktree.pystorm.hosted import HostedBolt, Program
from acktree.streamparse import Bolt
from acktree.streamparse.testing import _Recorder as Recorder
from tests.unit.pystorm.one_task import SETTING, Checkpoint, Given, lines

_numbers = itertools.count()

# --- what cannot be saved ----------------------------------------------------------------------------------


class Locked:
    def __init__(self):
        self.lock = threading.Lock()
        self.n = 0


class Unsaved(Bolt):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        self.counts = defaultdict(lambda: 0)
        self.stats = Locked()
        self.plain = Counter()
        self.connection = sqlite3.connect(":memory:")
        self.lock = threading.Lock()
        self.log_lines = itertools.count

    def process(self, tup):
        self.counts[tup.values[0]] += 1


def test_a_container_or_an_object_of_the_users_that_is_not_saved_is_named_once_and_a_connection_is_not(
    caplog,
):
    run = Checkpoint().run(Unsaved).batch().batch(moves=True)
    counts, stats = lines(caplog)
    assert counts.startswith("component 'count': counts is not saved")
    assert "defaultdict(int)" in counts
    assert "remembers = [...]" in counts
    assert stats.startswith("component 'count': stats is not saved")
    assert run.attributes["plain"] == Counter()


class Later(Bolt):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        self.seen = []

    def process(self, tup):
        self.seen = [threading.Lock()] if tup.values[0] == "lock" else [*self.seen, tup.values[0]]


def test_an_attribute_that_cannot_be_saved_any_more_is_named_and_another_process_goes_on(caplog):
    run = Checkpoint().run(Later).batch("a").batch("lock")
    assert lines(caplog)[0].startswith("component 'count': seen is not saved")
    assert run.batch("b", moves=True).attributes["seen"] == ["b"]


def test_a_process_keeps_its_own_of_what_another_one_saves_no_more():
    run = Checkpoint().run(Later).batch("a")
    first = dict(contexts._cached)
    run.batch("b", moves=True)
    second = dict(contexts._cached)

    def goes_to(process):
        contexts._cached.clear()
        contexts._cached.update(process)

    goes_to(first)
    run.batch("lock")
    for word in "cde":
        goes_to(second)
        assert run.batch(word).reported == []
        goes_to(first)
        run.batch("lock")


def test_an_attribute_that_remembers_names_and_that_cannot_be_saved_is_an_error():
    class Named(Unsaved):
        remembers = ["counts"]

    run = Checkpoint().run(Named).batch("a", "b")
    assert [type(error) for error in run.raised] == [MisuseError] * 2
    assert "attribute 'counts' cannot be pickled" in str(run.raised[0])
    assert "remembers names it" in str(run.raised[0])

    class NamedLater(Later):
        remembers = ["seen"]

    run = Checkpoint().run(NamedLater).batch("a")
    assert run.unsaved is None
    assert "attribute 'seen' cannot be pickled" in str(run.batch("lock").unsaved)


# --- a restart ---------------------------------------------------------------------------------------------


class Stepping(Bolt):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        self.step = storm_conf.get("step", 1)
        self.total = storm_conf.get("total", 0)
        self.words = set(storm_conf.get("words", ("ant", "bee", "cow", "dog")))
        self.table = dict.fromkeys(range(storm_conf.get("rows", 5_000)))

    def process(self, tup):
        if tup.values[0] != "idle":
            self.total += self.step


def test_a_restart_takes_the_new_configuration_for_what_the_component_has_not_changed(caplog):
    checkpoint = Checkpoint()
    assert checkpoint.run(Stepping).batch("a", "b").attributes["total"] == 2
    attributes = checkpoint.run(Stepping, {"step": 5, "words": ["emu"], "rows": 6_000}).batch().attributes
    assert (attributes["step"], attributes["words"], len(attributes["table"])) == (5, {"emu"}, 6_000)
    assert attributes["total"] == 7
    assert checkpoint.run(Stepping, {"step": 7}).batch("a", moves=True).attributes["total"] == 14
    assert lines(caplog) == []


def test_what_the_component_has_changed_is_restored_and_a_line_says_that_initialize_makes_another(caplog):
    checkpoint = Checkpoint()
    checkpoint.run(Stepping).batch("a", "b")
    run = checkpoint.run(Stepping, {"total": 100}).batch()
    assert run.attributes["total"] == 3
    assert lines(caplog) == ["count.total is 2 from the checkpoint, initialize now makes 100"]
    run.batch(moves=True)
    checkpoint.run(Stepping, {"total": 100}).batch()
    assert len(lines(caplog)) == 1, "the start is the same as in the run before"


class Lists(Bolt):
    def initialize(self, conf, context):
        self.words = list(range(conf.get("most", 0)))

    def process(self, tup):
        self.words += range(9)


def test_two_lists_that_begin_with_the_same_items_are_told_apart_by_their_sizes(caplog):
    checkpoint = Checkpoint()
    checkpoint.run(Lists).batch("a")
    checkpoint.run(Lists, {"most": 1_000}).batch()
    (said,) = lines(caplog)
    begin = "[0, 1, 2, 3, 4, 5, ...]"
    assert said == (
        f"count.words is {begin} (9 items) from the checkpoint, initialize now makes {begin} (1,000 items)"
    )


def test_within_a_run_an_attribute_is_as_committed_also_if_initialize_makes_another_each_time():
    class Numbered(Bolt):
        outputs = ["word"]

        def initialize(self, storm_conf, context):
            self.number = next(_numbers)

        def process(self, tup):
            pass

    checkpoint = Checkpoint()
    run = checkpoint.run(Numbered).batch()
    number = run.attributes["number"]
    assert run.batch(moves=True).attributes["number"] == number
    assert checkpoint.run(Numbered).batch().attributes["number"] != number


def test_a_first_micro_batch_that_is_not_committed_runs_again_from_what_initialize_makes():
    checkpoint = Checkpoint()
    checkpoint.run(Stepping).batch("idle")
    run = checkpoint.run(Stepping, {"total": 10}).batch("a", commits=False)
    assert run.attributes["total"] == 11
    assert run.batch("a").attributes["total"] == 11


def test_a_process_that_has_an_object_of_an_earlier_run_makes_a_new_one():
    checkpoint = Checkpoint()
    checkpoint.run(Stepping).batch()
    process = dict(contexts._cached)
    run = checkpoint.run(Stepping, {"step": 5}).batch()
    contexts._cached.clear()
    contexts._cached.update(process)
    assert run.batch().attributes["storm_conf"]["step"] == 5


def test_two_attributes_that_share_an_object_share_it_after_a_restart():
    class Sharing(Bolt):
        outputs = ["word"]

        def initialize(self, storm_conf, context):
            self.cache = {}
            self.all = {"cache": self.cache, "n": 0}

        def process(self, tup):
            self.all["n"] += 1

    checkpoint = Checkpoint()
    checkpoint.run(Sharing).batch()
    attributes = checkpoint.run(Sharing).batch().attributes
    assert attributes["all"]["n"] == 2
    assert attributes["all"]["cache"] is attributes["cache"]


def test_an_attribute_that_new_code_adds_is_kept_and_one_that_the_component_deleted_stays_deleted():
    class Older(Bolt):
        outputs = ["word"]

        def initialize(self, storm_conf, context):
            self.first = True

        def process(self, tup):
            self.__dict__.pop("first", None)
            self.n = getattr(self, "n", 0) + 1

    class Newer(Older):
        def initialize(self, storm_conf, context):
            super().initialize(storm_conf, context)
            self.added = []

        def process(self, tup):
            super().process(tup)
            self.added.append(self.n)

    checkpoint = Checkpoint()
    run = checkpoint.run(Older).batch()
    assert "first" not in run.batch("a", moves=True).attributes
    run = checkpoint.run(Newer).batch("a")
    assert run.attributes["added"] == [3]
    assert "first" not in run.attributes


def test_a_checkpoint_that_does_not_say_what_initialize_made_is_restored_whole():
    checkpoint = Checkpoint()
    checkpoint.run(Stepping).batch("a")
    for name in ("made", "run"):
        del checkpoint.kept[name]

    class Longer(Stepping):
        def initialize(self, storm_conf, context):
            super().initialize(storm_conf, context)
            self.added = 1

    attributes = checkpoint.run(Longer, {"step": 5}).batch("a").attributes
    assert (attributes["step"], attributes["total"], attributes["added"]) == (1, 2, 1)


def test_remembers_says_what_is_read_too():
    checkpoint = Checkpoint()
    checkpoint.run(Stepping).batch("a")

    class Chosen(Stepping):
        remembers = ["step"]

    attributes = checkpoint.run(Chosen).batch("a").attributes
    assert (attributes["step"], attributes["total"]) == (1, 1)


def test_an_object_whose_equality_leaves_something_out_counts_as_changed():
    class Owner:
        component_name, task_id = "count", 1

    owner = Owner()
    owner.counted = Named("a")
    attributes = Attributes(owner, None, "count", 1)
    attributes.note_made(is_first=True)
    made = attributes.made
    owner.counted.n = 5
    data = attributes.data()
    owner.counted = Named("b")
    other = Attributes(owner, None, "count", 1)
    other.note_made(is_first=True)
    other.restore(data, made, is_restart=True)
    assert (owner.counted.name, owner.counted.n) == ("a", 5)


class Named:
    def __init__(self, name):
        self.name, self.n = name, 0

    def __eq__(self, other):
        return self.name == other.name

    __hash__ = None


# --- what cannot be read, and what cannot begin ------------------------------------------------------------


def test_data_whose_class_is_gone_are_one_error_with_the_way_out(caplog):
    checkpoint = Checkpoint()
    checkpoint.run(Stepping).batch()
    gone = pickle.dumps({"stats": Named("a")}).replace(b"Named", b"Nomad")
    checkpoint.kept["data"] = gone
    run = checkpoint.run(Stepping).batch("a", "b", "c")
    assert len({id(error) for error in run.raised}) == 1
    assert isinstance(run.raised[0], CheckpointError)
    assert "Nomad" in run.raised[0].what
    assert "component 'count', task 1" in run.raised[0].where
    assert "acktree reset-state CHECKPOINT --component count" in run.raised[0].fix
    assert len(lines(caplog)) == 1
    assert checkpoint.kept["data"] == gone


class Broken(Bolt):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        raise NameError("Conter")

    def process(self, tup):
        pass


def test_an_initialize_that_raises_is_logged_once_and_its_traceback_is_as_long_for_each_tuple(caplog):
    def length(error):
        at, count = error.__traceback__, 0
        while at is not None:
            at, count = at.tb_next, count + 1
        return count

    bolt = HostedBolt(Program(Broken, {}, SETTING), ())
    bolt.prepare(Config(), Checkpoint().context, Recorder())
    lengths = []
    for _ in range(50):
        with pytest.raises(NameError) as raised:
            bolt.execute(Given(("a",)))
        lengths.append(length(raised.value))
    assert max(lengths) <= lengths[0] + 2
    (line,) = lines(caplog)
    assert line == "component 'count', task 1 cannot begin, so its tuples fail: NameError: Conter"
