"""What is saved of a component is saved whole, can be read again, and counts; else nothing counts."""

from __future__ import annotations

import threading
import types
import weakref
from collections import Counter, OrderedDict, defaultdict

import numpy as np
import pytest

from acktree import Config, FailureCause, MisuseError, Verdict
from acktree.pystorm.attributes import Attributes
from acktree.pystorm.forms import form, pickled
from acktree.streamparse import Bolt, Topology
from acktree.streamparse.testing import _Recorder, run_bolt, run_topology
from tests.unit.pystorm.one_task import Checkpoint, Counting, Given, Words, holding, lines

# --- what cannot be saved ----------------------------------------------------------------------------------


class Fragile:
    """Raises where its plan says so, each time that it is pickled."""

    plan = []

    def __getstate__(self):
        if Fragile.plan and (error := Fragile.plan.pop(0)):
            raise error
        return {}


@pytest.fixture(autouse=True)
def _no_plan():
    Fragile.plan = []


class Holds(Counting):
    def initialize(self, storm_conf, context):
        super().initialize(storm_conf, context)
        self.held = Fragile()

    def process(self, tup):
        super().process(tup)
        Fragile.plan = [*PLANS.get(tup.values[0], ())]


PLANS = {
    "exit": [SystemExit("not now")] * 3,
    "memory": [MemoryError("not now")] * 3,
    "again": [KeyError("once"), None, KeyError("not now")],
}


class Holding(Topology):
    words = Words.spec()
    count = Holds.spec(inputs=[words])


@pytest.mark.parametrize("word", PLANS)
def test_attributes_that_raise_while_they_are_saved_fail_the_tuples_and_none_is_acked(word):
    results = run_topology(Holding, {"words": [["a"], [word]]})
    assert results.verdicts.of("words") == [Verdict.FAILED] * 2
    failure = results.failures["words", 0]
    assert "the attributes of component 'count' cannot be saved" in failure.reason
    assert "not now" in failure.reason
    assert failure.cause is FailureCause.MISUSE


def test_run_bolt_shows_it_as_a_topology_does():
    ran = run_bolt(Holds, [["a"], ["exit"]])
    assert (ran.acked, ran.failed) == ([], [["a"], ["exit"]])
    assert "cannot be saved: SystemExit: not now" in str(ran.errors[0])


def test_what_could_not_be_saved_is_as_it_was_and_the_bolt_goes_on():
    run = Checkpoint().run(Holds).batch("a")
    assert isinstance(run.batch("exit").unsaved, MisuseError)
    assert run.batch("b").emitted == [["b", 2]]


class RefusingError(Exception):
    """Pickles, and cannot be read: its class wants two arguments."""

    def __init__(self, one, two):
        super().__init__(one)
        self.two = two


def test_a_value_that_pickles_and_cannot_be_read_is_not_saved_and_the_bolt_begins_again(caplog):
    class Failing(Counting):
        def process(self, tup):
            super().process(tup)
            self.last_error = RefusingError(tup.values[0], 2)

    checkpoint = Checkpoint()
    checkpoint.run(Failing).batch("a").batch("b", moves=True)
    run = checkpoint.run(Failing).batch("c")
    assert (run.emitted, run.raised) == ([["c", 3]], [])
    (line, *_) = lines(caplog)
    assert line.startswith("component 'count': last_error is not saved, for its pickle cannot be read")


def test_one_that_remembers_names_and_that_cannot_be_read_fails_the_tuples():
    class Failing(Counting):
        remembers = ["last_error"]

        def process(self, tup):
            self.last_error = RefusingError(tup.values[0], 2) if tup.values[0] == "b" else None

    run = Checkpoint().run(Failing).batch("a")
    assert run.unsaved is None
    assert "remembers names it: UnreadableError" in str(run.batch("b").unsaved)


