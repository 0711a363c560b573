"""Trident's states beside a naive model, in memory and in real databases: a batch may come again."""

from __future__ import annotations

import enum
import math
import pickle
from contextlib import suppress
from datetime import date
from decimal import Decimal
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import (
    BasicBolt,
    CheckpointError,
    ConfigError,
    ConnectorError,
    MisuseError,
    Retry,
    TopologyBuilder,
)
from acktree.states import MapBacking, MapState, MemoryMap, RefusedKeysError, SnapshotState
from acktree.testing import FeederSpout, LocalCluster
from tests.services.postgresql import PASSWORD
from tests.services.servers import free_port

_numbers = count()


class Backings:
    """Makes empty backings of one kind."""

    def __init__(self, kind: str, request: pytest.FixtureRequest) -> None:
        self.kind = kind
        if kind == "sqlite":
            pytest.importorskip("sqlalchemy")
            self.url = f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp('states')}/states.db"
        elif kind == "postgresql":
            self.url = request.getfixturevalue("postgresql").url("states")
            request.getfixturevalue("postgresql").make_schema("states")
        elif kind == "redis":
            self.url = request.getfixturevalue("redis").url

    def make(self) -> MapBacking:
        from acktree.states import RedisMap, SqlMap  # noqa: PLC0415  # they need extras

        if self.kind == "memory":
            return MemoryMap()
        name = f"state_{next(_numbers)}"
        return RedisMap(self.url, f"{name}:") if self.kind == "redis" else SqlMap(self.url, name)


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgresql", "redis"])
def backings(request) -> Backings:
    return Backings(request.param, request)


def plus(number):
    return lambda value: (value or 0) + number


def added(state, key, number):
    return state.multi_update([key], [plus(number)])[0]


# --- what Storm's own tests say ---------------------------------------------------------------------------


def test_a_transactional_map_leaves_a_batch_that_comes_again_alone(backings):
    state = MapState(backings.make(), mode="transactional")
    state.begin_commit(1)
    assert (added(state, "a", 1), added(state, "a", 2)) == (1, 3)
    state.commit(1)
    state.begin_commit(1)
    assert (state.get("a"), added(state, "a", 1), added(state, "a", 2)) == (3, 3, 3)
    state.commit(1)
    state.begin_commit(2)
    assert (state.get("a"), added(state, "a", 3), added(state, "a", 1)) == (3, 6, 7)
    state.commit(2)


@pytest.mark.parametrize("commits", [True, False])
def test_an_opaque_map_updates_a_batch_that_comes_again_from_the_value_before(backings, commits):
    state = MapState(backings.make())
    state.begin_commit(1)
    assert (state.get("a"), added(state, "a", 1), state.get("a"), added(state, "a", 2)) == (None, 1, 1, 3)
    if commits:
        state.commit(1)
    state.begin_commit(1)
    assert (state.get("a"), added(state, "a", 2)) == (None, 2)
    state.begin_commit(2)
    assert (state.get("a"), added(state, "a", 3), added(state, "a", 1)) == (2, 5, 6)


def test_an_opaque_value_is_read_by_later_and_equal_batches_and_no_earlier_one(backings):
    backing = backings.make()

    def state_in(txid):
        backing.put({'"a"': '[8,"v1","v0"]'})
        state = MapState(backing)
        state.begin_commit(txid)
        return state

    assert [state_in(txid).get("a") for txid in (None, 100, 9, 8)] == ["v1", "v1", "v1", "v0"]
    with pytest.raises(CheckpointError, match="batch 7 comes after batch 8"):
        state_in(7).get("a")
    with pytest.raises(CheckpointError, match="batch 7 comes after batch 8"):
        state_in(7).multi_put(["a"], ["v2"])
    for txid, text in ((8, '[8,"v2","v0"]'), (9, '[9,"v2","v1"]'), (None, '[null,"v2","v1"]')):
        state_in(txid).multi_put(["a"], ["v2"])
        assert backing.get(['"a"']) == [text]


@pytest.mark.parametrize(("mode", "again"), [("opaque", 1), ("transactional", None), ("plain", None)])
def test_a_key_is_removed_for_good_in_the_batch_after(backings, mode, again):
    backing = backings.make()
    state = MapState(backing, mode=mode)
    state.begin_commit(1)
    state.multi_put(["a", "b"], [1, 2])
    state.commit(1)
    for attempt in range(2):
        state.begin_commit(2)
        assert state.get("a") == (again if attempt else 1)
        state.remove(["a", "c"])
        assert state.multi_get(["a", "b", "c"]) == [None, 2, None]
        state.commit(2)
    state.begin_commit(3)
    assert state.get("a") is None
    assert backing.get(['"a"']) == [None]


