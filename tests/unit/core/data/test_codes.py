"""A field of repeated texts is sent as a dictionary; who reads it as Arrow gets the declared type back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import ColumnState, MisuseError
from acktree.core.data import codes as module
from acktree.core.data import distinct as noted
from acktree.core.data.batches import joined
from acktree.core.data.codes import coded, plain
from acktree.core.data.distinct import codes_of, distinct
from acktree.core.data.row_hashes import hash_rows
from acktree.core.data.values import batch_from_bytes, batch_to_bytes, decode_rows

TEXTS = [pa.string(), pa.large_string()]
LONG = "x" * 70
WORDS = ["", "a", "ä", "b\0", "x" * 70]


@pytest.fixture(autouse=True)
def columns_are_long_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noted, "_SAMPLED", 4)
    monkeypatch.setattr(noted, "_LONG", 1)


def batch_of(words: list[str | None], kind: pa.DataType = TEXTS[0], **metadata: str) -> pa.RecordBatch:
    word = pa.field("word", kind, nullable=None in words, metadata=metadata or None)
    schema = pa.schema([pa.field("number", pa.int64()), word], metadata={"of": "the user"})
    columns = [pa.array(range(len(words)), pa.int64()), pa.array(words, kind)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def is_coded(batch: pa.RecordBatch) -> bool:
    return isinstance(batch.column("word"), pa.DictionaryArray)


@given(
    st.lists(st.sampled_from(WORDS) | st.none(), max_size=60) | st.lists(st.sampled_from(WORDS), max_size=60),
    st.sampled_from(TEXTS),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(0, 5),
)
def test_a_batch_comes_back_as_it_was_coded(words, kind, partitions, least_rows, start):
    sent = batch_of(words, kind, note="of the user").slice(start)
    travelling = coded(sent, ["number", "word"], partitions, least_rows)
    assert travelling.column("number").equals(sent.column("number"))
    assert decode_rows(travelling) == decode_rows(sent), "who takes tuples reads it as it is"
    assert (hash_rows(travelling, ["word"]) == hash_rows(sent, ["word"])).all()
    received = plain(batch_from_bytes(batch_to_bytes(travelling)))
    assert received.equals(sent, check_metadata=True)
    if is_coded(travelling):
        assert sent.num_rows >= partitions * max(least_rows, 2 * len(travelling.column("word").dictionary))


@pytest.mark.parametrize(
    ("words", "partitions", "least_rows", "expected"),
    [
        ([LONG, "b"] * 20, 2, 20, True),
        ([LONG, "b"] * 20, 2, 21, False),
        ([LONG, "b"] * 20, 10, 1, True),
        ([LONG, "b"] * 20, 11, 1, False),
        (["a", "b"] * 20, 10, 1, False),
        (["a", "b"] * 50 + ["a long one" * 100], 1, 1, True),
        (["a", "b"] * 50 + ["a long one" * 100], 2, 1, False),
        ([str(number) for number in range(40)], 1, 1, False),
        (["a", "b", None] * 20, 1, 1, False),
    ],
)
def test_a_field_is_coded_where_each_partition_gets_enough_rows_of_few_texts(
    words, partitions, least_rows, expected
):
    assert is_coded(coded(batch_of(words), ["word"], partitions, least_rows)) is expected


def test_the_different_texts_of_a_column_that_stays_plain_are_looked_for_once():
    sent = batch_of(["a", "b"] * 50 + ["a long one" * 100])
    travelling = coded(sent, ["word"], 2, 1)
    assert travelling.equals(sent, check_metadata=True)
    found = codes_of(travelling["word"])
    assert found.dictionary.to_pylist() == ["a", "b", "a long one" * 100]
    assert (hash_rows(travelling, ["word"]) == hash_rows(sent, ["word"])).all()
    del travelling
    assert codes_of(sent["word"]) is not found, "the batch is the user's, who may change it"


def test_no_memory_to_decode_is_no_error_of_the_type(monkeypatch):
    travelling = coded(batch_of([LONG, "b"] * 20), ["word"], 1, 1)
    assert is_coded(travelling)

    def decode(codes):
        raise pa.ArrowMemoryError("malloc of size 64000000 failed")

    monkeypatch.setattr(module, "_texts_of", decode)
    with pytest.raises(MemoryError):
        plain(travelling)


def test_a_dictionary_of_the_user_stays_one():
    words = pa.array(["a", "b"] * 20).dictionary_encode()
    sent = pa.record_batch({"word": words})
    travelling = coded(sent, ["word"], 1, 1)
    assert travelling is sent
    assert plain(travelling).equals(sent, check_metadata=True)


def test_some_of_the_rows_come_back_too():
    sent = batch_of(["a", "b", "c"] * 20)
    rows = pa.array([5, 3, 3, 59])
    assert plain(coded(sent, ["word"], 1, 1).take(rows)).equals(sent.take(rows), check_metadata=True)
    both = joined([coded(sent, ["word"], 1, 1), coded(batch_of(["b", "d"] * 20), ["word"], 1, 1)])
    assert plain(both)["word"].to_pylist() == ["a", "b", "c"] * 20 + ["b", "d"] * 20


def test_the_codes_of_a_column_are_known_while_its_batch_is_there():
    before = dict(noted._CODES)
    received = plain(coded(batch_of(["a", "b", "c", "a"] * 20), ["word"], 1, 1))
    column = received["word"]
    assert codes_of(column).equals(codes_of(received.column(1)))
    texts, places = distinct(column)
    assert (texts.to_pylist(), places.tolist()) == (["a", "b", "c"], [0, 1, 2, 0] * 20)
    part = column.slice(1, 30)
    assert codes_of(part) is part, "another part of the memory is another column"
    del received
    assert codes_of(column) is column
    assert before == noted._CODES


def test_codes_that_outlive_their_batch_are_those_of_no_column():
    received = plain(coded(batch_of(["a", "b", "c", "a"] * 20), ["word"], 1, 1))
    column = received["word"]
    memory = next(memory for memory in noted._CODES if memory == noted._memory_of(column))
    interrupted = noted._CODES[memory]
    del received
    noted._CODES[memory] = interrupted  # as if a signal had come while the batch ended
    assert codes_of(column) is column
    plain(coded(batch_of(["a", "b"] * 20), ["word"], 1, 1))
    assert memory not in noted._CODES


class Own(pa.ExtensionType):
    """A user's type, which has no hash."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "own")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


