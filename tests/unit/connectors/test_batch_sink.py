"""What every sink that derives from BatchSink keeps, whatever its client does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import ConnectorError, Retry, TopologyBuilder, Tuple
from acktree.connectors.batch_sink import BatchSink, Outcome, as_bytes, as_id, as_text
from acktree.testing import FeederSpout, LocalCluster, complete_topology
from tests.drawn import drawn

KINDS = ["good", "misfit", "raises", "refused", "forgotten", "bug", "outage"]
"""What becomes of a tuple: the first three are decided when it is encoded, the others when it is sent."""


class Scripted(BatchSink[tuple[int, str]]):
    """A sink whose tuples say what happens to them."""

    sent: list[int]

    def __init__(self, page: int | None) -> None:
        self.page = page
        Scripted.sent = []  # the bolt is copied

    def entry(self, tup: Tuple) -> tuple[int, str]:
        if tup["kind"] == "misfit":
            raise ConnectorError("it does not fit", "here", "correct it")
        if tup["kind"] == "raises":
            raise KeyError("of the user's function")
        return tup["n"], tup["kind"]

    def send(self, _: Sequence[Tuple], entries: Sequence[tuple[int, str]]) -> Iterator[Outcome]:
        for index, (number, kind) in enumerate(entries):
            if kind == "outage":
                raise ConnectorError("the server is gone", "here", "start it", can_retry=True)
            if kind == "bug":
                raise AttributeError("a client's own")
            Scripted.sent.append(number)
            if kind != "forgotten":
                yield [index], ConnectorError("refused", "here", "correct it") if kind == "refused" else None


def fates_of(kinds: Sequence[str], page: int | None) -> tuple[dict[int, str], list[int]]:
    """The naive model: the reason of each tuple, empty where it is acked, and which are sent.

    Those for which the server is gone wait.
    """
    fates: dict[int, str] = {}
    sent: list[int] = []
    waiting: list[int] = []
    is_gone = False

    def write() -> None:
        nonlocal is_gone
        ends = "does not know"
        for number in waiting:
            if kinds[number] in ("outage", "bug"):
                is_gone |= kinds[number] == "outage"
                ends = "the server is gone" if kinds[number] == "outage" else "a client's own"
                break
            sent.append(number)
            if kinds[number] != "forgotten":
                fates[number] = "refused" if kinds[number] == "refused" else ""
        fates.update({number: ends for number in waiting if number not in fates})
        waiting.clear()

    for number, kind in enumerate(kinds):
        if is_gone:
            fates[number] = "the server is gone"
        elif kind in ("misfit", "raises"):
            fates[number] = "does not fit" if kind == "misfit" else "of the user's function"
        else:
            waiting.append(number)
            if len(waiting) == page:
                write()
    write()
    return fates, sent


@settings(max_examples=drawn(30), deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([*KINDS[:4] * 3, *KINDS]), max_size=12), max_size=3),
    st.sampled_from([1, 3, None]),
)
def test_each_tuple_has_the_fate_that_it_has_alone_until_the_server_is_gone(
    batches: list[list[str]], page: int | None
) -> None:
    feeder = FeederSpout(["n", "kind"])
    builder = TopologyBuilder("sink")
    builder.set_spout("feeder", feeder)
    builder.set_bolt("sink", Scripted(page)).shuffle_grouping("feeder")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for kinds in batches:
            feeder.acked.clear()
            feeder.failed.clear()
            Scripted.sent.clear()
            for number, kind in enumerate(kinds):
                feeder.feed([number, kind], message_id=number)
            cluster.advance()
            fates, sent = fates_of(kinds, page)
            waiting = [number for number, reason in fates.items() if reason == "the server is gone"]
            reasons = {number: failure.reason for number, failure in feeder.failed}
            assert Scripted.sent == sent
            assert sorted(feeder.acked) == sorted(number for number, reason in fates.items() if not reason)
            assert sorted([*feeder.acked, *reasons, *waiting]) == [*range(len(kinds))]
            assert running.stats()["feeder"].awaiting_retry == len(waiting)
            assert all(fates[number] in reason for number, reason in reasons.items())
            if waiting:  # the spout is held back, or they are sent again beside the next ones
                break


@given(
    st.one_of(st.text(), st.binary(), st.none(), st.integers(), st.floats(), st.characters(categories=["Cs"]))
)
def test_what_is_encoded_is_decoded_again_or_refused_with_the_fix(value: object) -> None:
    is_text = isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)
    if is_text or isinstance(value, bytes):
        encoded = as_bytes("'body'", value, "queue 'x'")
        assert value in (encoded, encoded.decode(errors="replace"))
    else:
        with pytest.raises(ConnectorError) as refused:
            as_bytes("'body'", value, "queue 'x'")
        assert refused.value.where == "queue 'x'"
        assert refused.value.fix


@pytest.mark.parametrize("value", [None, True, b"id", ["id"], object(), "\ud800"])
def test_what_names_a_message_has_one_text(value: object) -> None:
    with pytest.raises(ConnectorError):
        as_id("the id", value, "")
    assert (as_id("", 7, ""), as_id("", "7", ""), as_id("", 7.5, "")) == ("7", "7", "7.5")


def test_a_text_is_not_bytes() -> None:
    with pytest.raises(ConnectorError, match="of type bytes, which cannot be sent"):
        as_text("'body'", b"order", "")


@pytest.mark.parametrize(("kind", "attempts"), [("misfit", 1), ("refused", 1), ("bug", 3)])
def test_a_row_that_a_sink_refuses_is_not_tried_again_if_final_says_so(kind: str, attempts: int) -> None:
    builder = TopologyBuilder("t")
    policy = Retry(3, (1, 1), final=(ConnectorError,))
    builder.set_spout("numbers", FeederSpout(["n", "kind"]), retry=policy)
    builder.set_bolt("sink", Scripted(None)).shuffle_grouping("numbers")
    (letter,) = complete_topology(builder.create_topology(), {"numbers": [[1, kind]]}).dead_letters
    assert letter.attempts == attempts