def test_what_batch_0_removed_has_its_value_again_when_batch_0_comes_again():
    state = MapState(MemoryMap())
    state.begin_commit(None)
    state.multi_put(["a"], [1])
    for _ in range(2):
        state.begin_commit(0)
        assert state.get("a") == 1
        state.remove(["a"])
        state.commit(0)
    state.begin_commit(1)
    assert state.get("a") is None


@pytest.mark.parametrize(
    ("mode", "stored"), [("plain", '"v"'), ("transactional", '[2,"v"]'), ("opaque", '[2,"v",[1.5]]')]
)
def test_values_are_stored_in_storms_forms(backings, mode, stored):
    backing = backings.make()
    state = MapState(backing, mode=mode)
    for txid, value in ((1, [1.5]), (2, "v")):
        state.begin_commit(txid)
        state.multi_put([("a", 1)], [value])
        state.commit(txid)
    assert backing.get(['["a",1]']) == [stored]


# --- laws -------------------------------------------------------------------------------------------------

amounts = st.dictionaries(st.sampled_from(["a", "b", "c", ("a", 1)]), st.integers(1, 9), max_size=4)
attempts = st.lists(st.integers(0, 4), max_size=3)
"""How many keys each abandoned attempt of a batch had updated when it died."""


def run_batch(state, txid, contents, dying):
    """Update the keys of a batch, those of a died attempt in calls of their own."""
    state.begin_commit(txid)
    if dying is None:
        updated = list(contents)
        state.multi_update(updated, [plus(contents[key]) for key in updated])
        state.commit(txid)
    else:
        for key in list(contents)[:dying]:
            added(state, key, contents[key])


@pytest.mark.parametrize("mode", ["transactional", "opaque"])
def test_a_batch_that_comes_again_with_the_same_tuples_counts_once(backings, mode):
    @settings(max_examples=25)
    @given(st.lists(st.tuples(amounts, attempts), max_size=5))
    def law(batches):
        backing, naive = backings.make(), {}
        for txid, (contents, dyings) in enumerate(batches, 1):
            for dying in [*dyings, None]:
                run_batch(MapState(backing, mode=mode), txid, contents, dying)
            for key, number in contents.items():
                naive[key] = naive.get(key, 0) + number
        assert MapState(backing, mode=mode).multi_get(list(naive)) == list(naive.values())

    law()


def test_an_opaque_batch_that_comes_again_with_other_tuples_of_its_keys_counts_as_it_came_last(backings):
    @settings(max_examples=25)
    @given(
        st.lists(st.tuples(amounts, st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)))), max_size=4)
    )
    def law(batches):
        backing, naive = backings.make(), {}
        for txid, (contents, dyings) in enumerate(batches, 1):
            for dying, other in dyings:
                run_batch(MapState(backing), txid, dict.fromkeys(contents, other), dying)
            run_batch(MapState(backing), txid, contents, None)
            for key, number in contents.items():
                naive[key] = naive.get(key, 0) + number
        assert MapState(backing).multi_get(list(naive)) == list(naive.values())

    law()


def counted(mode, backing, *batches):
    """The value of a key after batches: (number, what is added)."""
    for txid, number in batches:
        run_batch(MapState(backing, mode=mode), txid, {"a": number}, None)
    return MapState(backing, mode=mode).get("a")


@pytest.mark.parametrize(
    ("mode", "same", "other", "later"),
    [("plain", 2, 6, 2), ("transactional", 1, 1, 2), ("opaque", 1, 5, 2)],
)
def test_each_mode_counts_a_second_run_as_the_table_says(backings, mode, same, other, later):
    """Trident's kinds of spout: the same tuples again, others in the batch, the same in a later batch."""
    assert counted(mode, backings.make(), (1, 1), (1, 1)) == same
    assert counted(mode, backings.make(), (1, 1), (1, 5)) == other
    assert counted(mode, backings.make(), (1, 1), (2, 1)) == later


def test_a_key_that_only_an_abandoned_attempt_has_written_keeps_it_as_in_trident(backings):
    backing = backings.make()
    run_batch(MapState(backing), 1, {"a": 1, "b": 1}, 2)
    run_batch(MapState(backing), 1, {"b": 1}, None)
    run_batch(MapState(backing), 2, {"b": 1}, None)
    assert MapState(backing).multi_get(["a", "b"]) == [1, 2]