def test_an_exit_in_initialize_is_raised_once_for_all_tuples_of_the_micro_batch():
    class Leaves(Bolt):
        calls = [0]

        def initialize(self, storm_conf, context):
            Leaves.calls[0] += 1
            raise SystemExit(2)

        def process(self, tup):
            pass

    run = Checkpoint().run(Leaves)
    run.bolt.prepare(Config(), run.checkpoint.context, _Recorder())
    for _ in range(3):
        with pytest.raises(SystemExit):
            run.bolt.execute(Given(("a",)))
    assert Leaves.calls == [1]


# --- slots, bases, bodies of classes -----------------------------------------------------------------------


class Slotted(Counting):
    __slots__ = ("_hidden", "total")

    def process(self, tup):
        if tup.values[0] == "forget":
            del self._hidden
        elif tup.values[0] != "idle":
            self._hidden = [*getattr(self, "_hidden", ()), tup.values[0]]
        super().process(tup)


def test_slots_of_a_component_are_data_too():
    checkpoint = Checkpoint()
    run = checkpoint.run(Slotted).batch("a").batch("b", moves=True)
    component = run.bolt
    assert run.emitted == [["b", 2]]
    run.batch("forget", moves=True)
    assert checkpoint.run(Slotted).batch("c", "d").emitted == [["c", 4], ["d", 5]]
    assert component is run.bolt


def test_the_body_of_a_class_may_have_annotations_slots_and_containers_that_cannot_be_copied():
    class Body(Counting):
        formats: dict[str, object] = {"module": types, "lock": threading.Lock()}
        seen: list[str] = []

        def process(self, tup):
            self.seen.append(tup.values[0])
            super().process(tup)

    run = Checkpoint().run(Body).batch("a")
    assert (run.raised, run.acked) == ([], [["a"]])
    assert "__annotations__" not in run.attributes
    assert run.batch("b", moves=True).attributes["seen"] == ["a", "b"]
    assert Body.seen == []


def test_an_attribute_that_was_opaque_is_saved_from_when_it_can_be():
    class Mending(Counting):
        def initialize(self, storm_conf, context):
            super().initialize(storm_conf, context)
            self.seen = threading.Lock()

        def process(self, tup):
            seen = self.seen if isinstance(self.seen, list) else []
            self.seen = [*seen, tup.values[0]]

    checkpoint = Checkpoint()
    run = checkpoint.run(Mending).batch("a")
    assert run.batch("b", moves=True).attributes["seen"] == ["a", "b"]
    assert checkpoint.run(Mending).batch("c").attributes["seen"] == ["a", "b", "c"]


def test_what_a_thread_changes_while_it_is_saved_fails_the_tuples_and_is_no_less_saved_later():
    class Changing(Holds):
        def process(self, tup):
            super().process(tup)
            if tup.values[0] == "changes":
                Fragile.plan = [RuntimeError("dictionary changed size during iteration")] * 2

    run = Checkpoint().run(Changing).batch("a")
    assert "changed size during iteration" in str(run.batch("changes").unsaved)
    assert isinstance(run.batch("b").attributes["held"], Fragile)
    assert run.emitted == [["b", 2]]


def test_a_part_that_refers_to_the_component_is_not_saved_as_a_copy_of_it(caplog):
    class Referring(Counting):
        def initialize(self, storm_conf, context):
            super().initialize(storm_conf, context)
            self.on = {"word": self.more}

        def __getstate__(self):
            return {"total": self.total}

        def more(self):
            self.total += 1

        def process(self, tup):
            self.on["word"]()
            self.emit([tup.values[0], self.total])

    run = Checkpoint().run(Referring).batch("a")
    assert run.batch("b", moves=True).emitted == [["b", 2]]
    assert (
        "on is not saved, for it cannot be pickled (PicklingError: it refers to the component"
        in lines(caplog)[0]
    )


class Proxy:
    """Says that it is of another class; raises while there is none."""

    def __init__(self):
        self.lock = threading.Lock()

    @property
    def __class__(self):
        raise RuntimeError("unbound")

    def __getattr__(self, name):
        raise RuntimeError("unbound")


