"""The store of dead letters, wherever it lies: durable, idempotent, and no reader of pickles.

Run here on SQLite and on SQLAlchemy over SQLite, and by ``tests/services`` on PostgreSQL.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from acktree.core.tracking.verdicts import FailureCause, FailureKind
from acktree.dead_letters import DeadLetters, table
from acktree.dead_letters.store import IN_MEMORY
from acktree.errors import AcktreeError, ConnectorError, MisuseError
from tests.drawn import drawn
from tests.unit.dead_letters.letters import LETTER, Unreadable, letter, payload_of


@pytest.fixture(params=["sqlite", "sqlalchemy"])
def place(request, tmp_path):
    """Where to store, with nothing in it yet."""
    if request.param == "sqlite":
        return tmp_path / "checkpoint" / "dead_letters.sqlite"
    pytest.importorskip("sqlalchemy")
    return f"sqlite+pysqlite:///{tmp_path}/letters.db"


@pytest.fixture
def store(place):
    with DeadLetters(place, create=True) as opened:
        yield opened


# ---- storing -----------------------------------------------------------------------------------------------


def test_a_letter_comes_back_as_it_was_and_gets_a_number(store):
    assert store.put([LETTER]) == 1
    assert list(store) == [replace(LETTER, id=1)]


def test_the_values_of_a_letter_are_those_that_the_spout_emitted(store):
    store.put([LETTER, letter(2, fields=(), payload=payload_of())])
    first, second = store
    assert first.values == ["UA", (1, None)]
    assert second.values == []


def test_the_same_letter_stored_twice_is_one_letter_with_the_first_content(store):
    assert store.put([letter(1), letter(2), letter(1, reason="a second time")]) == 2
    assert store.put([letter(2, reason="a second time"), letter(3)]) == 1
    assert [(stored.root, stored.reason) for stored in store] == [(root, LETTER.reason) for root in (1, 2, 3)]


def test_another_message_under_the_root_of_a_letter_is_refused_and_said(store):
    """As where a checkpoint was brought back from a copy, and the letters lie elsewhere."""
    store.put([letter(1), letter(2)])
    other = letter(2, message_id_repr="'other'", first_emitted_ms=LETTER.first_emitted_ms + 1)
    with pytest.raises(ConnectorError, match="message 'other' cannot become a dead letter") as refused:
        store.put([other, letter(3)])
    assert "another dead_letters_url" in refused.value.fix
    assert [stored.root for stored in store] == [1, 2, 3]
    # The same message as another run reads it: an object's address, or a time that was not kept.
    assert store.put([letter(2, message_id_repr="<object at 0x7f>")]) == 0
    assert store.put([letter(2, first_emitted_ms=LETTER.first_emitted_ms + 1)]) == 0


def test_equal_roots_of_two_topologies_are_two_letters(store):
    assert store.put([letter(1), letter(1, topology="orders")]) == 2


def test_a_root_is_known_when_this_topology_has_its_letter(store, monkeypatch):
    monkeypatch.setattr(table, "MOST_IDS", 10)
    store.put(letter(root) for root in range(-12, 24))
    store.put([letter(50, topology="orders")])
    assert store.known_roots(LETTER.topology, [*range(20, 60), -12, -13, 20]) == {20, 21, 22, 23, -12}
    assert store.known_roots("orders", [1, 50, 2**63 - 1, -(2**63)]) == {50}
    assert store.known_roots("nobody", [1, 50]) == store.known_roots(LETTER.topology, []) == set()
    store.purge(ids=[1])
    assert store.known_roots(LETTER.topology, [-12, -11]) == {-11}


def test_nothing_at_all_can_be_stored(store):
    assert store.put([]) == 0
    assert list(store) == []


def test_when_one_letter_cannot_be_stored_none_is(store):
    with pytest.raises(AcktreeError, match="cannot store"):
        store.put([letter(1), letter(2, payload=None)])
    assert len(store) == 0
    assert store.put([letter(1)]) == 1


def test_letters_survive_the_end_of_the_process_that_stored_them(place):
    with DeadLetters(place, create=True) as first:
        first.put([letter(1), letter(2)])
    with DeadLetters(place, create=True) as second:
        assert [stored.root for stored in second] == [1, 2]
        assert second.put([letter(2), letter(3)]) == 1
        assert [stored.root for stored in second] == [1, 2, 3]


def test_what_put_stored_is_seen_by_another_connection_before_anything_is_closed(store, place):
    store.put([letter(1)])
    with DeadLetters(place, create=True) as other:
        assert len(other) == 1


def test_a_letter_with_text_that_is_no_unicode_or_holds_a_nul_is_stored(store):
    store.put([letter(1, reason="no file 'caf\udce9' of \0", fields=("caf\udce9", "\x00"))])
    (stored,) = store
    assert stored.reason == "no file 'caf\\udce9' of \\x00"
    assert stored.fields == ("caf\udce9", "\x00")


def test_long_words_and_large_payloads_come_back_whole(store):
    long = letter(1, traceback="line\n" * 100_000, payload=bytes(range(256)) * 10_000)
    store.put([long])
    assert list(store) == [replace(long, id=1)]


def test_two_threads_store_at_once_and_every_root_is_there_once(store):
    new = []

    def put(roots):
        new.extend(store.put([letter(root)]) for root in roots)

    in_threads(lambda: put(range(20)), lambda: put(range(10, 30)))
    assert sum(new) == 30
    assert sorted(stored.root for stored in store) == list(range(30))


def test_two_threads_open_a_new_place_at_once(place):
    sizes = []

    def open_and_put(root):
        with DeadLetters(place, create=True) as opened:
            sizes.append(opened.put([letter(root)]))

    in_threads(*(lambda root=root: open_and_put(root) for root in range(4)))
    with DeadLetters(place, create=True) as opened:
        assert sizes == [1] * 4
        assert len(opened) == 4


def in_threads(*jobs):
    raised = []

    def run(job):
        try:
            job()
        except Exception as error:  # noqa: BLE001  # shown below
            raised.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []


# ---- looking -----------------------------------------------------------------------------------------------


def test_looking_unpickles_nothing_and_only_values_does(store, tmp_path):
    store.put([letter(1, payload=payload_of("UA", Unreadable()))])
    (stored,) = store
    assert f"<{len(stored.payload)} bytes>" in repr(stored)
    assert "UA" not in repr(stored)
    assert store.get([1]) == [stored]
    assert store.count(spout="departures") == 1
    assert "f0 = 'UA'" in stored.story()
    assert str(stored.plain_values["f1"]).startswith("<pickled, ")
    assert store.export(tmp_path / "letters.parquet") == store.export(tmp_path / "letters.jsonl") == 1
    with pytest.raises(MisuseError, match="nobody asked for"):
        _ = stored.values


def test_more_letters_than_a_page_are_listed_once_each(store):
    store.put(letter(root) for root in range(250))
    assert [stored.root for stored in store] == list(range(250))
    assert len(store) == 250


def test_letters_may_be_stored_while_they_are_listed(store):
    store.put(letter(root) for root in range(100))
    listed = iter(store)
    assert next(listed).root == 0
    store.put([letter(100)])
    assert [stored.root for stored in listed] == list(range(1, 101))


def test_letters_may_be_purged_while_they_are_listed(store):
    store.put(letter(root) for root in range(150))
    listed = iter(store)
    assert next(listed).root == 0
    store.purge(ids=[1, 120])
    assert [stored.root for stored in listed] == [root for root in range(1, 150) if root != 119]


FILTERS = [
    ({}, [1, 2, 3, 4]),
    ({"topology": "flights"}, [1, 2, 3]),
    ({"topology": "flights", "spout": "departures"}, [1, 2]),
    ({"component": "parse"}, [1, 4]),
    ({"kind": FailureKind.TIMED_OUT}, [2]),
    ({"kind": "TIMED_OUT"}, [2]),
    ({"cause": FailureCause.EXCEPTION}, [1, 3, 4]),
    ({"redriven": True}, [2, 3]),
    ({"redriven": False}, [1, 4]),
    ({"redriven": True, "settled": False}, [2]),
    ({"settled": True}, [3]),
    ({"before": 3_000}, [1, 2]),
    ({"since": 3_000}, [3, 4]),
    ({"before": datetime.fromtimestamp(4, UTC), "since": 2_001}, [3]),
    ({"before": datetime.fromtimestamp(4, timezone(timedelta(hours=5)))}, [1, 2, 3]),
    ({"ids": [4, 1, 77, -1, 2**70, "x", 4]}, [1, 4]),
    ({"ids": []}, []),
    ({"ids": [1, 2], "component": "parse"}, [1]),
    ({"component": None}, [1, 2, 3, 4]),
]


@pytest.fixture
def four(store):
    store.put(
        [
            letter(1),
            letter(2, kind=FailureKind.TIMED_OUT, cause=FailureCause.TIMEOUT, component=None),
            letter(3, spout="arrivals", component="count", dead_ms=3_000),
            letter(4, topology="orders", dead_ms=4_000),
        ]
    )
    store.mark_redriven([2, 3], now_ms=5_000)
    store.mark_settled([3], now_ms=6_000)
    return store


@pytest.mark.parametrize(("filters", "fitting"), FILTERS, ids=str)
def test_what_is_found_counted_and_purged_is_what_fits_all_filters(four, filters, fitting):
    assert [stored.id for stored in four.find(**filters)] == fitting
    assert four.count(**filters) == len(fitting)
    if filters.get("ids", fitting) == fitting and not is_everything(filters):
        assert four.purge(**filters) == len(fitting)
        assert [stored.id for stored in four] == [number for number in (1, 2, 3, 4) if number not in fitting]


def is_everything(filters):
    """Whether purge() refuses these: see below."""
    return {name for name, value in filters.items() if value is not None} <= {"topology"}


def test_many_ids_are_found_although_one_statement_does_not_take_them_all(store, monkeypatch):
    monkeypatch.setattr(table, "MOST_IDS", 10)
    store.put(letter(root) for root in range(24))
    asked = [*range(24, 0, -1), *range(1, 5)]
    assert [stored.id for stored in store.get(asked)] == asked
    assert store.count(ids=asked) == 24
    assert [stored.id for stored in store.find(ids=asked)] == list(range(1, 25))
    store.mark_redriven(asked, now_ms=7)
    assert store.count(redriven=True) == 24
    assert store.purge(ids=range(1, 24)) == 23
    assert [stored.id for stored in store] == [24]


def test_more_ids_than_a_page_are_found(store):
    store.put(letter(root) for root in range(250))
    assert [stored.id for stored in store.find(ids=range(2, 250))] == list(range(2, 250))


def test_a_filter_that_does_not_exist_and_a_time_without_a_zone_are_refused_at_the_call(store):
    with pytest.raises(TypeError, match="no filter 'bolt'; there are ids, topology"):
        store.find(bolt="parse")
    with pytest.raises(MisuseError, match="no time zone"):
        store.find(before=datetime(2024, 1, 1))  # noqa: DTZ001


def test_a_store_of_one_topology_shows_and_changes_no_others(store, place):
    store.put([letter(1), letter(1, topology="orders"), letter(2, topology="orders")])
    with DeadLetters(place, topology="orders", create=True) as orders:
        assert [stored.id for stored in orders] == [2, 3]
        assert orders.count(topology="flights") == 0
        for call in (orders.get, lambda ids: orders.purge(ids=ids), orders.redrive):
            with pytest.raises(MisuseError, match="no dead letter 1"):
                call([2, 1])
        assert orders.purge(before=10_000) == 2
    assert [stored.id for stored in store] == [1]


def test_get_keeps_the_order_asked_for(store):
    store.put([letter(1), letter(2), letter(3)])
    assert [stored.root for stored in store.get([3, 1, 3])] == [3, 1, 3]
    assert store.get([]) == []


@pytest.mark.parametrize("number", [7, -1, 0, 2**63, "1", None, True, 1.0], ids=repr)
def test_the_error_for_an_unknown_letter_names_its_id(store, number):
    store.put([letter(1)])
    with pytest.raises(MisuseError, match="no dead letter") as refused:
        store.get([1, number])
    assert repr(number) in str(refused.value)
    assert store.place in str(refused.value)


def test_an_id_may_be_any_kind_of_whole_number(place):
    sent = []
    with DeadLetters(place, sent.extend, create=True) as store:
        store.put([letter(1), letter(2)])
        assert [each.id for each in store.get([np.int64(2), np.uint8(1)])] == [2, 1]
        assert store.count(ids=np.arange(1, 3)) == 2
        assert store.redrive([np.int64(1), 1]) == 1
        with pytest.raises(MisuseError, match="no dead letter"):
            store.get([1, np.float32(1)])


@pytest.mark.parametrize("call", ["get", "redrive", "count", "purge"])
def test_one_id_that_is_in_no_list_is_refused_with_a_list_as_the_fix(place, call):
    with DeadLetters(place, print, create=True) as store:
        store.put([letter(1)])
        with pytest.raises(MisuseError, match="ids is 1, and must be a list") as refused:
            getattr(store, call)(ids=1)
        assert "[1]" in refused.value.fix
        assert store.count() == 1


# ---- changing ----------------------------------------------------------------------------------------------


def test_redriven_letters_keep_the_time_of_the_last_redrive_and_stay(store):
    store.put([letter(1), letter(2)])
    store.mark_redriven([1], now_ms=5_000)
    store.mark_redriven([1], now_ms=6_000)
    assert [stored.redriven_ms for stored in store] == [6_000, None]


def test_when_one_letter_to_mark_is_not_there_none_is_marked(store):
    store.put([letter(1)])
    with pytest.raises(MisuseError, match="no dead letter 7"):
        store.mark_redriven([1, 7], now_ms=5_000)
    assert store.count(redriven=True) == 0


def test_a_letter_is_settled_until_it_is_redriven_again_and_a_purged_one_needs_no_note(store):
    store.put([letter(1), letter(2)])
    store.mark_redriven([1, 2], now_ms=5_000)
    store.mark_settled([1, 99], now_ms=6_000)
    assert [stored.settled_ms for stored in store] == [6_000, None]
    store.mark_redriven([1], now_ms=7_000)
    assert [(stored.redriven_ms, stored.settled_ms) for stored in store] == [(7_000, None), (5_000, None)]


def test_redriving_sends_the_letters_in_the_order_asked_for_after_they_are_marked(place):
    sent = []
    times = count(10)

    def send(letters):
        sent.append((letters, store.count(redriven=True)))

    with DeadLetters(place, send, now_ms=lambda: next(times), create=True) as store:
        store.put([letter(1), letter(2), letter(3)])
        assert store.redrive([3, 1]) == 2
        assert [([each.root for each in letters], marked) for letters, marked in sent] == [([3, 1], 2)]
        assert [stored.redriven_ms for stored in store] == [10, None, 10]


def test_a_letter_named_twice_is_sent_once_and_an_open_one_not_again(place):
    sent, is_open = [], set()
    times = count(10)
    with DeadLetters(
        place, sent.extend, is_open=lambda each: each.id in is_open, now_ms=lambda: next(times), create=True
    ) as store:
        store.put([letter(1), letter(2)])
        assert store.redrive([1, 1, 1]) == 1
        is_open.add(1)
        assert store.redrive([1]) == 0
        assert store.redrive([1, 2]) == 1
        assert [each.root for each in sent] == [1, 2]
        assert next(iter(store)).redriven_ms == 10


def test_what_could_not_be_sent_is_not_marked_as_redriven(place):
    def refuse(letters):
        raise MisuseError("the topology does not run", "here", "submit it")

    with DeadLetters(place, refuse, create=True) as store:
        store.put([letter(1), letter(2)])
        store.mark_redriven([1], now_ms=5_000)
        store.mark_settled([1], now_ms=6_000)
        with pytest.raises(MisuseError, match="does not run"):
            store.redrive([1, 2])
        assert [(stored.redriven_ms, stored.settled_ms) for stored in store] == [(5_000, 6_000), (None, None)]


def test_where_no_topology_runs_nothing_is_redriven(store):
    store.put([letter(1)])
    with pytest.raises(MisuseError, match="only into the running topology"):
        store.redrive([1])
    assert store.count(redriven=True) == 0


def test_purge_wants_to_know_what(store):
    store.put([letter(1)])
    for nothing in ({}, {"topology": "flights"}, {"spout": None}):
        with pytest.raises(MisuseError, match="would delete every"):
            store.purge(**nothing)
    with pytest.raises(MisuseError, match="no dead letter 7"):
        store.purge(ids=[1, 7])
    assert len(store) == 1


def test_a_purged_letters_number_is_not_used_again(store):
    store.put([letter(1), letter(2)])
    store.purge(ids=[2])
    store.put([letter(3)])
    assert [stored.root for stored in store] == [1, 3]
    assert list(store)[-1].id > 2


def test_a_closed_store_says_so_and_closes_twice(store):
    store.close()
    store.close()
    for call in (
        lambda: store.put([LETTER]),
        store.count,
        lambda: list(store),
        lambda: store.purge(before=1),
        lambda: store.known_roots("flights", [1]),
    ):
        with pytest.raises(AcktreeError, match="closed"):
            call()


# ---- beside a naive store ----------------------------------------------------------------------------------


class BesideADict(RuleBasedStateMachine):
    """The same random actions on a store and on a dict, compared after each."""

    def __init__(self, make):
        super().__init__()
        self.store, self.model, self.numbers, self.clock = make(), {}, {}, count(1)

    @rule(roots=st.lists(st.integers(-3, 6), max_size=4), topology=st.sampled_from(["flights", "orders"]))
    def put(self, roots, topology):
        now = next(self.clock)
        new = [root for root in dict.fromkeys(roots) if (topology, root) not in self.model]
        letters = [letter(root, topology=topology, dead_ms=now) for root in roots]
        assert self.store.put(letters) == len(new)
        for root in new:
            self.model[topology, root] = [now, None, None]
        for stored in self.store:
            self.numbers.setdefault((stored.topology, stored.root, stored.dead_ms), stored.id)

    @rule(data=st.data())
    def redrive_or_settle(self, data):
        chosen = data.draw(
            st.lists(st.sampled_from(sorted(self.model)), unique=True) if self.model else st.just([])
        )
        now = next(self.clock)
        ids = [self.numbers[(*key, self.model[key][0])] for key in chosen]
        if data.draw(st.booleans()):
            self.store.mark_redriven(ids, now)
            marks = (now, None)
            for key in chosen:
                self.model[key][1:] = marks
        else:
            self.store.mark_settled(ids, now)
            for key in chosen:
                self.model[key][2] = now

    @rule(before=st.integers(0, 30), redriven=st.none() | st.booleans())
    def purge(self, before, redriven):
        gone = [
            key
            for key, (dead, again, _) in self.model.items()
            if dead < before and redriven in (None, again is not None)
        ]
        assert self.store.purge(before=before, redriven=redriven) == len(gone)
        for key in gone:
            del self.model[key]

    @invariant()
    def the_store_holds_what_the_dict_holds_in_order_of_arrival(self):
        listed = list(self.store)
        assert {
            (each.topology, each.root): [each.dead_ms, each.redriven_ms, each.settled_ms] for each in listed
        } == (self.model)
        for topology in ("flights", "orders"):
            mine = {root for of, root in self.model if of == topology}
            assert self.store.known_roots(topology, range(-3, 7)) == mine
        assert [each.id for each in listed] == sorted({each.id for each in listed})
        assert [each.dead_ms for each in listed] == sorted(each.dead_ms for each in listed)

    def teardown(self):
        self.store.close()


@pytest.mark.slow
def test_after_any_operations_the_store_equals_a_dict(place):
    def make():
        if not isinstance(place, str):
            return DeadLetters(IN_MEMORY)  # the same SQL without the disk, which is slow
        store = DeadLetters(place, create=True)
        store.purge(before=10**15)
        return store

    most = 8 if isinstance(place, str) else 50
    run_state_machine_as_test(
        lambda: BesideADict(make),
        settings=settings(max_examples=drawn(most), stateful_step_count=12, deadline=None),
    )


# ---- causes ------------------------------------------------------------------------------------------------

CAUSES = [
    letter(1, reason="JSONDecodeError: Expecting value", exception_type="json.decoder.JSONDecodeError"),
    letter(2, reason="JSONDecodeError: Expecting value", exception_type="json.decoder.JSONDecodeError"),
    letter(3, reason="wrong types: ['e000130', 'c1188']", exception_type="builtins.TypeError"),
    letter(4, reason="wrong types: ['e000131', 7]", exception_type="builtins.TypeError"),
    letter(5, reason="wrong types: ['e9']", exception_type="builtins.TypeError"),
    letter(6, reason="100 % refused_by the ROW", exception_type=None, cause=FailureCause.FAILED_BY_BOLT),
]


@pytest.mark.parametrize(
    ("filters", "roots"),
    [
        ({"reason": "WRONG types"}, [3, 4, 5]),
        ({"reason": "the row"}, [6]),
        ({"reason": "100 %"}, [6]),
        ({"reason": "%"}, [6]),
        ({"reason": "refused_by"}, [6]),
        ({"reason": "r_n"}, []),
        ({"exception": "JSONDecodeError"}, [1, 2]),
        ({"exception": "json.decoder.JSONDecodeError"}, [1, 2]),
        ({"exception": "DecodeError"}, []),
        ({"exception": "TypeError", "reason": "c1188"}, [3]),
    ],
)
def test_letters_are_chosen_by_reason_and_exception(store, filters, roots):
    store.put(CAUSES)
    assert [each.root for each in store.find(**filters)] == roots
    assert store.count(**filters) == len(roots)


def test_a_summary_groups_what_failed_alike_and_each_group_can_be_chosen(store):
    store.put([*CAUSES, letter(7, topology="other", reason="wrong types: 1")])
    groups = store.summary(topology="flights")
    assert [(each.count, each.reason, each.first_id) for each in groups] == [
        (3, "wrong types: *", 3),
        (2, "JSONDecodeError: Expecting value", 1),
        (1, "* % refused_by the ROW", 6),
    ]
    for each in groups:
        assert store.count(topology="flights", **each.filters) == each.count
    assert [each.count for each in store.summary(topology="flights", exception="TypeError")] == [3]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["a 1", "a 2", "b 'x'", "b 'y'", "c", "it's", ""]), max_size=20))
def test_the_groups_of_a_summary_have_all_letters_each_once(reasons):
    with DeadLetters(IN_MEMORY) as store:
        store.put(letter(root, reason=reason) for root, reason in enumerate(reasons))
        assert sum(each.count for each in store.summary()) == len(reasons)
        assert all(store.count(**each.filters) >= each.count for each in store.summary())


def test_a_letter_that_was_given_up_again_names_the_letter_that_it_became(store):
    store.put([letter(1), letter(2)])
    store.mark_redriven([1, 2], 3_000)
    store.put([letter(3, message_id_repr="Redriven(letter_id=1)", dead_ms=4_000)])
    store.mark_settled([1, 2], 5_000)
    assert store.dead_again(store) == {1: 3}
    store.mark_redriven([1], 6_000)  # and this time it is acked
    store.mark_settled([1], 7_000)
    assert store.dead_again(store) == {}