class CountsInFlush(BasicBolt):
    """Counts in a state in ``flush``, which raises once: after as many keys."""

    def __init__(self, name, mode, raises):
        self.name, self.mode, self.raises = name, mode, raises

    def prepare(self, config, context):
        self.state = MapState(_maps[self.name], mode=self.mode)
        self.txid, self.words = context.txid, []

    def execute(self, tup, collector):
        self.words.append(tup["word"])

    def flush(self, collector):
        words, self.words = sorted(self.words), []
        is_first = bool(words) and not _flushed.get(self.name)
        if words:
            _flushed[self.name] = True
        self.state.begin_commit(self.txid)
        for at, word in enumerate(words):
            if is_first and at == self.raises:
                raise ValueError("it raises")
            added(self.state, word, 1)
        if is_first and self.raises == len(words):
            raise ValueError("it raises")
        self.state.commit(self.txid)


_maps: dict[str, MemoryMap] = {}
_flushed: dict[str, bool] = {}


@pytest.mark.parametrize("mode", ["plain", "transactional", "opaque"])
@pytest.mark.parametrize(("raises", "counts"), [(None, [1, 1]), (0, [1, 1]), (1, [2, 1]), (2, [2, 2])])
def test_what_was_written_before_flush_raises_counts_twice_in_each_mode(mode, raises, counts):
    """The tuples come again in a later micro-batch, which has another number. No mode helps then."""
    name = f"flush {next(_numbers)}"
    _maps[name] = MemoryMap()
    feeder = FeederSpout(["word"])
    builder = TopologyBuilder("flushes")
    builder.set_spout("words", feeder)
    counting = CountsInFlush(name, mode, raises)
    builder.set_bolt("count", counting, exactly_once=True, retry=Retry(3)).fields_grouping("words", ["word"])
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for word in ("a", "b"):
            feeder.feed([word], message_id=word)
        for _ in range(10):
            cluster.advance(secs=30)
        assert sorted(feeder.acked) == ["a", "b"]
        assert not running.dead_letters
    assert MapState(_maps[name], mode=mode).multi_get(["a", "b"]) == counts


# --- keys and values --------------------------------------------------------------------------------------


class Number(enum.IntEnum):
    ONE = 1


class Raises:
    def __eq__(self, other):
        raise RuntimeError("eq")

    __hash__ = None


LOOP: list = []
LOOP.append(LOOP)
FINE = [
    None, True, 0, -1, 2**70, 1.5, -0.0, 1e300, "", "a", "a\0b", "\udcff", "\U0001f600", "' OR 1=1 --", "%s",
    "x" * 300_000, [], [None, [1]], {}, {"a": {"b": [1.5]}}, {"": "x"},
]  # fmt: skip
REFUSED = [
    math.nan, math.inf, b"a", Decimal(1), object(), object, Raises(), "\ud83d\ude00", (1, 2), {1, 2},
    {1: 2}, [(1,)], LOOP,
    date(2024, 7, 1), Number.ONE, 10**5000, [math.nan], "x" * (1 << 26), 1 + 2j,
]  # fmt: skip
KEYS = [
    None, True, 0, 1, -1, 2**70, 1.5, "", "a", "A", "a ", "a\0b", "\udcff", "'", "\\", "%", "1", (), ("a",),
    (("a",), 1),
    "x" * 600,
]  # fmt: skip
BAD_KEYS = [
    b"a",
    math.nan,
    {"a": 1},
    object(),
    Raises(),
    ("a", b"b"),
    "x" * 800,
    "\u00e4" * 200,
    LOOP,
    {1},
    "\ud83d\ude00",
]


def test_hostile_values_come_back_or_fail_alone(backings):
    state = MapState(backings.make())
    state.begin_commit(1)
    values = [*FINE, *REFUSED]
    with pytest.raises(RefusedKeysError, match=f"{len(REFUSED)} of {len(values)} keys are refused") as raised:
        state.multi_put(range(len(values)), values)
    assert list(raised.value.refused) == list(range(len(FINE), len(values)))
    assert all(isinstance(error, MisuseError) for error in raised.value.refused.values())
    state.commit(1)
    returned = state.multi_get(range(len(values)))
    assert returned == [*FINE, *[None] * len(REFUSED)]
    assert list(map(type, returned[: len(FINE)])) == list(map(type, FINE))