def test_an_object_that_answers_no_question_is_named_and_stops_nothing(caplog):
    run = Checkpoint().run(holding(lambda _: Proxy())).batch("a")
    assert run.acked == [["a"]]
    assert "held is not saved" in lines(caplog)[0]


class Held:
    def __init__(self, names):
        self.names, self.kind = names, "kind"


class Kept:
    """A descriptor that keeps the values itself."""

    def __init__(self):
        self.values = weakref.WeakKeyDictionary()

    def __get__(self, owner, kind):
        return self if owner is None else self.values.get(owner, 0)

    def __set__(self, owner, value):
        self.values[owner] = value


class OnClass(Counting):
    kept = Kept()
    words = 0
    tables: dict[str, int] = {"a": 0, "b": 0}
    stats = Held(["a"])
    setting = Held(["a"])

    def process(self, tup):
        self.stats.names = tup
        self.kept += 1
        type(self).words += 1
        OnClass.tables[tup.values[0]] = 1
        super().process(tup)


def test_what_a_class_or_a_descriptor_keeps_is_named(caplog):
    Checkpoint().run(OnClass).batch("a").batch("b")
    named = [line.removeprefix("component 'count': ").partition(" ")[0] for line in lines(caplog)]
    assert named == ["kept", "OnClass.words", "OnClass.tables", "OnClass.stats"]


def test_a_component_that_is_a_container_itself_is_told_that_its_items_are_not_saved(caplog):
    class Mapped(Counting, dict):
        __hash__ = object.__hash__

        def process(self, tup):
            self[tup.values[0]] = 1
            super().process(tup)

    run = Checkpoint().run(Mapped).batch("a")
    assert run.acked == [["a"]]
    assert lines(caplog)[0].startswith("component 'count': its class derives from a container")


# --- the same value, another value -------------------------------------------------------------------------


class Settings(Bolt):
    outputs = ["word"]
    values = [None]

    def initialize(self, storm_conf, context):
        self.setting = Settings.values[0]

    def process(self, tup):
        pass


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (1, True),
        (1, 1.0),
        ([0], [False]),
        (0.0, -0.0),
        ({1, 2}, {True, 2}),
        (frozenset({"a"}), {"a"}),
        (OrderedDict(a=1), {"a": 1}),
        (np.array([1, 2]), np.array([1.0, 2.0])),
    ],
)
def test_a_new_setting_is_taken_at_a_restart_also_if_it_equals_the_old_one(old, new, caplog):
    checkpoint = Checkpoint()
    Settings.values[0] = old
    checkpoint.run(Settings).batch().batch(moves=True)
    Settings.values[0] = new
    setting = checkpoint.run(Settings).batch().attributes["setting"]
    assert repr(setting) == repr(new)
    assert lines(caplog) == []


