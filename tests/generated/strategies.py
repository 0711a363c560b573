"""Hypothesis draws topologies."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.generated.scripted import BoltSpec, Drawn, Input, Message, Profile
from tests.generated.tracker import Tracker

LARGEST = 1500
"""Copies of tuples in one topology: more take long and show nothing new."""
GROUPINGS = ["shuffle", "local_or_shuffle", "none", "fields", "partial_key", "global", "all", "custom"]

some_percent = st.sampled_from([0, 0, 0, 10, 40])
profiles = st.builds(
    Profile,
    fan_out=st.sampled_from([0, 1, 2, 2, 3, 3, 4, 5]),
    fail=some_percent,
    forget=some_percent,
    throw=some_percent,
    loose=some_percent,
    refuse=some_percent,
)


@st.composite
def bolts(draw, sources: list[str], name: str, kinds: list[str]) -> BoltSpec:
    """A bolt that reads some of the sources."""
    kind = draw(st.sampled_from(kinds))
    if kind == "join":  # what is joined must meet at one task, by whichever way it comes
        streams = st.tuples(st.sampled_from(sources), st.sampled_from(["default", "default", "side"]))
        grouping = draw(st.sampled_from(["fields", "global", "all"]))
        read = draw(st.lists(streams, min_size=1, max_size=3, unique=True))
        inputs = [Input(source, stream, grouping) for source, stream in read]
    else:
        streams = st.tuples(
            st.sampled_from(sources), st.sampled_from(["default", "default", "side", "direct"])
        )
        inputs = [
            Input(source, stream, "direct" if stream == "direct" else draw(st.sampled_from(GROUPINGS)))
            for source, stream in draw(st.lists(streams, min_size=1, max_size=3, unique=True))
        ]
    return BoltSpec(name, kind, draw(st.integers(1, 3)), tuple(inputs))


@st.composite
def topologies(draw, kinds: tuple[str, ...] = ("basic", "hand", "join", "arrow")) -> Drawn:
    """A topology with its messages: 1 or 2 spouts, 1 to 6 bolts, up to 10 messages in up to 3 batches."""
    spouts = draw(st.sampled_from([("spout0",), ("spout0", "spout1")]))
    drawn_bolts: list[BoltSpec] = []
    # Names are drawn, so that task ids do not rise from the sources to the sinks.
    for name in draw(st.permutations("pqrstu"))[: draw(st.sampled_from([1, 2, 3, 4, 4, 5, 5, 6, 6]))]:
        drawn_bolts.append(draw(bolts([*spouts, *(bolt.id for bolt in drawn_bolts)], name, list(kinds))))
    messages = draw(
        st.lists(
            st.builds(
                Message,
                spout=st.sampled_from(spouts),
                key=st.sampled_from("abc"),
                is_tracked=st.integers(0, 5).map(bool),
                batch=st.integers(0, 2),
            ),
            min_size=draw(st.sampled_from([1, 3, 6])),
            max_size=10,
        )
    )
    seed = draw(st.integers(0, 2**32))
    drawn = Drawn(seed, draw(profiles), spouts, tuple(drawn_bolts), tuple(messages))
    # Too many copies: fewer children.
    while Tracker(drawn).size() > LARGEST and drawn.profile.fan_out > 1:
        profile = Profile(**{**drawn.profile.__dict__, "fan_out": drawn.profile.fan_out - 1})
        drawn = Drawn(seed, profile, spouts, tuple(drawn_bolts), tuple(messages))
    return drawn