def test_hostile_keys_are_told_apart_or_fail_alone(backings):
    state = MapState(backings.make())
    keys = [*KEYS, *BAD_KEYS]
    for txid in (1, 2):
        state.begin_commit(txid)
        with pytest.raises(RefusedKeysError) as raised:
            state.multi_update(keys, [plus(number) for number in range(len(keys))])
        assert list(raised.value.refused) == list(range(len(KEYS), len(keys)))
        assert raised.value.values == [
            *(txid * number for number in range(len(KEYS))),
            *[None] * len(BAD_KEYS),
        ]
        with suppress(RefusedKeysError):
            state.remove(BAD_KEYS)
    with pytest.raises(RefusedKeysError) as raised:
        state.multi_get(keys)
    assert raised.value.values[: len(KEYS)] == [2 * number for number in range(len(KEYS))]


def test_equal_keys_are_one_key_also_in_one_call(backings):
    state = MapState(backings.make())
    state.begin_commit(1)
    assert state.multi_update([1, 1.0, (1, "a"), [1.0, "a"]], [plus(1)] * 4) == [1, 2, 1, 2]


def test_a_function_that_raises_fails_its_key_alone(backings):
    state = MapState(backings.make())
    state.begin_commit(1)
    with pytest.raises(RefusedKeysError, match="the first: ZeroDivisionError") as raised:
        state.multi_update(["a", "b", "a"], [plus(1), lambda _: 1 // 0, plus(2)])
    assert (raised.value.values, [*raised.value.refused]) == ([1, None, 3], [1])
    assert state.multi_get(["a", "b"]) == [3, None]
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.values) == (str(raised.value), raised.value.values)


def test_many_keys_are_read_and_written_in_one_call(backings):
    state = MapState(backings.make())
    state.begin_commit(1)
    state.multi_put(range(2500), range(2500))
    state.begin_commit(2)
    state.remove(range(0, 2500, 2))
    state.begin_commit(3)
    assert state.multi_get(range(2500)) == [n if n % 2 else None for n in range(2500)]


def test_a_snapshot_has_one_value_beside_a_map(backings):
    backing = backings.make()
    state, others = SnapshotState(backing), MapState(backing)
    for each in (state, others):
        each.begin_commit(1)
    others.multi_put([None, "$GLOBAL$"], ["map", "map"])
    assert (state.get(), state.update(plus(2)), state.get()) == (None, 2, 2)
    state.commit(1)
    state.begin_commit(1)
    assert state.update(plus(3)) == 3
    state.commit(1)
    state.begin_commit(2)
    state.set("now")
    assert (state.get(), backing.get(["$GLOBAL$"])) == ("now", ['[2,"now",3]'])
    assert others.multi_get([None, "$GLOBAL$"]) == ["map", "map"]


def test_a_state_travels_to_a_worker(backings):
    state = MapState(backings.make())
    state.begin_commit(1)
    state.multi_put(["a"], [1])
    assert pickle.loads(pickle.dumps(state)).get("a") == 1


def test_mistakes_are_named(backings):
    state = MapState(backings.make())
    state.multi_put(["a"], [1])
    with pytest.raises(ConfigError, match="is not one of mode 'transactional'"):
        MapState(state._backing, mode="transactional").get("a")
    with pytest.raises(ConfigError, match="mode is 'once'"):
        MapState(MemoryMap(), mode="once")
    with pytest.raises(MisuseError, match="2 keys and 1 functions"):
        state.multi_update(["a", "b"], [plus(1)])
    with pytest.raises(MisuseError, match="1 keys and 0 values"):
        state.multi_put(["a"], [])


def test_a_database_that_is_away_may_be_tried_again_and_no_error_shows_its_password():
    pytest.importorskip("psycopg")
    pytest.importorskip("redis")
    from acktree.states import RedisMap, SqlMap  # noqa: PLC0415  # they need extras

    port = free_port()
    for backing in (
        SqlMap(f"postgresql+psycopg://tester:secret@127.0.0.1:{port}/postgres", "counts"),
        RedisMap(f"redis://tester:secret@127.0.0.1:{port}/0", "counts:"),
    ):
        with pytest.raises(ConnectorError) as raised:
            MapState(backing).get("a")
        assert raised.value.can_retry
        assert "secret" not in f"{raised.value}{MapState(backing)._where}"


def test_a_user_without_rights_is_told_so(postgresql):
    from acktree.states import SqlMap  # noqa: PLC0415  # it needs an extra

    url = postgresql.url("nowhere")
    with pytest.raises(ConnectorError) as raised:
        SqlMap(url, "missing.counts").get(["a"])
    assert not raised.value.can_retry
    assert PASSWORD not in str(raised.value)