def frame(columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def collided(*items):
    made = set()
    for item in items:
        made.add(item)
    return made


SAME = {
    "a set": lambda: {f"word {n}" for n in range(5_000)},
    "a set in another order": lambda: collided(8, 0, 16, "a", None),
    "a set in an object": lambda: Held(collided(*"dcba", (1, 2), frozenset("ab"))),
    "a subclass of a set": lambda: Named({"b", "a", "c"}),
    "a frame": lambda: frame({"a": range(900), "b": [f"w{n}" for n in range(900)], "c": 1.5})[::2],
    "a view of an array": lambda: np.arange(10_000).reshape(100, 100)[::3, 1:50],
    "an array that is turned": lambda: np.arange(2_000).reshape(20, 100).T,
    "a text that names an attribute": lambda: Held("names"),
    "an array in a dict": lambda: {"table": np.arange(6_000)[10:], "n": 1},
}


class Named(set):
    pass


@pytest.mark.parametrize("name", SAME)
def test_an_attribute_that_nobody_changed_takes_the_new_setting_whatever_its_pickles_look_like(name, caplog):
    checkpoint = Checkpoint()
    Settings.values[0] = SAME[name]()
    run = checkpoint.run(Settings)
    for _ in range(3):
        run.batch(moves=True)
    Settings.values[0] = "another"
    assert checkpoint.run(Settings).batch().attributes["setting"] == "another"
    assert lines(caplog) == []


def form_of(value):
    return form(pickled(value))


def test_the_form_of_a_set_is_the_same_in_whatever_order_it_was_filled():
    assert form_of(collided(0, 8, 16)) == form_of(collided(16, 8, 0))
    assert pickled(collided(0, 8, 16)) != pickled(collided(16, 8, 0))
    assert form_of({"a": collided(0, 8)}) == form_of({"a": collided(8, 0)})
    assert form_of({(1, "a"), None}) == form_of({None, (1, "a")})
    assert form_of({"1"}) != form_of({1})
    assert form_of(Named(collided(0, 8))) == form_of(Named(collided(8, 0)))
    assert form_of(Named({1})) != form_of({1})
    assert form_of(Held(collided(0, (8,)))) == form_of(Held(collided((8,), 0)))


# --- after a conflict --------------------------------------------------------------------------------------


class Balance(Bolt):
    outputs = ["word"]
    begins = [0]

    def initialize(self, storm_conf, context):
        self.total = Balance.begins[0]

    def process(self, tup):
        self.total += int(tup.values[0])


def balance(checkpoint, begins, word):
    Balance.begins[0] = begins
    return checkpoint.run(Balance).batch(word).attributes["total"]


def test_a_counted_value_is_restored_at_each_restart_also_when_it_comes_to_what_initialize_makes():
    checkpoint = Checkpoint()
    assert balance(checkpoint, 0, "2") == 2
    assert balance(checkpoint, 100, "98") == 100
    assert balance(checkpoint, 0, "1") == 101
    assert balance(checkpoint, 101, "0") == 101
    assert balance(checkpoint, 5, "0") == 101


def test_no_line_says_that_two_values_differ_that_are_equal(caplog):
    checkpoint = Checkpoint()
    balance(checkpoint, 0, "2")
    assert balance(checkpoint, 2, "0") == 2
    assert lines(caplog) == []
    assert balance(checkpoint, 7, "0") == 2
    assert lines(caplog) == ["count.total is 2 from the checkpoint, initialize now makes 7"]
    assert balance(checkpoint, 7, "0") == 2
    assert len(lines(caplog)) == 1


def test_an_attribute_that_new_code_makes_unpicklable_is_restored_in_every_process_if_it_was_changed():
    class Older(Bolt):
        outputs = ["n"]

        def initialize(self, storm_conf, context):
            self.counts, self.setting = Counter(), "old"

        def process(self, tup):
            self.counts[tup.values[0]] += 1
            self.emit([self.counts[tup.values[0]]])

    class Newer(Older):
        def initialize(self, storm_conf, context):
            self.counts, self.setting = defaultdict(lambda: 0), threading.Lock()

    checkpoint = Checkpoint()
    checkpoint.run(Older).batch("a")
    run = checkpoint.run(Newer).batch("a")
    assert run.emitted == [[2]]
    for n in (3, 4):
        run.batch("a", moves=True)
        assert run.emitted == [[n]]
        assert type(run.attributes["counts"]) is Counter
        assert type(run.attributes["setting"]) is type(threading.Lock())
    assert checkpoint.run(Newer).batch("a").emitted == [[5]]


def test_a_start_that_an_earlier_acktree_noted_is_no_reason_to_take_anything_back():
    class Owner:
        pass

    owner = Owner()
    owner.step, owner.total = 1, 5
    attributes = Attributes(owner, None, "count", 1)
    attributes.note_made(is_first=True)
    attributes.restore(
        pickled({"step": 1, "total": 7}),
        pickled({"step": b"\x80\x05K\x01.", "total": "0" * 128}),
        is_restart=True,
    )
    assert (owner.step, owner.total) == (1, 7)
