"""The streams of a spout task's messages, by their sequences: as a dict says it."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acktree.tasks.spouts.chunks import sent_streams
from acktree.tasks.spouts.chunks.sent_streams import SentStreams

CHUNKS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc")), min_size=1, max_size=40)


@given(CHUNKS, st.data())
def test_each_sequence_has_the_stream_of_its_chunk(chunks, data):
    sent, model, first = SentStreams(), {}, 7
    for size, stream in chunks:
        sent.add(first, stream)
        if data.draw(st.booleans()):
            sent.add(first, stream)  # announced, and then opened
        model |= dict.fromkeys(range(first, first + size), stream)
        first += size
    asked = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True))
    found = sent.counts(np.array(asked, dtype=np.int64))
    assert found == Counter(model[sequence] for sequence in asked)


def test_the_table_is_bounded_by_what_is_open(monkeypatch):
    monkeypatch.setattr(sent_streams, "_MANY", 10)
    sent = SentStreams()
    sent._many = 10
    for first in range(1000):
        sent.add(first, "ab"[first % 2], oldest=max(0, first - 3))
    assert len(sent._entries) < 30
    assert sent.counts(np.array([997, 998, 999])) == {"a": 1, "b": 2}


def test_nothing_was_emitted():
    assert SentStreams().counts(np.array([], dtype=np.int64)) == {}