def test_a_column_of_another_type_has_no_codes():
    received = plain(coded(batch_of(["a", "b", "c", "a"] * 20), ["word"], 1, 1))
    own = pa.ExtensionArray.from_storage(Own(), received["word"])
    assert codes_of(own) is own
    as_bytes = received["word"].view(pa.binary())
    assert codes_of(as_bytes) is as_bytes


def test_what_is_no_text_is_not_coded():
    raw = pa.array([b"\xff\xfe", b"a"] * 20).view(pa.string())
    sent = pa.record_batch({"word": raw})
    travelling = coded(sent, ["word"], 1, 1)
    assert not is_coded(travelling)
    assert travelling.equals(sent)


@given(st.lists(st.sampled_from(WORDS), min_size=8, max_size=60))
def test_a_column_state_adds_to_decoded_keys_as_to_any_others(words):
    received, other = plain(coded(batch_of(words), ["word"], 1, 1)), batch_of(words)
    states = ColumnState(str, int), ColumnState(str, int)
    for state, batch in zip(states, (received, other), strict=True):
        state.add_many(batch["word"])
        state.add_many(batch["word"], np.arange(len(words)))
    assert dict(states[0]) == dict(states[1])


def test_texts_that_do_not_fit_into_one_column_are_refused():
    travelling = coded(batch_of(["a", "b"] * 20), ["word"], 1, 1)

    class Large:
        """Texts of more than 2 GiB, without their memory."""

        dictionary = travelling.column("word").dictionary

        def __len__(self) -> int:
            return 1 << 40

        def dictionary_decode(self) -> pa.Array:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    with pytest.raises(MisuseError, match=r"1099511627776 rows do not fit into one column.*offset overflow"):
        module._decoded("word", Large())
